"""Acceptance rules by id. A new rule is one file and one line in RULES."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gistgate.errors import UserError
from gistgate.registry import Registry, UnknownIdError, nearest
from gistgate.rules.base import Rule
from gistgate.typed import fits, hints, in_words, shown

RULES: Registry[Any] = Registry(
    "rule",
    {
        "exact": "gistgate.rules.exact:Exact",
        "block": "gistgate.rules.block_verification:BlockVerification",
        "traversal": "gistgate.rules.traversal:Traversal",
        "prob": "gistgate.rules.thresholds:Prob",
        "prob-ratio": "gistgate.rules.thresholds:ProbRatio",
        "top-k": "gistgate.rules.thresholds:TopK",
        "random": "gistgate.rules.random:Random",
        "fly": "gistgate.rules.fly:Fly",
        "sense": "gistgate.rules.sense:Sense",
        "csd": "gistgate.rules.csd:Csd",
        "reflective": "gistgate.rules.reflective:Reflective",
        "kl-judge": "gistgate.rules.kl_judge:KLJudge",
        "typical": "gistgate.rules.typical:Typical",
        "ensemble": "gistgate.rules.ensemble:Ensemble",
        "sgl-threshold": "gistgate.rules.sgl_threshold:SglThreshold",
        "trt-relaxed": "gistgate.rules.trt_relaxed:TrtRelaxed",
        "mars": "gistgate.rules.mars:Mars",
        "mars-margin": "gistgate.rules.mars:MarsMargin",
        "fsd": "gistgate.rules.fsd:FSD",
        "lenience": "gistgate.rules.lenience:Lenience",
        "regret-budget": "gistgate.rules.regret_budget:RegretBudget",
        "judge": "gistgate.rules.judge:Judge",
        "autojudge": "gistgate.rules.autojudge:AutoJudge",
        "ensemble-gate": "gistgate.rules.ensemble_gate:EnsembleGate",
        "wisv": "gistgate.rules.wisv:Wisv",
    },
)
"""Id -> class of the rule."""

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "fly-paper": ("fly", {"entropy": "normalised"}),
    "fly-amd": ("fly", {"window": 5}),
}
"""Names for published settings of a rule: (rule id, settings)."""


def meant(name: str) -> tuple[str, dict[str, Any]]:
    """The id of a rule and the settings that the name of a preset stands for.

    Raises:
        UnknownIdError: there is no such rule or preset (the nearest known name is offered).
    """
    rule_id, preset = PRESETS.get(name, (name, {}))
    if rule_id not in RULES:
        raise UnknownIdError(f"There is no rule '{name}'. {nearest(name, [*RULES, *PRESETS])}")
    return rule_id, preset


def complete(rule_id: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a rule: those that are given, and the others at their defaults."""
    return {item.name: settings.get(item.name, item.default) for item in fields(RULES[rule_id])}


def is_infinite(value: Any) -> bool:
    """Whether a value is an infinite number, at which some rules are strict or accept everything."""
    return isinstance(value, float) and math.isinf(value)


def make_rule(rule_id: str, **settings: Any) -> Rule:
    """The rule of that id (or preset) with these settings.

    Raises:
        UserError: an unknown id or setting (the nearest known name is offered), or a value out of range.
    """
    rule_id, preset = meant(rule_id)
    settings = {**preset, **settings}
    kind = RULES[rule_id]
    known = hints(kind)
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"The rule '{rule_id}' has no setting '{name}'. {nearest(name, list(known))}")
        if not (fits(value, known[name]) or (is_infinite(value) and fits(0.0, known[name]))):
            raise UserError(f"{rule_id}: '{name}' is {shown(value)}, but it has to be {in_words(known[name])}.")
    rule: Rule = kind(**settings)
    return rule
