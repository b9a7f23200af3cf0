"""The slider's settings, what the page may ask, and tokens that arrive round by round."""

import pytest

from gistgate import Decoder, ModelDrafter, make_rule
from gistgate.demo.page import record
from gistgate.demo.server import knob_values, stream
from gistgate.measure.trace import trace
from tests.demo.playing import demo_session
from tests.tiny import byte_tokenizer, tiny_pair

SESSION = demo_session()
DECODER = SESSION.decoder
IDS = SESSION.encode("Tom has")


@pytest.mark.parametrize("rule", [make_rule("prob", r=0.004), make_rule("autojudge", risk=0.07)])
def test_the_slider_goes_from_strict_to_loose_and_holds_the_rules_own_value(rule):
    values = knob_values(rule)
    assert getattr(rule, rule.knob) in values and len(values) == len(rule.grid) + 1
    assert values == sorted(values, reverse=rule.looser == "down")


@pytest.mark.parametrize("position", [0, len(SESSION.positions) - 1])
def test_the_leftmost_position_decodes_strictly_and_the_last_event_says_where_answers_differ(
    position,
):
    *steps, last = SESSION.answer("Tom has", position, 24)
    texts = {"loose": [], "strict": []}
    for event in steps:
        texts[event["side"]] += [token["text"] for token in event["tokens"]]
    loose = texts["loose"]
    strict = texts["strict"]
    assert (loose == strict) == (last == {"differences": []}) == (position == 0) and strict
    for span in last["differences"]:
        assert loose[slice(*span["loose"])] != strict[slice(*span["strict"])]


def test_the_steps_are_the_traced_answer():
    answer, tokens = trace(DECODER, IDS, DECODER.tokenizer, max_new_tokens=30)
    steps = list(stream(DECODER, IDS, max_new_tokens=30))
    assert [token for new, _ in steps for token in new] == tokens
    assert len(steps) == answer.statistics.forwards
    assert steps[-1][1]["target forwards"] == str(answer.statistics.forwards)


def test_nothing_behind_a_stop_is_shown():
    """The last block is cut at its stop before its tokens are sent."""
    whole = DECODER.tokenizer.decode(DECODER.generate([IDS], max_new_tokens=30)[0].ids)
    signs = (sign for sign in whole[8:] if sign.isascii() and sign.isprintable())
    stop = next(signs)
    steps = stream(DECODER, IDS, max_new_tokens=30, stops=[stop])
    text = "".join(token.text for new, _ in steps for token in new)
    assert text == whole[: whole.index(stop) + 1]


def test_the_strict_run_is_a_strict_decoders_and_recording_leaves_the_decoder_as_it_was():
    target, draft = tiny_pair(noise=0.3)
    tokenizer = byte_tokenizer()
    rule = make_rule("prob", r=0.001)
    decoder = Decoder(target, ModelDrafter(draft), rule, 4, tokenizer=tokenizer)
    strict = Decoder(target, decoder.drafter, make_rule("exact"), 4, tokenizer=tokenizer)
    answer = strict.generate([IDS], max_new_tokens=24)[0]
    run = record(decoder.strict(), IDS, tokenizer, "strict", max_new_tokens=24)
    assert "".join(run.texts) == tokenizer.decode(answer.ids).rstrip("\ufffd")
    assert run.statistics.loose == 0 and run.name == "strict"
    run = record(decoder, IDS, tokenizer, max_new_tokens=24)
    assert run.name == "prob, r 0.001" and run.statistics.loose > 0
    assert decoder.parts.observer is None
