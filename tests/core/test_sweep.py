"""Closed gate = greedy ids at large: every architecture, block length, batch size, engine and
drafter.

The fast suite runs a sample; `pytest -m long tests/core/test_sweep.py` runs the sweep, in which
each block length meets two batch sizes and each batch size several block lengths.
"""

import copy
from typing import Any

import pytest
import torch

from gistgate.compiled import memory as store
from gistgate.compiled import program
from gistgate.core.decoder import Decoder
from gistgate.drafters import DRAFTERS
from gistgate.drafters.adaptive import Costs, ModelOrTextDrafter
from gistgate.drafters.model import ModelDrafter
from gistgate.models.sources import STORED
from gistgate.retrieval.corpus import CorpusDrafter, SuffixArray
from gistgate.retrieval.sense import SenseDrafter, SenseTree
from gistgate.rules import make_rule
from tests.architectures import MORE, SIZES, greedy, pair, prompts
from tests.core.watching import HalfGate, Markers
from tests.retrieval.test_sense import store_of
from tests.rules.extremes import CLOSED

KINDS = [*SIZES, *MORE]
NAMES = [*DRAFTERS, *STORED, "corpus"]
"""Every drafter; `hybrid` is made with costs and a block of its own."""
COMPILED = ("llama", "qwen2", "qwen3", "gpt2", "phi", "olmo2")
"""Architectures without a sliding window, which the compiled engine takes."""
BATCH = prompts(5, 17, 1, 10, 2, 30, 3, 8)
"""Eight prompts, one of a single token."""
NUM = 16
PAIRS = [
    (block, rows)
    for block in range(1, 17)
    for rows in {1 + (block * 3) % 8, 1 + (block * 5 + 2) % 8}
]
"""Block lengths 1 to 16, each with two numbers of rows out of 1 to 8."""


def drafter(name: str, kind: str) -> Any:
    if name in DRAFTERS:
        kind_of: Any = DRAFTERS[name]
        if kind_of is ModelOrTextDrafter:
            return ModelOrTextDrafter(
                ModelDrafter(pair(kind)[1]), Costs(1.0, 0.1, {4: 1.0}), block=4
            )
        return kind_of(pair(kind)[1]) if issubclass(kind_of, ModelDrafter) else kind_of()
    if name == "corpus":
        return CorpusDrafter(
            SuffixArray.build([greedy(kind, tuple(prompt), NUM) for prompt in BATCH[:3]])
        )
    kind_of = SenseTree if name.startswith("sen-tree") else SenseDrafter
    return kind_of(store_of(kind, BATCH[:2]), semantic=not name.endswith("-lexical"))


def check(
    kind: str, name: str, block: int, rows: int, rule: str = "exact", engine: str = "eager"
) -> None:
    """Decode, and compare with what transformers itself writes greedily."""
    closed = make_rule(rule, **CLOSED[rule])
    parts = {"gate": HalfGate(), "tokenizer": Markers(), "engine": engine}
    decoder = Decoder(pair(kind)[0], drafter(name, kind), closed, block, **parts)
    batch = [BATCH[(block + number) % len(BATCH)] for number in range(rows)]
    answers = decoder.generate(batch, max_new_tokens=NUM)
    assert [answer.ids for answer in answers] == [
        greedy(kind, tuple(prompt), NUM) for prompt in batch
    ], (
        block,
        rows,
    )


@pytest.mark.parametrize("number", range(16))
def test_a_sample_writes_the_greedy_texts(number: int):
    kind = KINDS[number % len(KINDS)]
    name = NAMES[(number * 5) % len(NAMES)]
    check(kind, name, *PAIRS[(number * 7) % len(PAIRS)], rule=("exact", "autojudge")[number // 8])


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_block_and_batch_writes_the_greedy_texts(kind: str, name: str):
    for block, rows in PAIRS:
        check(kind, name, block, rows)
    check(kind, name, 6, 3, rule="autojudge")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", COMPILED)
def test_the_compiled_engine_writes_them_too(kind: str, name: str, monkeypatch: pytest.MonkeyPatch):
    """Programs as traced, not compiled. Where the engine falls back, the texts are the same as
    well.
    """
    build = program.build
    monkeypatch.setattr(
        store, "build", lambda *parts, **named: build(*parts, **{**named, "compiles": False})
    )
    monkeypatch.setattr(store, "_stores", type(store._stores)())
    for block, rows in ((1, 8), (4, 1), (7, 3), (16, 5)):
        check(kind, name, block, rows, engine="compiled")


BFLOAT16 = 2.0**-6
"""Share of the largest logit by which a chosen token may be less than the best: two steps of
bfloat16's 8 bits. A block and a single token are summed in different orders, so nearly equal logits
may change places."""


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_in_bfloat16_every_token_is_within_rounding_of_the_best(kind: str):
    target, draft = (copy.deepcopy(model).bfloat16() for model in pair(kind))
    for block in (1, 5, 16):
        decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), block)
        for prompt, answer in zip(BATCH, decoder.generate(BATCH, max_new_tokens=NUM), strict=True):
            assert len(answer.ids) == NUM
            with torch.no_grad():
                z = (
                    target(torch.tensor([[*prompt, *answer.ids]]))
                    .logits[0, len(prompt) - 1 : -1]
                    .float()
                )
            lacking = z.max(-1).values - z.gather(-1, torch.tensor(answer.ids)[:, None]).squeeze(-1)
            assert (lacking <= BFLOAT16 * z.abs().max(-1).values).all()
