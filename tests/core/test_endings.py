"""Where answers end, token by token and inside accepted blocks, and what is counted of them."""

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from gistgate.core.block import Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import (
    Generation,
    Row,
    Statistics,
    Stop,
    eos_ids,
    spend,
    text_behind,
    total,
)
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts
from tests.core.watching import HalfGate, Markers, Watch, continued
from tests.rules.extremes import LOOSE, LOSSLESS, combinations
from tests.tiny import byte_tokenizer


def test_sums_and_the_way_through_json():
    a = Statistics(3, 4, 1, 2, 3, 9, {4: 1, 1: 2}, {"draft": 1.0, "total": 3.0})
    b = Statistics(1, 2, 0, 0, 1, 3, {1: 1, 2: 1}, {"draft": 2.0}, {"spent": 0.5})
    both = a + b
    assert (both.tokens, both.forwards, both.histogram) == (
        a.tokens + b.tokens,
        4,
        {4: 1, 1: 3, 2: 1},
    )
    assert (both.seconds, both.extra) == ({"draft": 3.0, "total": 3.0}, {"spent": 0.5})
    assert Statistics.from_dict(json.loads(json.dumps(both.as_dict()))) == both
    untimed = both.as_dict(timed=False)
    assert "seconds" not in untimed and Statistics.from_dict(untimed).tokens == both.tokens
    assert a + Statistics() == Statistics() + a == total([a]) == a


def test_rates():
    assert (Statistics().mean_accepted_length, Statistics().loose_per_100) == (0.0, 0.0)
    sums = Statistics(forwards=4, strict=6, loose=3, carried=2, own=4)
    assert (sums.tokens, sums.mean_accepted_length, sums.loose_per_100) == (15, 3.75, 20.0)
    assert total([sums, sums, Statistics()]).mean_accepted_length == 3.75
    rows = [Row(0, [1], 1), Row(1, [1], 1)]
    for seconds in (1.0, 0.5):
        spend(rows, draft=seconds)
    assert [row.statistics.seconds for row in rows] == [{"draft": 0.75}] * 2


TOKENIZER = byte_tokenizer(bos=False)
EOS = TOKENIZER.eos_token_id


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def end_of(tokens: list[int], limit: int, strings: list[str]) -> tuple[int, str | None]:
    """The slow definition: after every single token look at everything."""
    for num in range(1, len(tokens) + 1):
        text = TOKENIZER.decode(tokens[:num])
        if tokens[num - 1] == EOS:
            return num, "eos"
        if any(string in text for string in strings):
            return num, "stop"
        if num == limit:
            return num, "length"
    return len(tokens), None


texts = st.lists(st.one_of(st.sampled_from(ids_of("abc\n")), st.just(EOS)), max_size=12)
strings = st.lists(st.text("abc\n", min_size=1, max_size=4), max_size=3)


@settings(max_examples=400, deadline=None)
@given(
    tokens=texts,
    cuts=st.lists(st.integers(1, 5), min_size=12, max_size=12),
    limit=st.integers(1, 14),
    stops=strings,
)
def test_however_the_text_arrives_it_ends_at_the_same_token(
    tokens: list[int], cuts: list[int], limit: int, stops: list[str]
):
    stop = Stop(limit, {EOS}, stops, TOKENIZER)
    answer: list[int] = []
    finish = None
    while finish is None and len(answer) < len(tokens):
        new = tokens[len(answer) :][: cuts[len(answer)]]
        num, finish = stop.cut(answer, new)
        assert num <= len(new) and (finish is not None or num == len(new))
        answer += new[:num]
    assert (len(answer), finish) == end_of(tokens, limit, stops)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("a🙂é\n", max_size=6),
    stop=st.text("a🙂é\n", min_size=1, max_size=2),
    step=st.integers(1, 5),
)
@example(text="a🙂", stop="🙂", step=1)
def test_a_stop_of_several_bytes_per_character_is_found(text: str, stop: str, step: int):
    tokens = ids_of(text)
    answer = []
    finish = None
    while finish is None and len(answer) < len(tokens):
        new = tokens[len(answer) :][:step]
        num, finish = Stop(99, (), [stop], TOKENIZER).cut(answer, new)
        answer += new[:num]
    assert (len(answer), finish) == end_of(tokens, 99, [stop])


def test_a_stop_may_be_a_special_token():
    stop = Stop(99, (), ["Question:", TOKENIZER.eos_token], TOKENIZER)
    assert stop.cut([], [*ids_of("a"), EOS, 7]) == (2, "stop")


def test_the_first_space_of_an_answer_counts() -> None:
    """Llama's tokenizers leave away the first space of what they decode."""
    names = ["a", "\u2581", "\u2581b", "<0xC3>", "<0xA9>"]
    raw = Tokenizer(
        models.BPE(
            vocab={name: index for index, name in enumerate(names)}, merges=[], byte_fallback=True
        )
    )
    parts = (
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    )
    raw.decoder = decoders.Sequence(list(parts))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    assert (
        tokenizer.decode([2, 3, 4]) == "b\u00e9"
        and text_behind(tokenizer, [0], [2, 3, 4]) == " b\u00e9"
    )
    assert text_behind(tokenizer, [0, 3], [4, 0]) == tokenizer.decode(
        [4, 0]
    )  # the prompt ends in half a character
    stop = Stop(9, (), [" b"], tokenizer)
    assert stop.cut([], [2, 0], [0]) == (1, "stop") and stop.cut([0], [2, 0], [0]) == (1, "stop")
    assert stop.cut([], [0, 0], [0, 2]) == (2, None)  # the prompt's own text ends nothing


@pytest.mark.parametrize(
    ("listed", "own", "ids"),
    [
        ([7, 3], 5, [3, 5, 7]),
        (4, 4, [4]),
        (0, None, [0]),
        (None, 2, [2]),
        (None, None, []),
        ("no settings", 6, [6]),
    ],
)
def test_an_answer_ends_at_the_ends_of_tokenizer_and_model(
    listed: Any, own: int | None, ids: list[int]
):
    config = None if listed == "no settings" else SimpleNamespace(eos_token_id=listed)
    assert (
        eos_ids(SimpleNamespace(generation_config=config), SimpleNamespace(eos_token_id=own)) == ids
    )


BATCH = prompts(5, 17, 2)
NUM = 24
FEW = 24
"""Ids of a vocabulary in which prompt lookup finds something at every turn."""
TEXTS = {row: greedy("llama", tuple(prompt), NUM) for row, prompt in enumerate(BATCH)}


def check_counters(answer: Generation, block: int) -> None:
    """Every counter can be read off the text and the reasons of its tokens."""
    counts = answer.statistics
    assert counts.tokens == len(answer.ids) == len(answer.reasons)
    counted = [
        answer.reasons.count(why)
        for why in (Reason.STRICT, Reason.LOOSE, Reason.CARRIED, Reason.OWN)
    ]
    assert counted == [counts.strict, counts.loose, counts.carried, counts.own]
    assert sum(counts.histogram.values()) == counts.forwards
    assert (
        sum(length * number for length, number in counts.histogram.items())
        == counts.tokens - counts.own
    )
    assert set(counts.histogram) <= set(range(block + 1)) and counts.own >= counts.forwards - 1
    assert counts.mean_accepted_length <= block + 1


def decoder_of(block: int, rule_id: str = "exact", draft: Any = None, **more: Any) -> Decoder:
    drafter = ModelDrafter(pair("llama")[0] if draft is None else draft)
    return Decoder(pair("llama")[0], drafter, make_rule(rule_id), block, **more)


@pytest.mark.parametrize("block", [1, 4, 7])
@pytest.mark.parametrize("kind", ["perfect draft", "draft", "stop"])
def test_an_end_anywhere_in_a_block_ends_the_text_there(kind: str, block: int):
    """An end token, or a string of one to three tokens."""
    tokenizer = byte_tokenizer(bos=False)
    draft = pair("llama")[1] if kind == "draft" else None
    decoder = decoder_of(block, draft=draft, tokenizer=tokenizer)
    for place in range(0, NUM - 3, 3):
        eos = TEXTS[0][place]
        request = {}
        stop = tokenizer.decode(TEXTS[0][place : place + 1 + place % 3]).strip("\ufffd") or "@"
        request = {"stops": ["never", "", stop]} if kind == "stop" else {"eos_ids": {eos}}
        for row, answer in enumerate(decoder.generate(BATCH, max_new_tokens=NUM, **request)):
            text = TEXTS[row]
            ended = [
                stop in tokenizer.decode(text[: num + 1]) if kind == "stop" else text[num] == eos
                for num in range(NUM)
            ]
            assert answer.ids == text[: ended.index(True) + 1 if any(ended) else NUM]
            assert answer.finish == (
                ("stop" if kind == "stop" else "eos") if any(ended) else "length"
            )
            check_counters(answer, block)


@pytest.mark.parametrize("rule_id, greedy, with_q", combinations())
def test_counters_agree_with_the_text(rule_id: str, greedy: bool, with_q: bool):
    rule = make_rule(rule_id, **LOOSE.get(rule_id, {}))
    target, draft = pair("llama", FEW, noise=0.1)
    drafter = ModelDrafter(draft) if with_q else PromptLookup()
    decoder = Decoder(target, drafter, rule, 5, gate=HalfGate(), tokenizer=Markers())
    sampling = Sampling() if greedy else Sampling(1.0)
    batch = prompts(5, 17, 2, 10, 5, vocabulary=FEW)
    answers = decoder.generate(batch, max_new_tokens=NUM, sampling=sampling, eos_ids={23})
    for answer in answers:
        check_counters(answer, 5)
    assert any(Reason.LOOSE in answer.reasons for answer in answers) == (rule_id not in LOSSLESS), (
        "see LOOSE"
    )
    assert rule_id not in LOSSLESS or all(
        Reason.CARRIED not in answer.reasons for answer in answers
    )


def test_seconds_and_forwards_are_those_that_were_spent():
    models = dict(zip(("target", "draft"), pair("llama"), strict=True))
    calls = Counter[str]()
    hooks = [
        model.register_forward_hook(lambda *_, name=name: calls.update([name]))
        for name, model in models.items()
    ]
    answers = decoder_of(4, draft=models["draft"]).generate(BATCH, max_new_tokens=NUM)
    for hook in hooks:
        hook.remove()
    assert calls["target"] == max(answer.statistics.forwards for answer in answers)
    assert calls["draft"] == max(answer.statistics.draft_forwards for answer in answers)
    for answer in answers:
        seconds = answer.statistics.seconds
        assert set(seconds) == {"draft", "verify", "accept", "total"}
        assert seconds["total"] >= seconds["draft"] + seconds["verify"] + seconds["accept"] > 0


def test_added_tokens_of_the_tokenizer_are_never_loose():
    """Chat, think and tool markers, whoever builds the decoder."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("<|im_end|>", special=True)])
    assert set(decoder_of(6, tokenizer=tokenizer).parts.protocol_ids) == {0, 1, 2, 259, 260}


def test_eos_and_markers_are_never_loose():
    """The draft ends its text where the target goes on; the free rule must not follow."""
    target, draft = pair("llama", noise=0.3)
    watch = Watch()
    decoder = Decoder(
        target,
        ModelDrafter(draft),
        make_rule("random", rate=1.0),
        6,
        observer=watch,
    ).having(protocol_ids=(7,))
    eos = set(range(100, 259))
    answers = decoder.generate(BATCH, max_new_tokens=NUM, eos_ids=eos)
    assert all(block.protocol.tolist() == [*sorted(eos), 7] for block, _, _ in watch.seen)
    refused = 0
    for block, outcome, _ in watch.seen:
        stays = torch.arange(block.draft_ids.shape[1]) < outcome.length[:, None]
        steering = (block.draft_ids >= 100) | (block.draft_ids == 7)
        assert not (stays & steering & ~block.strict).any()
        refused += int((~stays & steering & block.valid).sum())
    assert refused > 0 and all(answer.statistics.tokens == len(answer.ids) for answer in answers)


def test_the_first_token_of_an_answer_is_the_target_s_and_a_text_that_goes_on_has_none():
    """Every other token of the draft stays."""
    target, draft = pair("llama", noise=0.3)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("random", rate=1.0), 4)
    answers = decoder.generate(BATCH, max_new_tokens=NUM)
    assert [answer.ids[0] for answer in answers] == [TEXTS[row][0] for row in range(len(BATCH))]
    corrected = [answer for answer in answers if answer.reasons[0] == Reason.OWN]
    assert corrected, "the draft must have begun at least one answer in another way"
    assert all(Reason.OWN not in answer.reasons[1:5] for answer in corrected)
    assert any(answer.reasons[0] == Reason.LOOSE for answer in continued(decoder, BATCH, NUM))
