"""Who leads among the methods of a summary: the gate, and the best rules without training."""

from __future__ import annotations

from typing import Any

from gistgate.rules import RULES, meant


def asks_gate(method: dict[str, Any]) -> bool:
    """Whether a method's rule asks a trained gate."""
    return "gate" in RULES[meant(method["rule"])[0]].needs


def best(methods: dict[str, Any], *, gate: bool) -> str:
    """The certified method with the largest mean accepted length of those that ask a gate, or of those that do not."""
    names = candidates(methods, gate)
    return max(names, key=lambda name: float(methods[name]["mean_accepted_length"]))


def fastest(methods: dict[str, Any]) -> str:
    """The certified rule without training that is fastest against plain decoding."""
    return max(candidates(methods, gate=False), key=lambda name: float(methods[name]["speed"]["vs_plain"]["mean"]))


def candidates(methods: dict[str, Any], gate: bool) -> list[str]:
    """The methods of one kind. A refused one decodes strictly and is left out, unless all of its kind are refused."""
    names = [name for name, method in methods.items() if asks_gate(method) is gate]
    certified = [name for name in names if methods[name].get("certified_bound") is not None]
    return certified or names
