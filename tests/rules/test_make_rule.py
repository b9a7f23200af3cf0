"""Rules are made by name, and a slip of the pen is answered with the name that was meant."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.rules import PRESETS, make_rule
from gistgate.rules.entropy import Fly


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
        ("prob", {"r": 0.0}, "prob: r is 0.0"),
        ("prob-ratio", {"r": 1.1}, "prob-ratio: r is 1.1"),
        ("top-k", {"k": 0}, "top-k: k is 0"),
        ("random", {"rate": 1.5}, "random: rate is 1.5"),
        ("autojudge", {"risk": 2.0}, "autojudge: risk is 2.0"),
        ("fly", {"window": -1}, "fly: window -1"),
        ("fly", {"entropy": "full"}, "fly: 'entropy' is 'full', but it has to be 'top3' or 'normalised'"),
        ("fly", {"theta": "abc"}, "fly: 'theta' is 'abc', but it has to be a finite number"),
        ("fly", {"window": 2.5}, "fly: 'window' is 2.5, but it has to be a whole number"),
        ("fly", {"strict_window": "no"}, "'strict_window' is 'no', but it has to be true or false"),
        ("top-k", {"k": True}, "top-k: 'k' is True"),
        ("sense", {"gamma": math.nan}, "sense: 'gamma' is nan"),
        ("fly", {"p_min": 1.0}, "p_min 1.0"),
    ],
)
def test_mistakes_are_explained(rule_id: str, settings: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        make_rule(rule_id, **settings)
