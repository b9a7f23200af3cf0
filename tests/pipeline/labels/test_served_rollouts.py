"""Rollouts of an engine that writes portions are those of the decoder."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from pipeline.labels import vllm
from pipeline.labels.labelling import engine_of
from pipeline.labels.rollouts import REJOINED, Cost, PrefixCache, Rollout, RolloutRunner
from pipeline.labels.vllm import EngineRunner, TextToExtend, VllmEngine
from pipeline.pair.pair import ModelSource
from tests.architectures import noisy_copy, tiny_model
from tests.pipeline.labels.ends import ends
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
PROMPTS = [[1, 40, 50], [1, 60, 61, 62], [1, 90]]


class Engine:
    """Goes on greedily with a model, a text at a time, as vLLM does with many."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.requests = list[TextToExtend]()

    @torch.no_grad()
    def __call__(
        self, requests: list[TextToExtend], sampling: Sampling, eos_ids: list[int]
    ) -> list[list[int]]:
        assert sampling.greedy
        self.requests += [TextToExtend(list(text), num, seed) for text, num, seed in requests]
        return [self.portion(request, eos_ids) for request in requests]

    def portion(self, request: TextToExtend, eos_ids: list[int]) -> list[int]:
        new: list[int] = []
        while len(new) < request.num and new[-1:] not in [[token] for token in eos_ids]:
            logits = self.model(torch.tensor([[*request.text, *new]])).logits
            new.append(int(logits[0, -1].argmax()))
        return new


@pytest.fixture(scope="module")
def work() -> Any:
    """What both runners shall do behind every third token of the target's own answers."""
    target = tiny_model("llama")
    drafter = ModelDrafter(noisy_copy(target, 0.05))
    decoder = Decoder(target, drafter, Exact(), 3, tokenizer=TOKENIZER)
    plain = [answer.ids for answer in decoder.generate(PROMPTS, max_new_tokens=60)]
    eos = plain[0][40]
    stop = TOKENIZER.decode(plain[1][30:33])
    request = {"max_new_tokens": 60, "eos_ids": (eos,), "stops": (stop,)}
    answers = [answer.ids for answer in decoder.generate(PROMPTS, **request)]
    assert len({len(answer) for answer in answers}) >= 2
    rollouts = [
        Rollout(problem, PROMPTS[problem], answer, position, token, answer)
        for problem, answer in enumerate(answers)
        for position in range(0, len(answer) - 1, 3)
        for token in (answer[position], 70, eos)
    ]
    engine = Engine(target)
    return SimpleNamespace(decoder=decoder, engine=engine, request=request, rollouts=rollouts)


def runners(work: Any) -> tuple[RolloutRunner, EngineRunner]:
    prefixes = PrefixCache(work.decoder, 8)
    decoding = RolloutRunner(work.decoder, prefixes, 8, Cost(), **work.request)
    return decoding, EngineRunner(work.engine, TOKENIZER, Cost(), **work.request)


@pytest.mark.parametrize("portion", [1, 7, 64])
def test_whole_rollouts_are_the_same(work, monkeypatch, portion):
    monkeypatch.setattr(vllm, "PORTION", portion)
    decoding, served = runners(work)
    rollouts = work.rollouts if portion == 64 else work.rollouts[::5]
    expected = ends(decoding, rollouts)
    assert ends(served, rollouts) == expected
    if portion == 64:
        assert {ended.finish for ended in expected} == {"eos", "stop", "length"}
    assert served.cost.rollouts == decoding.cost.rollouts
    assert served.cost.rollout_tokens == decoding.cost.rollout_tokens


def test_a_rollout_that_is_decided_early_ends_as_the_decoders_does(work):
    expected, served = (ends(runner, work.rollouts, 6) for runner in runners(work))
    finishes = [ended.finish for ended in served]
    assert finishes == [ended.finish for ended in expected]
    assert {REJOINED} < {*finishes}
    for ours, theirs in zip(served, expected):  # a decision may come some tokens later
        short = min(len(ours.ids), len(theirs.ids))
        assert ours.ids[:short] == theirs.ids[:short]


def test_portions_of_a_text_draw_with_other_seeds_and_never_leave_the_limit(work, monkeypatch):
    monkeypatch.setattr(vllm, "PORTION", 20)
    work.engine.requests.clear()
    ends(runners(work)[1], work.rollouts[:1])
    requests = work.engine.requests
    assert len({request.seed for request in requests}) == len(requests) > 1
    longest = len(work.rollouts[0].prompt) + 60
    assert all(len(request.text) + request.num <= longest for request in requests)


def test_an_engine_needs_one_worker():
    params: Any = SimpleNamespace(
        engine=SimpleNamespace(rollouts="vllm"), decoding=SimpleNamespace(workers=2)
    )
    with pytest.raises(UserError, match="decoding.workers to 1"):
        engine_of(params)


@pytest.mark.parametrize(
    "source, sentence",
    [
        (ModelSource("some/model"), r"the extra `vllm`.*engine.rollouts to own"),
        (ModelSource("some/model", gguf_file="m.gguf"), "is a GGUF file"),
    ],
)
def test_a_vllm_that_cannot_be_started_is_one_sentence(monkeypatch, source, sentence):
    stand_in = SimpleNamespace(__version__="0.32.0") if source.gguf_file else None
    monkeypatch.setitem(sys.modules, "vllm", stand_in)
    with pytest.raises(UserError, match=sentence):
        VllmEngine(source, {})
