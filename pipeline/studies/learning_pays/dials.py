"""The points of the study: what differs from params.yaml at each of them."""

from __future__ import annotations

from typing import Any

from gistgate.rules import RULES
from pipeline.report.gathered import own_draw
from pipeline.smoke import merged

POINTS: dict[str, dict[str, Any]] = {
    "similar": {},
    "neutral": {"world": {"kind": "neutral"}},
    "skew-0": {"world": {"skew": 0.0}},
    "skew-1": {"world": {"skew": 1.0}},
    "no-ornaments": {"world": {"ornaments": False}},
    "distance-0": {"world": {"dialect_distance": 0.0}},
    "distance-0.4": {"world": {"dialect_distance": 0.4}},
    "distance-1": {"world": {"dialect_distance": 1.0}},
    "weak-draft": {"pair_training": {"draft": {"steps": 175}}},
    "strong-draft": {"pair_training": {"draft": {"steps": 1000}}},
    "unsure-target": {"pair_training": {"target": {"steps": 350}}},
    "sure-target": {"pair_training": {"target": {"steps": 1000}}},
}
"""One dial at a time. New points come last, because the place of a point decides its draw."""


def rule_method(name: str) -> dict[str, Any]:
    """A method block with the knob, grid and variants that a rule declares."""
    rule = RULES[name]
    block = {"rule": name, "drafter": "model", "knob": rule.knob, "grid": list(rule.grid)}
    return {**block, "variants": [dict(variant) for variant in rule.variants]}


SIZES: dict[str, Any] = {
    "pair_training": {"min_target_accuracy": 0.0},
    "prompts": {"test": 8},
    "train": {"heads": ["logistic"]},
    "methods": {"free": {"random": None, **{name: rule_method(name) for name in ("ensemble", "kl-judge", "typical")}}},
}
"""Sizes and methods of all points; None takes a method away. Test prompts are not decoded. `ensemble` is the best rule
without training in the large table, `typical` the one that reads the entropy."""


def changes_of(name: str, seed: int) -> dict[str, Any]:
    """What differs from params.yaml at a point with this seed: its dial, and calibration prompts of its own."""
    draw = own_draw(list(POINTS).index(name))
    return merged(merged(SIZES, POINTS[name]), {"seed": seed, "prompts": {"draw": draw}})
