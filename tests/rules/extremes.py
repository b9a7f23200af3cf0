"""The strictest, a middling and the freest setting of every rule. A new rule names its own here."""

from itertools import product
from typing import Any

import torch

from gistgate.rules import RULES
from gistgate.rules.history import PairCounts

DEFAULT: dict[str, dict[str, Any]] = {"csd": {"counts": PairCounts()}}
"""What a rule cannot do without; all others work as they come."""


def combinations() -> list[tuple[str, bool, bool]]:
    """(rule id, greedy, with draft probabilities) of everything that rules can be asked for."""
    return [
        (name, greedy, with_q)
        for name, rule in RULES.items()
        for greedy, with_q in product((True, False), (True, False))
        if rule.temperatures == "all" or greedy == (rule.temperatures == "greedy")
        if with_q or "q" not in rule.needs
    ]


CLOSED: dict[str, dict[str, Any]] = {
    "exact": {},
    "block": {},
    "traversal": {},
    "prob": {"r": 1.0},
    "prob-ratio": {"r": 1.0},
    "top-k": {"k": 1},
    "random": {"rate": 0.0},
    "fly": {"theta": 9.9},
    "sense": {"gamma": 1.0},
    "csd": {"tau_c": 2.0, "table": "online"},
    "reflective": {"alpha": 0.0},
    "kl-judge": {"tau": -1.0},
    "typical": {"scale": 1e9, "greedy": "raw"},
    "ensemble": {"w": 1.0},
    "sgl-threshold": {"single": 1.0},
    "trt-relaxed": {"delta": 0.0},
    "mars": {"theta": 1e9},
    "mars-margin": {"margin": -1.0},
    "fsd": {"threshold": -1.0},
    "lenience": {"lenience": 1.0},
    "regret-budget": {"budget": 0.0},
    "judge": {"delta": 1.0},
    "autojudge": {"risk": -1.0},
    "ensemble-gate": {"risk": -1.0, "w": 0.0},
    "wisv": {"risk": -1.0},
}
"""Settings that must be lossless."""
OPEN: dict[str, dict[str, Any]] = {
    "prob": {"r": 1e-30},
    "prob-ratio": {"r": 1e-30},
    "top-k": {"k": 10**6},
    "random": {"rate": 1.0},
    "fly": {"theta": 0.0, "window": 0},
    "sense": {"gamma": -1.0, "k": 10**6},
    "csd": {"tau_c": 1e-30, "min_count": 0, "table": "online"},
    "reflective": {"alpha": 1.0},
    "kl-judge": {"tau": 99.0, "max_p": 1.0},
    "typical": {"scale": 0.0, "greedy": "raw"},
    "sgl-threshold": {"single": 1e-30},
    "trt-relaxed": {"delta": 1.0, "k": 10**6, "scope": "all"},
    "fsd": {"threshold": 99.0},
    "regret-budget": {"budget": 1e30},
    "judge": {"delta": 0.0},
    "autojudge": {"risk": 1.0},
    "wisv": {"risk": 1.0},
}
"""Settings that keep whatever may be kept at all."""


def every_pair(num_ids: int = 259) -> PairCounts:
    """A table in which every pair of the tiny models' tokens was met once."""
    table, ids = PairCounts(capacity=num_ids**2), torch.arange(num_ids)
    table.add(ids.repeat_interleave(num_ids), ids.repeat(num_ids))
    return table


LOOSE: dict[str, dict[str, Any]] = {
    "prob": {"r": 0.02},
    "prob-ratio": {"r": 0.05},
    "top-k": {"k": 5},
    "random": {"rate": 0.4},
    "fly": {"theta": 0.2, "window": 1, "strict_window": False},
    "csd": {"tau_c": 0.01, "min_count": 0, "counts": every_pair()},
    "reflective": {"alpha": 0.6},
    "kl-judge": {"tau": 2.0, "max_p": 1.0},
    "typical": {"greedy": "raw", "scale": 0.3},
    "ensemble": {"w": 0.2},
    "sgl-threshold": {"single": 0.02},
    "trt-relaxed": {"scope": "all"},
    "mars": {"theta": 0.7},
    "mars-margin": {"margin": 2.0},
    "lenience": {"lenience": 0.2},
}
"""Settings at which a rule keeps some tokens of the tiny models loosely and refuses others; rules
that are not named do so as they come."""
NEVER_OPEN = {"ensemble", "ensemble-gate", "mars", "mars-margin", "lenience"}
"""Rules with a knob that has no such setting: the draft model's favourite, two candidates at most,
a ratio above 0.
"""
TARGET_ONLY = {"sgl-threshold"}
"""Rules whose lossless test ignores the draft's probabilities; with them other tokens are drawn
than by `exact`.
"""
BY_DISTRIBUTION = {name for name, rule in RULES.items() if rule.lossless}
"""Rules whose sampled texts are the target's along another path than token by token: with the
numbers that `exact` is given they keep other tokens, and test_lossless.py judges them."""
LOSSLESS = {"exact", *BY_DISTRIBUTION}
"""Rules that keep no token loosely, whatever their settings."""
