"""Acceptance rules by id. A new rule is one file and one line in RULES."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from gistgate.errors import UserError
from gistgate.rules.autojudge import AutoJudge
from gistgate.rules.base import Rule
from gistgate.rules.block_verification import BlockVerification
from gistgate.rules.csd import Csd
from gistgate.rules.ensemble import Ensemble
from gistgate.rules.exact import Exact
from gistgate.rules.fly import Fly
from gistgate.rules.fsd import FSD
from gistgate.rules.judge import Judge
from gistgate.rules.kl_judge import KLJudge
from gistgate.rules.lenience import Lenience
from gistgate.rules.mars import Mars, MarsMargin
from gistgate.rules.random import Random
from gistgate.rules.reflective import Reflective
from gistgate.rules.regret_budget import RegretBudget
from gistgate.rules.sense import Sense
from gistgate.rules.sgl_threshold import SglThreshold
from gistgate.rules.thresholds import Prob, ProbRatio, TopK
from gistgate.rules.traversal import Traversal
from gistgate.rules.trt_relaxed import TrtRelaxed
from gistgate.rules.typical import Typical
from gistgate.rules.wisv import Wisv

RULES: dict[str, Any] = {
    "exact": Exact,
    "block": BlockVerification,
    "traversal": Traversal,
    "prob": Prob,
    "prob-ratio": ProbRatio,
    "top-k": TopK,
    "random": Random,
    "fly": Fly,
    "sense": Sense,
    "csd": Csd,
    "reflective": Reflective,
    "kl-judge": KLJudge,
    "typical": Typical,
    "ensemble": Ensemble,
    "sgl-threshold": SglThreshold,
    "trt-relaxed": TrtRelaxed,
    "mars": Mars,
    "mars-margin": MarsMargin,
    "fsd": FSD,
    "lenience": Lenience,
    "regret-budget": RegretBudget,
    "judge": Judge,
    "autojudge": AutoJudge,
    "wisv": Wisv,
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
