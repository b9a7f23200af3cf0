"""Rules are made by name, and a slip of the pen is answered with the name that was meant."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.rules import PRESETS, RULES, make_rule
from gistgate.rules.entropy import Fly
from tests.blocks import SURE, block
from tests.rules.extremes import DEFAULT


def test_presets_are_settings_of_a_rule():
    assert make_rule("fly-paper") == Fly(entropy="normalised")
    assert make_rule("fly-amd") == Fly(window=5)
    assert make_rule("fly-amd", theta=0.5, window=4) == Fly(theta=0.5, window=4)
    assert all(make_rule(name).id == rule_id for name, (rule_id, _) in PRESETS.items())


@pytest.mark.parametrize(
    "rule_id, settings, sentence",
    [
        ("flyy", {}, "no rule 'flyy'. Did you mean 'fly'"),
        ("zzz", {}, "no rule 'zzz'. Known: autojudge, block, csd"),
        ("fly", {"teta": 0.3}, "no setting 'teta'. Did you mean 'theta'"),
        ("exact", {"r": 0.3}, "no setting 'r'. Known: none"),
        ("fly", {"window": -1}, "window -1"),
        ("fly", {"entropy": "full"}, "fly: 'entropy' is 'full', but it has to be 'top3' or 'normalised'"),
        ("fly", {"theta": "abc"}, "fly: 'theta' is 'abc', but it has to be a finite number"),
        ("fly", {"window": 2.5}, "fly: 'window' is 2.5, but it has to be a whole number"),
        ("fly", {"strict_window": "no"}, "'strict_window' is 'no', but it has to be true or false"),
        ("top-k", {"k": True}, "top-k: 'k' is True"),
        ("sense", {"gamma": math.nan}, "sense: 'gamma' is nan"),
    ],
)
def test_mistakes_are_explained(rule_id: str, settings: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        make_rule(rule_id, **settings)


WRONG: dict[str, dict[str, list[Any]]] = {
    "prob": {"r": [0.0, 1.1]},
    "prob-ratio": {"r": [0.0, 1.1]},
    "top-k": {"k": [0]},
    "random": {"rate": [1.5]},
    "fly": {"window": [-1], "p_min": [1.0], "entropy": ["full"]},
    "sense": {"k": [-1], "window": [0]},
    "csd": {"tau_c": [0.0], "min_count": [-1], "table": ["warm"]},
    "reflective": {"alpha": [-0.1, 1.1], "tail": [-1], "base": ["mars"], "mode": ["third"]},
    "kl-judge": {"max_p": [0.0, 1.1], "temperature": [0.0]},
    "typical": {"scale": [-1.0], "eps": [0.0, 1.5], "delta": [0.0], "form": ["other"], "greedy": ["argmax"]},
    "ensemble": {"w": [-0.1, 1.1], "replacement": ["argmax_q"]},
    "sgl-threshold": {"acc": [0.0, 1.1], "single": [0.0, 2.0]},
    "trt-relaxed": {"delta": [-0.1, 1.5], "k": [0], "mode": ["gap"], "scope": ["answer"]},
    "mars": {"theta": [math.nan]},
    "mars-margin": {"margin": [math.nan]},
    "fsd": {"div": ["euclid"], "replacement": ["q"]},
    "lenience": {"lenience": [0.0, -1.0, 1.1]},
    "regret-budget": {"budget": [-1.0]},
    "judge": {"delta": [-0.1, math.nan]},
    "autojudge": {"risk": [2.0]},
    "ensemble-gate": {"risk": [2.0], "w": [-0.1, 1.5, 2.0]},
    "wisv": {"risk": [1.1], "kappa": [-1.0], "limit": [1.5, -0.1], "width": [-1], "upload": ["some"]},
}


def test_every_rule_with_settings_refuses_some():
    assert set(WRONG) == {rule_id for rule_id, rule in RULES.items() if fields(rule)}


@pytest.mark.parametrize(
    "rule_id, name, value",
    [(rule_id, name, value) for rule_id, wrong in WRONG.items() for name, values in wrong.items() for value in values],
)
def test_settings_out_of_range_are_refused_by_the_rule_itself(rule_id: str, name: str, value: Any):
    with pytest.raises(UserError, match=f"^{rule_id}: .*{name} {value!r}.* do not fit: "):
        RULES[rule_id](**{**DEFAULT.get(rule_id, {}), name: value})


@pytest.mark.parametrize("rule_id", [rule_id for rule_id, rule in RULES.items() if "gate" in rule.needs])
def test_a_rule_asks_for_its_gate(rule_id: str):
    with pytest.raises(UserError, match="none was given"):
        make_rule(rule_id).accept(block(SURE[0], SURE[0], draft=[1], q=[[0.25] * 4]), {})
