"""Acceptance rules by id. A new rule is one class and one line in RULES."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gistgate.core.rule import Rule
from gistgate.core.utils import Registry, UnknownIdError, UserError, hints, nearest

RULES: Registry[Any] = Registry(
    "rule",
    {
        "exact": "gistgate.core.rule:Exact",
        "block": "gistgate.rules.lossless:BlockVerification",
        "traversal": "gistgate.rules.lossless:Traversal",
        "prob": "gistgate.rules.thresholds:Prob",
        "prob-ratio": "gistgate.rules.thresholds:ProbRatio",
        "top-k": "gistgate.rules.thresholds:TopK",
        "random": "gistgate.rules.thresholds:Random",
        "fly": "gistgate.rules.divergence:Fly",
        "sense": "gistgate.rules.divergence:Sense",
        "csd": "gistgate.rules.history:Csd",
        "reflective": "gistgate.rules.reflective:Reflective",
        "kl-judge": "gistgate.rules.divergence:KLJudge",
        "typical": "gistgate.rules.thresholds:Typical",
        "ensemble": "gistgate.rules.divergence:Ensemble",
        "sgl-threshold": "gistgate.rules.thresholds:SglThreshold",
        "trt-relaxed": "gistgate.rules.thresholds:TrtRelaxed",
        "mars": "gistgate.rules.thresholds:Mars",
        "mars-margin": "gistgate.rules.thresholds:MarsMargin",
        "fsd": "gistgate.rules.divergence:FSD",
        "lenience": "gistgate.rules.thresholds:Lenience",
        "regret-budget": "gistgate.rules.history:RegretBudget",
        "judge": "gistgate.rules.learned:Judge",
        "autojudge": "gistgate.rules.learned:AutoJudge",
        "ensemble-gate": "gistgate.rules.learned:EnsembleGate",
        "wisv": "gistgate.rules.learned:Wisv",
    },
)
"""Id -> class of the rule."""

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "fly-paper": ("fly", {"entropy": "normalised"}),
    "fly-amd": ("fly", {"window": 5}),
}
"""Names for published settings of a rule: (rule id, settings)."""


def meant(name: str) -> tuple[str, dict[str, Any]]:
    """The id of a rule and the settings that the name of a preset stands for."""
    rule_id, preset = PRESETS.get(name, (name, {}))
    if rule_id not in RULES:
        raise UnknownIdError(f"There is no rule '{name}'. {nearest(name, [*RULES, *PRESETS])}")
    return rule_id, preset


def complete(rule_id: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a rule: those that are given, and the others at their defaults."""
    return {item.name: settings.get(item.name, item.default) for item in fields(RULES[rule_id])}


def make_rule(rule_id: str, **settings: Any) -> Rule:
    """The rule of that id (or preset) with these settings; UserError where one does not fit."""
    rule_id, preset = meant(rule_id)
    settings = {**preset, **settings}
    kind = RULES[rule_id]
    annotations = hints(kind)
    for name in settings:
        if name not in annotations:
            raise UserError(
                f"The rule '{rule_id}' has no setting '{name}'. {nearest(name, annotations)}"
            )
    rule: Rule = kind(**settings)
    return rule
