"""The slider's settings, and what the page may ask."""

import pytest

from gistgate import make_rule
from gistgate.core.utils import UserError
from gistgate.demo.server import Question, knob_values
from tests.demo.playing import playground

GROUND = playground()
ASKED = {"prompt": "Tom has", "setting": 1, "max_new_tokens": 12}


@pytest.mark.parametrize("rule", [make_rule("prob", r=0.004), make_rule("autojudge", risk=0.07)])
def test_the_slider_goes_from_strict_to_loose_and_holds_the_rules_own_value(rule):
    values = knob_values(rule)
    assert getattr(rule, rule.knob) in values and len(values) == len(rule.grid) + 1
    assert values == sorted(values, reverse=rule.looser == "down")


def test_the_slider_begins_at_the_decoders_setting_and_tells_its_claim():
    settings = GROUND.settings
    assert settings[0].label == "strict"
    assert settings[GROUND.start].label == "prob, r 0.002" and settings[GROUND.start].claim.startswith("Certified")
    assert settings[GROUND.start - 1].claim == "Nothing is certified here."


def test_the_leftmost_position_decodes_strictly():
    events = list(GROUND.answer(Question("Tom has", 0, 16)))
    sides = {
        name: [t["text"] for e in events if e.get("side") == name for t in e["tokens"]] for name in ("loose", "strict")
    }
    assert sides["loose"] == sides["strict"] != [] and events[-1] == {"differences": []}


def test_the_last_event_says_where_the_answers_differ():
    *steps, last = GROUND.answer(Question("Tom has", len(GROUND.settings) - 1, 24))
    texts = {name: [t["text"] for e in steps if e["side"] == name for t in e["tokens"]] for name in ("loose", "strict")}
    assert texts["loose"] != texts["strict"] and last["differences"]
    for span in last["differences"]:
        assert texts["loose"][slice(*span["loose"])] != texts["strict"][slice(*span["strict"])]


@pytest.mark.parametrize("change, sentence", [
    ({"prompt": " "}, "prompt is empty"), ({"setting": 99}, "no such position"), ({"max_new_tokens": 0}, "1 to 4096"),
    ({"setting": "x"}, "Reload the page"),
])  # fmt: skip
def test_a_bad_question_is_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        GROUND.question({**ASKED, **change})
