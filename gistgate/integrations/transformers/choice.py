"""Which rule at which setting: what the gate's certificate says, what the caller says, and where the two differ."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.rules import make_rule
from gistgate.rules.base import Rule

BLOCK = 8
"""K where neither caller nor gate names one, in tokens."""


@dataclass(frozen=True)
class Choice:
    """What decoding runs with."""

    rule: Rule
    """The rule with its settings."""
    block: int
    """K, in tokens."""
    doubts: tuple[str, ...] = ()
    """Why no certificate covers the loss, as sentences; empty when one does and when nothing can be lost."""


def default_rule(gate: Gate | None) -> str:
    """The rule that the gate was certified with; without a gate the lossless one."""
    if gate is None:
        return "exact"
    return gate.proof.rule if gate.proof is not None else "autojudge"


def take_settings(rule_id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the rule's settings from `arguments` and return them."""
    names = [item.name for item in fields(make_rule(rule_id))]  # type: ignore[arg-type]
    return {name: arguments.pop(name) for name in names if name in arguments}


def choose(
    gate: Gate | None, rule_id: str, budget: float | None, block: int | None, drafter: str, settings: dict[str, Any]
) -> Choice:
    """The rule with its settings, and K.

    Raises:
        UserError: a budget without a gate or beside an explicit knob, or a setting out of range.
    """
    rule = make_rule(rule_id, **settings)
    if gate is None:
        if budget is not None:
            raise UserError("A budget is kept by a calibrated gate, and none was given. Pass gate=<folder> as well.")
        return Choice(rule, BLOCK if block is None else block)
    if rule.id != default_rule(gate):
        doubt = f"the gate was calibrated with the rule '{default_rule(gate)}', not with '{rule.id}'"
        return Choice(rule, BLOCK if block is None else block, (doubt,) if rule.knob else ())
    if rule.knob in settings:
        if budget is not None:
            raise UserError(f"{rule.knob}= and budget= both say how loose the gate is. Leave one of them away.")
        return at_knob(gate, rule, block, drafter)
    return at_budget(gate, rule, budget, block, drafter, settings)


def at_knob(gate: Gate, rule: Rule, block: int | None, drafter: str) -> Choice:
    """The setting that the caller names."""
    value = getattr(rule, str(rule.knob))
    certified = gate.proof.certified if gate.proof is not None else ()
    point = next((point for point in certified if point.settings[str(rule.knob)] == value), None)
    if gate.proof is None or point is None:
        known = ", ".join(f"{point.settings[str(rule.knob)]:g}" for point in certified) or "none"
        doubt = f"{rule.knob} {value:g} is not among the certified values ({known})"
        return Choice(rule, certified_block(gate) if block is None else block, (doubt,))
    return checked(gate.proof, point, rule, gate.proof.block if block is None else block, drafter)


def at_budget(
    gate: Gate, rule: Rule, budget: float | None, block: int | None, drafter: str, settings: dict[str, Any]
) -> Choice:
    """The setting that is certified for the budget; strict verification when there is none."""
    try:
        point = gate.operating_point(budget)
    except UserError as error:
        known = certified_block(gate) if block is None else block
        return Choice(make_rule("exact"), known, (f"{error} Until then every token is verified strictly",))
    tuned: Any = replace(
        rule,  # type: ignore[type-var]
        **{**point.settings, **settings},
    )
    assert gate.proof is not None
    return checked(gate.proof, point, tuned, gate.proof.block if block is None else block, drafter)


def checked(proof: Proof, point: OperatingPoint, rule: Rule, block: int, drafter: str) -> Choice:
    """The choice, with everything that the certificate of `point` says otherwise."""
    wanted = {"block": proof.block, "drafter": proof.drafter, **proof.fixed}
    chosen = {"block": block, "drafter": drafter}
    differences = [(name, value, chosen.get(name, getattr(rule, name, None))) for name, value in wanted.items()]
    doubts = tuple(f"{name} is {now}, but {then} was certified" for name, then, now in differences if then != now)
    return Choice(rule, block, doubts)


def certified_block(gate: Gate) -> int:
    """K of the gate's calibration, in tokens."""
    return BLOCK if gate.proof is None else gate.proof.block
