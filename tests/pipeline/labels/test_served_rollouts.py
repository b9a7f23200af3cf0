"""Rollouts of an engine that writes portions are those of the decoder."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from pipeline.labels import vllm as served_rollouts
from pipeline.labels.labelling import engine_of
from pipeline.labels.rollouts import ANSWERED, REJOINED, Cost, PrefixCache, Rollout, RolloutRunner
from pipeline.labels.vllm import EngineRunner, TextToExtend, VllmEngine, VllmStates, served_features
from pipeline.pair.pair import ModelSource
from tests.architectures import noisy_copy, tiny_model
from tests.pipeline.labels.ends import ends
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()


class Engine:
    """Goes on greedily with a model, a text at a time, as vLLM does with many."""

    def __init__(self, model: Any) -> None:
        self.model, self.asked = model, list[TextToExtend]()

    @torch.no_grad()
    def __call__(
        self, asked: list[TextToExtend], sampling: Sampling, eos_ids: list[int]
    ) -> list[list[int]]:
        assert sampling.greedy
        self.asked += [TextToExtend(list(one.text), one.num, one.seed) for one in asked]
        portions: list[list[int]] = [[] for _ in asked]
        for (text, num, _), new in zip(asked, portions, strict=True):
            while len(new) < num and not (new and new[-1] in eos_ids):
                new.append(int(self.model(torch.tensor([[*text, *new]])).logits[0, -1].argmax()))
        return portions


@pytest.fixture(scope="module")
def both() -> Any:
    """The target's own answers, and both runners at work behind every third of their tokens."""
    target = tiny_model("llama")
    decoder = Decoder(
        target, ModelDrafter(noisy_copy(target, 0.05)), make_rule("exact"), 3, tokenizer=TOKENIZER
    )
    prompts = [[1, 40, 50], [1, 60, 61, 62], [1, 90]]
    plain = [
        answer.ids for answer in decoder.generate(prompts, max_new_tokens=60, eos_ids=(), stops=())
    ]
    ending = plain[0][40]
    request = {
        "max_new_tokens": 60,
        "eos_ids": (ending,),
        "stops": (TOKENIZER.decode(plain[1][30:33]),),
    }
    own = [answer.ids for answer in decoder.generate(prompts, **request)]
    assert len({len(answer) for answer in own}) >= 2
    rollouts = [
        Rollout(problem, prompts[problem], answer, position, token, answer)
        for problem, answer in enumerate(own)
        for position in range(0, len(answer) - 1, 3)
        for token in (answer[position], 70, ending)
    ]
    return SimpleNamespace(
        decoder=decoder, engine=Engine(target), request=request, rollouts=rollouts
    )


def runners(both: Any) -> tuple[RolloutRunner, EngineRunner, Cost, Cost]:
    costs, memories = (Cost(), Cost()), PrefixCache(both.decoder, 8)
    served = EngineRunner(both.engine, TOKENIZER, costs[1], **both.request)
    return RolloutRunner(both.decoder, memories, 8, costs[0], **both.request), served, *costs


@pytest.mark.parametrize("portion", [1, 7, 64])
def test_whole_rollouts_are_the_same(both, monkeypatch, portion):
    monkeypatch.setattr(served_rollouts, "PORTION", portion)
    own, served, *costs = runners(both)
    chosen = both.rollouts if portion == 64 else both.rollouts[::5]
    expected = ends(own, chosen)
    assert ends(served, chosen) == expected
    assert {ended.finish for ended in expected} == {"eos", "stop", "length"} or portion != 64
    assert (costs[0].rollouts, costs[0].rollout_tokens) == (
        costs[1].rollouts,
        costs[1].rollout_tokens,
    )


def test_a_rollout_that_is_decided_early_ends_as_the_decoders_does(both):
    own, served, *_ = runners(both)
    for rejoin, answered in ((6, None), (None, lambda _rollout, answer: len(answer) > 45)):
        expected, found = (ends(one, both.rollouts, rejoin, answered) for one in (own, served))
        assert [ended.finish for ended in found] == [ended.finish for ended in expected]
        assert {REJOINED if rejoin else ANSWERED} < {ended.finish for ended in found}
        for ours, theirs in zip(
            found, expected, strict=True
        ):  # a decision may come some tokens later
            short = min(len(ours.ids), len(theirs.ids))
            assert ours.ids[:short] == theirs.ids[:short]


def test_portions_of_a_text_draw_with_other_seeds_and_never_leave_the_limit(both, monkeypatch):
    monkeypatch.setattr(served_rollouts, "PORTION", 20)
    _, served, *_ = runners(both)
    both.engine.asked.clear()
    ends(served, both.rollouts[:1])
    asked = both.engine.asked
    assert len(asked) > 1 and len({one.seed for one in asked}) == len(asked)
    assert all(len(one.text) + one.num <= len(both.rollouts[0].prompt) + 60 for one in asked)


def test_an_engine_needs_one_worker():
    params: Any = SimpleNamespace(
        engine=SimpleNamespace(rollouts="vllm"), decoding=SimpleNamespace(workers=2)
    )
    for start in (engine_of, lambda params: served_features(params, None, [], [])):
        with pytest.raises(UserError, match="decoding.workers to 1"):
            start(params)


@pytest.mark.parametrize("key", ["engine.rollouts", "engine.states"])
def test_a_vllm_that_cannot_be_started_is_one_sentence(monkeypatch, tmp_path, key):
    def begin(source):
        return (
            VllmEngine(source, {})
            if key == "engine.rollouts"
            else VllmStates(source, [1], {}, tmp_path)
        )

    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(UserError, match=rf"the extra `vllm`.*set {key} to own"):
        begin(ModelSource("some/model"))
