"""On a GPU every rule writes the ids that the eager engine writes on the CPU, on both engines
(`make gpu`).
"""

import copy
import warnings
from typing import Any

import pytest
import torch

from benchmarks.gpu import gate_of
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.scripted import scripted, scripts

pytestmark = pytest.mark.gpu

PROMPT = 24
ANSWER = 40
VOCABULARY = 2048
RULES: dict[str, dict[str, Any]] = {
    "exact": {},
    "prob": {"r": 1e-9},
    "prob-ratio": {"r": 1e-9},
    "fly": {"theta": 0.01, "window": 0},
    "ensemble": {"w": 0.5},
    "autojudge": {"risk": 0.5},
}
"""At settings that accept some draft tokens of the scripted pair loosely, or all of them."""


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[Any]]:
    """The same random weights on both devices."""
    if not torch.cuda.is_available():
        pytest.skip("This machine has no GPU that PyTorch can use.")
    torch.backends.cuda.matmul.allow_tf32 = False
    on_cpu = [
        scripted("20M", script, VOCABULARY)
        for script in scripts(PROMPT + ANSWER + 64, VOCABULARY, 0.2, seed=0)
    ]
    return {"cpu": on_cpu, "cuda": [copy.deepcopy(model).cuda() for model in on_cpu]}


def answers(models: list[Any], rule: str, block: int, rows: int, engine: str) -> list[Any]:
    """Greedy answers to the beginning of the target's script; a compiled engine that falls back is
    an error.
    """
    target, draft = models
    torch.manual_seed(0)
    gate = gate_of(target) if rule == "autojudge" else None
    decoder = Decoder(
        target, ModelDrafter(draft), make_rule(rule, **RULES[rule]), block, gate=gate, engine=engine
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="This runs on the eager engine")
        return decoder.generate(
            [target.script[:PROMPT].tolist()] * rows, max_new_tokens=ANSWER, eos_ids=[]
        )


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("block", [2, 5])
@pytest.mark.parametrize("rule", list(RULES))
def test_eager_ids_are_those_of_the_cpu(
    pairs: dict[str, list[Any]], rule: str, block: int, rows: int
) -> None:
    reference = answers(pairs["cpu"], rule, block, rows, "eager")
    on_gpu = answers(pairs["cuda"], rule, block, rows, "eager")
    assert [answer.ids for answer in on_gpu] == [answer.ids for answer in reference]
    assert rule == "exact" or sum(answer.statistics.loose for answer in on_gpu) > 0


@pytest.mark.parametrize(
    "rule, rows, dtype",
    [("exact", 1, torch.float32), ("autojudge", 4, torch.float32), ("exact", 4, torch.bfloat16)],
)
def test_compiled_ids_are_those_of_the_cpu(
    pairs: dict[str, list[Any]], rule: str, rows: int, dtype: torch.dtype
) -> None:
    """In bfloat16 too: the scripted token is one logit ahead of all others, which is no near
    tie.
    """
    reference = answers(pairs["cpu"], rule, 5, rows, "eager")
    models = [copy.deepcopy(model).to(dtype) for model in pairs["cuda"]]
    on_gpu = answers(models, rule, 5, rows, "compiled")
    assert [answer.ids for answer in on_gpu] == [answer.ids for answer in reference]
