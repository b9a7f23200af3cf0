"""What is refused with one sentence before anything runs, and what a request brings along for some rules."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from gistgate.core.batches import decode_all
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.rules.thresholds import between_markers
from tests.architectures import CONTEXT, pair, prompts
from tests.core.watching import HalfGate, Watch
from tests.tiny import byte_tokenizer

BATCH = prompts(5, 9, 2)
BEGIN, END = 1, 2


class Marked:
    """A tokenizer with think markers."""

    added_tokens_decoder: ClassVar[dict[int, str]] = {}

    def get_vocab(self) -> dict[str, int]:
        return {"<think>": BEGIN, "</think>": END}


def decoder(rule_id: str = "trt-relaxed", **settings: object) -> Decoder:
    target, draft = pair("llama")
    watch, tokenizer = settings.pop("observer", None), settings.pop("tokenizer", Marked())
    rule = make_rule(rule_id, **settings)
    return Decoder(target, ModelDrafter(draft), rule, 4, gate=HalfGate(), tokenizer=tokenizer, observer=watch)


def strict(**more: Any) -> Decoder:
    target, draft = pair("llama")
    parts = {"drafter": ModelDrafter(draft), "rule": make_rule("exact"), "block": 4, **more}
    return Decoder(target, **parts)


@dataclass(frozen=True)
class Ratio(Exact):
    """Needs to know how sure the draft was."""

    id = "ratio"
    needs = frozenset({"q"})

    def accept(self, block: Any, state: Any) -> torch.Tensor:
        assert block.q is not None and torch.allclose(block.q.sum(-1), torch.ones(1))
        return super().accept(block, state)


def test_parts_that_cannot_work_together_are_refused():
    with pytest.raises(UserError, match=r"block is -1.*Use 0 for plain decoding"):
        strict(block=-1)
    with pytest.raises(UserError, match=r"'autojudge' needs a gate. Pass gate="):
        strict(rule=make_rule("autojudge"))
    recurrent = SimpleNamespace(_is_stateful=True, config=pair("llama")[0].config)
    with pytest.raises(UserError, match="recurrent state that cannot be rolled back"):
        Decoder(recurrent, None, make_rule("exact"))


def test_a_rule_that_needs_probabilities_of_a_drafter_without():
    with pytest.raises(UserError, match=r"'ratio' needs draft probabilities.*Use the drafter 'model'"):
        strict(rule=Ratio(), drafter=PromptLookup())
    answer = strict(rule=Ratio()).generate(prompts(5), max_new_tokens=9)[0]
    assert answer.ids == strict().generate(prompts(5), max_new_tokens=9)[0].ids


@pytest.mark.parametrize("wants_q", [True, False])
def test_probabilities_are_there_when_somebody_asks(wants_q: bool):
    watch = Watch(wants_q=wants_q)
    strict(observer=watch).generate(prompts(5, 9), max_new_tokens=9)
    assert all((block.q is not None) == wants_q for block, _, _ in watch.seen if block.draft_ids.shape[1])


def test_requests_that_cannot_be_decoded_are_refused():
    with pytest.raises(UserError, match="Prompt 1 is empty"):
        strict().generate([[1], []], max_new_tokens=4)
    with pytest.raises(UserError, match="tokenizer"):
        strict().generate(prompts(5), max_new_tokens=4, stops=["\n"])


@pytest.mark.parametrize("length, num, fits", [(CONTEXT - 4, 4, True), (CONTEXT - 3, 4, False), (1, CONTEXT, False)])
def test_a_prompt_that_leaves_no_room(length: int, num: int, fits: bool):
    batch = prompts(3, length)
    if fits:
        assert strict().generate(batch, max_new_tokens=num)
    else:
        with pytest.raises(
            UserError, match=rf"{max(3, length)} tokens .* up to {num} exceed the context .*, {CONTEXT}"
        ):
            strict().generate(batch, max_new_tokens=num)


@pytest.mark.parametrize("layer", ["last", "layer:9", "layer:", "layer:-1"])
def test_a_hidden_state_that_does_not_exist(layer: str):
    with pytest.raises(UserError, match=rf"no hidden state '{layer}'. Use 'post', 'pre' or 'layer:0' to 'layer:1'"):
        strict(observer=Watch([layer])).generate(prompts(5), max_new_tokens=4)


def test_a_draft_that_lacks_tokens_of_the_tokenizer_is_refused():
    """Only padding beyond the tokenizer may be ignored; the target's own tokens are never cut off."""
    target, short = pair("llama")[0], ModelDrafter(pair("llama", 200)[1])
    with pytest.raises(UserError, match="knows 200 token ids and the target's tokenizer has 210.*'lookup'"):
        Decoder(target, short, make_rule("exact"), vocabulary=210)
    with pytest.raises(UserError, match="knows 200 token ids and the target's tokenizer has 259"):
        Decoder(target, short, make_rule("exact"), tokenizer=byte_tokenizer())
    assert Decoder(target, short, make_rule("exact"), vocabulary=190).vocabulary == 190


def test_a_shared_vocabulary_counts_the_smaller():
    assert strict().vocabulary == 259 and strict(vocabulary=200).vocabulary == 200
    small = Decoder(pair("llama")[0], ModelDrafter(pair("llama", 3, 0.5)[1]), make_rule("exact"), vocabulary=3)
    assert small.vocabulary == 3


def test_a_smaller_draft_is_refused_where_nobody_says_what_is_padding():
    """The target may write the ids that the draft lacks, and its text must not change."""
    with pytest.raises(UserError, match="draft model knows 3 token ids and the target 259.*Pass tokenizer="):
        Decoder(pair("llama")[0], ModelDrafter(pair("llama", 3, 0.5)[1]), make_rule("exact"))


def test_blocks_know_where_thinking_ends():
    """The texts before every block, and the end markers inside it, say what is thinking."""
    watch = Watch()
    thoughtful = [[BEGIN, *prompt] for prompt in BATCH[:2]] + [[BEGIN, 9, END, *BATCH[2]]]
    decoder(observer=watch).generate(thoughtful, max_new_tokens=20)
    for block, _, texts in watch.seen:
        for row, text in enumerate(texts):
            for place in range(block.draft_ids.shape[1]):
                # a begin marker inside the block counts from the next one on
                ended = END in block.draft_ids[row, :place].tolist()
                assert block.thinking[row, place] == (between_markers(text, False, (BEGIN, END)) and not ended)
    assert {bool(flag) for block, _, _ in watch.seen for flag in block.thinking.flatten()} == {True, False}


def test_outside_the_markers_the_rule_is_strict():
    strict = decoder("exact").generate(BATCH, max_new_tokens=20)
    outside = decoder(delta=1.0, k=1000).generate(BATCH, max_new_tokens=20)
    inside = decoder(delta=1.0, k=1000).generate([[BEGIN, *prompt] for prompt in BATCH], max_new_tokens=20)
    assert [answer.ids for answer in outside] == [answer.ids for answer in strict]
    assert sum(answer.statistics.loose for answer in inside) > 0


def test_think_markers_are_never_accepted_loosely():
    assert {BEGIN, END} <= set(decoder().parts.protocol_ids)


def test_unknown_think_markers_are_refused():
    class Plain:
        def get_vocab(self) -> dict[str, int]:
            return {"<think>": 1}

    with pytest.raises(UserError, match="does not know the think marker '</think>'.*scope: all"):
        decoder(tokenizer=Plain())
    with pytest.raises(UserError, match="Pass tokenizer="):
        decoder(tokenizer=None)
    assert decoder(tokenizer=None, scope="all").parts.protocol_ids == ()


@pytest.mark.parametrize("many", [BATCH, sorted(BATCH, key=len)])
def test_costs_reach_the_rows_they_belong_to(many: list[list[int]]):
    """In slots the longest prompts are decoded first, and the costs go with them."""
    watch, slotted, silent, costs = Watch(), Watch(), Watch(), [0.25, 0.5, 1.0]
    decoder("wisv", observer=watch).generate(many, max_new_tokens=12, costs=costs)
    decode_all(decoder("wisv", observer=slotted), many, batch_size=2, max_new_tokens=12, costs=costs)
    for block, _, texts in [*watch.seen, *slotted.seen]:
        assert block.cost.tolist() == [
            cost for text in texts for cost, prompt in zip(costs, many, strict=True) if text[: len(prompt)] == prompt
        ]
    decoder("wisv", observer=silent).generate(many, max_new_tokens=12)
    assert all(block.cost is None for block, _, _ in silent.seen)


def test_a_cost_for_every_row_or_for_none():
    with pytest.raises(UserError, match="1 costs for 3 prompts"):
        decoder("wisv").generate(BATCH, max_new_tokens=4, costs=[0.5])
    with pytest.raises(UserError, match="1 costs for 3 prompts"):
        decode_all(decoder("wisv"), BATCH, batch_size=2, max_new_tokens=4, costs=[0.5])


@pytest.mark.parametrize("cost", [20.0, -0.1, float("nan"), float("inf")])
def test_a_cost_that_is_no_share_is_refused(cost: float):
    """Milliseconds in its place would let every token through."""
    with pytest.raises(UserError, match="costs are shares from 0 to 1"):
        decoder("wisv").generate(BATCH, max_new_tokens=4, costs=[0.5, cost, 0.5])


def test_seeds_that_are_too_few_or_too_large_are_refused():
    with pytest.raises(UserError, match="2 seeds for 3 prompts"):
        decoder("exact").generate(BATCH, max_new_tokens=4, seeds=[1, 2])
    with pytest.raises(UserError, match="does not fit into 64 bits"):
        decoder("exact").generate(BATCH[:1], max_new_tokens=4, seeds=[2**64])


@pytest.mark.parametrize("temperature", [1e-40, float("inf"), float("nan"), -1.0])
def test_a_temperature_at_which_nothing_can_be_drawn_is_refused(temperature: float):
    with pytest.raises(UserError, match="temperature is 0 or from 1e-06 on"):
        Sampling(temperature)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_a_token_that_no_embedding_has_is_named(token: int):
    with pytest.raises(UserError, match=f"Prompt 1 holds the token id {token}"):
        decoder("exact").generate([[5], [7, token]], max_new_tokens=4)


def test_counters_of_a_rule_reach_the_statistics_of_each_row():
    """Rows leave at different times; each takes its own count along, whatever the company."""
    together = decoder("regret-budget", budget=3.0).generate(BATCH, max_new_tokens=12)
    for prompt, answer in zip(BATCH, together, strict=True):
        alone = decoder("regret-budget", budget=3.0).generate([prompt], max_new_tokens=12)[0]
        assert answer.ids == alone.ids
        assert answer.statistics.extra["spent"] == pytest.approx(alone.statistics.extra["spent"], abs=1e-3)
        assert answer.statistics.extra["spent"] <= 3.0
    assert any(answer.statistics.extra["spent"] > 0 for answer in together)


@pytest.mark.parametrize(
    "rule_id, temperature, sentence",
    [("sense", 0.7, "'sense' is not defined for temperature 0.7. Use 'fly' there."),
     ("lenience", 0.0, "'lenience' is not defined for greedy decoding. Use 'prob-ratio' there.")],
)  # fmt: skip
def test_undefined_temperatures_are_refused_before_anything_runs(rule_id: str, temperature: float, sentence: str):
    with pytest.raises(UserError, match=sentence):
        decoder(rule_id).generate(BATCH, max_new_tokens=4, sampling=Sampling(temperature))


@pytest.mark.parametrize("rule_id", ["kl-judge", "fsd", "ensemble"])
def test_a_rule_that_needs_probabilities_refuses_retrieval(rule_id: str):
    with pytest.raises(UserError, match="needs draft probabilities.*'prob-ratio'"):
        Decoder(pair("llama")[0], PromptLookup(), make_rule(rule_id), 4)


def test_logits_of_the_second_reading_are_processed_like_the_first():
    class Writes(Marked):
        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [3]

    watch = Watch()
    reflective = decoder("reflective", tokenizer=Writes(), observer=watch)
    reflective.generate(BATCH[:1], max_new_tokens=6, sampling=Sampling(0.7, top_k=5))
    for block, _, _ in watch.seen:
        if block.draft_ids.shape[1]:
            assert ((block.second > -torch.inf).sum(-1) == 5).all()


def test_a_gate_that_reads_draft_probabilities_gets_them_or_refuses():
    class Reads(HalfGate):
        wants_q = True

        def __call__(self, block):
            assert not block.draft_ids.shape[1] or block.q is not None
            return super().__call__(block)

    target, draft = pair("llama")
    decoder = Decoder(target, ModelDrafter(draft), make_rule("autojudge"), 4, gate=Reads())
    assert decoder.generate(BATCH, max_new_tokens=10)[0].ids
    with pytest.raises(UserError, match="The gate reads draft probabilities"):
        Decoder(target, PromptLookup(), make_rule("autojudge"), 4, gate=Reads())
    assert Decoder(target, PromptLookup(), make_rule("exact"), 4, gate=Reads())
