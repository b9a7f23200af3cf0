"""Where answers end inside accepted blocks, what is counted, and rules that keep everything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import AddedToken

from gistgate.core.block import Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts
from tests.core.continuing import continued
from tests.core.watching import HalfGate, Markers, Watch
from tests.rules.extremes import LOOSE, LOSSLESS, OPEN, combinations
from tests.tiny import byte_tokenizer

BATCH = prompts(5, 17, 2)
NUM = 24
FEW = 24
"""Ids of a vocabulary in which prompt lookup finds something at every turn."""
TEXTS = {row: greedy("llama", tuple(prompt), NUM) for row, prompt in enumerate(BATCH)}


def check_counters(answer: Generation, block: int) -> None:
    """Every counter can be read off the text and the reasons of its tokens."""
    counts = answer.statistics
    assert counts.tokens == len(answer.ids) == len(answer.reasons)
    found = [answer.reasons.count(why) for why in (Reason.STRICT, Reason.LOOSE, Reason.CARRIED, Reason.OWN)]
    assert found == [counts.strict, counts.loose, counts.carried, counts.own]
    assert sum(counts.histogram.values()) == counts.forwards
    assert sum(length * number for length, number in counts.histogram.items()) == counts.tokens - counts.own
    assert set(counts.histogram) <= set(range(block + 1)) and counts.own >= counts.forwards - 1
    assert counts.mean_accepted_length <= block + 1


def decoder_of(block: int, rule_id: str = "exact", draft: Any = None, **more: Any) -> Decoder:
    drafter = ModelDrafter(pair("llama")[0] if draft is None else draft)
    return Decoder(pair("llama")[0], drafter, make_rule(rule_id), block, **more)


@pytest.mark.parametrize("block", [1, 4, 7])
@pytest.mark.parametrize("perfect", [True, False])
def test_eos_anywhere_in_a_block_ends_the_text_there(perfect: bool, block: int):
    decoder = decoder_of(block, draft=None if perfect else pair("llama")[1])
    for place in range(0, NUM, 3):
        eos = TEXTS[0][place]
        for row, answer in enumerate(decoder.generate(BATCH, max_new_tokens=NUM, eos_ids={eos})):
            text = TEXTS[row]
            end = text.index(eos) + 1 if eos in text else NUM
            assert answer.ids == text[:end] and answer.finish == ("eos" if eos in text else "length")
            check_counters(answer, block)


@pytest.mark.parametrize("block", [1, 4, 7])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_stop_string_anywhere_in_a_block_ends_the_text_there(size: int, block: int):
    tokenizer = byte_tokenizer(bos=False)
    decoder = decoder_of(block, tokenizer=tokenizer)
    for place in range(0, NUM - size, 3):
        stop = tokenizer.decode(TEXTS[0][place : place + size]).strip("\ufffd") or "@"
        for row, answer in enumerate(decoder.generate(BATCH, max_new_tokens=NUM, stops=["never", stop])):
            text = TEXTS[row]
            ends = [num for num in range(1, NUM + 1) if stop in tokenizer.decode(text[:num])]
            assert answer.ids == text[: ends[0] if ends else NUM]
            assert answer.finish == ("stop" if ends else "length")
            check_counters(answer, block)


def test_an_empty_stop_string_stops_nothing():
    decoder = decoder_of(4, tokenizer=byte_tokenizer(bos=False))
    assert decoder.generate(BATCH[:1], max_new_tokens=NUM, stops=["", "never"])[0].ids == TEXTS[0]


@pytest.mark.parametrize("rule_id, greedy, with_q", combinations())
def test_counters_agree_with_the_text(rule_id: str, greedy: bool, with_q: bool):
    rule, (target, draft) = make_rule(rule_id, **LOOSE.get(rule_id, {})), pair("llama", FEW, noise=0.1)
    drafter = ModelDrafter(draft) if with_q else PromptLookup()
    decoder = Decoder(target, drafter, rule, 5, gate=HalfGate(), tokenizer=Markers())
    sampling, batch = Sampling() if greedy else Sampling(1.0), prompts(5, 17, 2, 10, 5, vocabulary=FEW)
    answers = decoder.generate(batch, max_new_tokens=NUM, sampling=sampling, eos_ids={23})
    for answer in answers:
        check_counters(answer, 5)
    assert any(Reason.LOOSE in answer.reasons for answer in answers) == (rule_id not in LOSSLESS), "see LOOSE"
    assert rule_id not in LOSSLESS or all(Reason.CARRIED not in answer.reasons for answer in answers)


def test_seconds_and_forwards_are_those_that_were_spent():
    target, draft = pair("llama")
    calls = {"target": 0, "draft": 0}

    def count(name: str) -> Any:
        def hook(*_: Any) -> None:
            calls[name] += 1

        return hook

    hooks = [model.register_forward_hook(count(name)) for name, model in (("target", target), ("draft", draft))]
    try:
        answers = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4).generate(BATCH, max_new_tokens=NUM)
    finally:
        for hook in hooks:
            hook.remove()
    assert calls["target"] == max(answer.statistics.forwards for answer in answers)
    assert calls["draft"] == max(answer.statistics.draft_forwards for answer in answers)
    for answer in answers:
        seconds = answer.statistics.seconds
        assert set(seconds) == {"draft", "verify", "accept", "total"}
        assert seconds["total"] >= seconds["draft"] + seconds["verify"] + seconds["accept"] > 0


@pytest.mark.parametrize(
    "rule_id, greedy",
    # whether a second reading likes the draft is up to the model
    [(name, greedy) for name, greedy, with_q in combinations() if with_q and name in OPEN.keys() - {"reflective"}],
)
def test_an_open_rule_keeps_every_draft_token(rule_id: str, greedy: bool):
    """The target only adds bonus tokens, and the draft's text is its own."""

    class Always(HalfGate):
        def __call__(self, block: Any) -> torch.Tensor:
            return torch.full(block.draft_ids.shape, 0.5)

    target, draft = pair("llama", noise=0.3)
    rule = make_rule(rule_id, **OPEN[rule_id])
    decoder = Decoder(target, ModelDrafter(draft), rule, 4, gate=Always())
    for answer in continued(decoder, BATCH, NUM, sampling=Sampling(0.0 if greedy else 1.0)):
        assert answer.statistics.histogram == {4: 4, 3: 1}  # 4 * (4 + 1) + (3 + 1) = 24
        assert answer.statistics.own == 5 and answer.statistics.loose > 0
        check_counters(answer, 4)


def test_added_tokens_of_the_tokenizer_are_never_loose():
    """Chat, think and tool markers, whoever builds the decoder."""
    target, draft = pair("llama", noise=0.3)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("<|im_end|>", special=True)])
    decoder = Decoder(target, ModelDrafter(draft), make_rule("random", rate=1.0), 6, tokenizer=tokenizer)
    assert set(decoder.parts.protocol_ids) == {0, 1, 2, 259, 260}


def test_eos_and_markers_are_never_loose():
    """The draft ends its text where the target goes on; the free rule must not follow."""
    target, draft = pair("llama", noise=0.3)
    watch = Watch()
    decoder = Decoder(target, ModelDrafter(draft), make_rule("random", rate=1.0), 6, protocol_ids=[7], observer=watch)
    eos = set(range(100, 259))
    answers = decoder.generate(BATCH, max_new_tokens=NUM, eos_ids=eos)
    assert all(block.protocol.tolist() == [*sorted(eos), 7] for block, _, _ in watch.seen)
    refused = 0
    for block, outcome, _ in watch.seen:
        kept = torch.arange(block.draft_ids.shape[1]) < outcome.length[:, None]
        steering = (block.draft_ids >= 100) | (block.draft_ids == 7)
        assert not (kept & steering & ~block.strict).any()
        refused += int((~kept & steering & block.valid).sum())
    assert refused > 0 and all(answer.statistics.tokens == len(answer.ids) for answer in answers)


def test_the_first_token_of_an_answer_is_the_target_s():
    """Every other token of the draft stays."""
    target, draft = pair("llama", noise=0.3)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("random", rate=1.0), 4)
    answers = decoder.generate(BATCH, max_new_tokens=NUM)
    assert [answer.ids[0] for answer in answers] == [TEXTS[row][0] for row in range(len(BATCH))]
    corrected = [answer for answer in answers if answer.reasons[0] == Reason.OWN]
    assert corrected, "the draft must have begun at least one answer in another way"
    assert all(Reason.OWN not in answer.reasons[1:5] for answer in corrected)


def test_a_text_that_goes_on_has_no_first_token():
    target, draft = pair("llama", noise=0.3)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("random", rate=1.0), 4)
    assert any(answer.reasons[0] == Reason.LOOSE for answer in continued(decoder, BATCH, NUM))


def test_a_gate_is_asked_only_by_a_rule_that_needs_it():
    class Broken:
        layers = frozenset({"post"})
        wants_q = False

        def __call__(self, block: Any) -> torch.Tensor:
            raise AssertionError("not to be called")

    decoder = Decoder(pair("llama")[0], ModelDrafter(pair("llama")[1]), make_rule("exact"), 4, gate=Broken())
    assert decoder.parts.layers == frozenset()
    assert decoder.generate(BATCH[:1], max_new_tokens=NUM)[0].ids == TEXTS[0]
