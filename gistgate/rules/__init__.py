"""Acceptance rules by id. A new rule is one file and one line in RULES."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from gistgate.errors import UserError
from gistgate.rules.autojudge import AutoJudge
from gistgate.rules.base import Rule
from gistgate.rules.exact import Exact
from gistgate.rules.fly import Fly
from gistgate.rules.random import Random
from gistgate.rules.thresholds import Prob, ProbRatio, TopK

RULES: dict[str, Any] = {
    "exact": Exact,
    "prob": Prob,
    "prob-ratio": ProbRatio,
    "top-k": TopK,
    "random": Random,
    "fly": Fly,
    "autojudge": AutoJudge,
}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "fly-paper": ("fly", {"entropy": "normalised"}),
    "fly-amd": ("fly", {"window": 5}),
}
"""Names for published settings of a rule: (rule id, settings)."""


def make_rule(rule_id: str, **settings: Any) -> Rule:
    """The rule of that id (or preset) with these settings.

    Raises:
        UserError: an unknown id or setting (the nearest known name is offered), or a value out of range.
    """
    if rule_id in PRESETS:
        rule_id, preset = PRESETS[rule_id]
        settings = {**preset, **settings}
    if rule_id not in RULES:
        raise UserError(f"There is no rule '{rule_id}'. {nearest(rule_id, [*RULES, *PRESETS])}")
    known = [field.name for field in fields(RULES[rule_id])]
    for name in settings:
        if name not in known:
            raise UserError(f"The rule '{rule_id}' has no setting '{name}'. {nearest(name, known)}")
    rule: Rule = RULES[rule_id](**settings)
    return rule


def nearest(name: str, known: list[str]) -> str:
    """A sentence that helps after a mistyped name."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(sorted(known)) or 'none'}."
