"""Which rule, setting, K and drafter run: one pure function, whose answers are the table in docs/choosing.md."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import TASK, OperatingPoint, Proof
from gistgate.errors import UserError
from gistgate.rules import RULES, complete, make_rule, meant

BLOCK = 8
"""K where neither user nor certificate names one, in tokens."""
STRICT, GATED = "exact", "autojudge"
"""The rule that loses nothing, and the rule that a gate is trained for."""
MODEL, NONE = "model", "none"
"""The drafter that needs a draft model, and plain decoding."""
Policy = Literal["warn", "refuse"]
"""What a caller does about doubts. Both warn about what the user asked for; `refuse` stops where strict decoding would
silently replace the loose decoding that the user expects."""


@dataclass(frozen=True)
class Choice:
    """What decoding runs with."""

    rule: str
    """Rule id."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule."""
    block: int = BLOCK
    """K, drafted tokens per round."""
    drafter: str = NONE
    """Drafter id."""
    doubts: tuple[str, ...] = ()
    """Why no certificate covers the loss; empty where one does and where nothing can be lost."""
    strict_instead: bool = False
    """Whether strict decoding replaces a loose setting because none is certified."""

    def voice(self, policy: Policy = "warn", stacklevel: int = 3) -> None:
        """Warn of the doubts, or refuse to go on.

        Raises:
            UserError: the policy is to refuse, and strict decoding would replace a loose setting.
        """
        if not self.doubts:
            return
        text = f"No certificate covers this: {'; '.join(self.doubts)}."
        if policy == "refuse" and self.strict_instead:
            raise UserError(f"{text} Name a setting, or name rule={STRICT} for strict decoding.")
        warnings.warn(text, stacklevel=stacklevel)


def choose(wishes: Wishes, proof: Proof | None = None, *, has_gate: bool = False, has_draft: bool = False) -> Choice:
    """Rule, settings, K and drafter from what is certified and what the user says.

    Args:
        wishes: what the user says.
        proof: the certificate that the user names, else the one beside the gate, else None.
        has_gate: whether a gate is loaded.
        has_draft: whether a draft model is loaded.

    Raises:
        UserError: unknown names, wishes that contradict each other, or wishes that contradict a named certificate.
    """
    if wishes.budget is not None and not has_gate and proof is None:
        raise UserError("A budget is kept by a certificate, and none was given. Name a gate or a certificate as well.")
    if wishes.certificate is not None and proof is not None:
        return as_certified(wishes, proof)
    rule, settings = rule_and_settings(wishes, proof, has_gate)
    block = wishes.block if wishes.block is not None else (proof.block if proof else BLOCK)
    drafter = wishes.drafter or (proof.drafter if proof else MODEL if has_draft else NONE)
    is_plain = not block or drafter == NONE
    if RULES[rule].knob is None:
        is_fallback = has_gate and wishes.rule is None and not is_plain
        doubts = ("the gate has no certificate, so every token is verified strictly",) if is_fallback else ()
        return Choice(rule, settings, block, drafter, doubts, strict_instead=is_fallback)
    if proof is None or rule != proof.rule:
        found = Choice(rule, settings, block, drafter, (uncertified_rule(rule, proof),))
    elif proof.knob in settings:
        found = at_knob(wishes, proof, settings, block, drafter)
    else:
        found = at_budget(wishes, proof, settings, block, drafter)
    return Choice(found.rule, found.settings, block, drafter) if is_plain else found


def rule_and_settings(wishes: Wishes, proof: Proof | None, has_gate: bool) -> tuple[str, dict[str, Any]]:
    """The rule's id and the settings that are named, those of a preset included.

    Raises:
        UserError: there is no such rule or setting, or a setting is out of range.
    """
    name = wishes.rule or default_rule(proof, has_gate and bool(wishes.settings))
    rule, preset = meant(name)
    certified = proof.fixed if proof is not None and name == proof.rule else {}  # a rule may need a file, as csd does
    make_rule(name, **{**certified, **wishes.settings})
    return rule, {**preset, **wishes.settings}


def default_rule(proof: Proof | None, is_gated: bool) -> str:
    """The rule where the user names none: the certified one, else that of a gate, else the strict one."""
    return proof.rule if proof else GATED if is_gated else STRICT


def take_settings(rule: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of `rule` from keyword arguments and return them.

    Raises:
        UserError: there is no such rule.
    """
    return {name: arguments.pop(name) for name in complete(meant(rule)[0], {}) if name in arguments}


def uncertified_rule(rule: str, proof: Proof | None) -> str:
    """The doubt about a loose rule that no certificate names."""
    if proof is None:
        return f"the rule '{rule}' has no certificate"
    return f"the rule '{proof.rule}' was certified, not '{rule}'"


def at_knob(wishes: Wishes, proof: Proof, settings: dict[str, Any], block: int, drafter: str) -> Choice:
    """The value of the knob that the user names.

    Raises:
        UserError: a budget is named as well.
    """
    knob = str(proof.knob)
    if wishes.budget is not None:
        raise UserError(f"{knob}= and budget= both say how loose decoding is. Leave one of them away.")
    certified = [point.settings[knob] for point in eligible(wishes, proof)]
    doubts = []
    if settings[knob] not in certified:
        known = ", ".join(f"{value:g}" for value in certified) or "none"
        doubts = [f"{knob} {settings[knob]:g} is not among the certified values ({known})"]
    settings = {**proof.fixed, **settings}
    return Choice(proof.rule, settings, block, drafter, (*doubts, *differences(proof, settings, block, drafter)))


def at_budget(wishes: Wishes, proof: Proof, settings: dict[str, Any], block: int, drafter: str) -> Choice:
    """The setting that is certified for the budget, or strict decoding where there is none."""
    point = certified_point(wishes, proof)
    if point is None:
        why = f"{refusal(wishes, proof)}, so every token is verified strictly"
        return Choice(STRICT, {}, block, drafter, (why,), strict_instead=True)
    settings = {**point.settings, **settings}
    return Choice(proof.rule, settings, block, drafter, differences(proof, settings, block, drafter))


def certified_point(wishes: Wishes, proof: Proof) -> OperatingPoint | None:
    """The loosest point that keeps the budget; None where there is none."""
    budget = budget_of(wishes, proof)
    within = [point for point in eligible(wishes, proof) if point.budget <= budget + 1e-9]
    return max(within, key=lambda point: (point.budget, point.mean_accepted_length), default=None)


def eligible(wishes: Wishes, proof: Proof) -> list[OperatingPoint]:
    """The certified points that are sure enough, and whose loss is in the unit of budgets or named by the user."""
    if proof.score != TASK and wishes.certificate is None:
        return []
    return [point for point in proof.certified if point.confidence >= (wishes.confidence or 0.0)]


def budget_of(wishes: Wishes, proof: Proof) -> float:
    """The budget that is named, else the headline budget of the certificate."""
    return proof.headline_budget if wishes.budget is None else wishes.budget


def refusal(wishes: Wishes, proof: Proof) -> str:
    """Why no setting is certified."""
    if proof.score != TASK and wishes.certificate is None:
        return f"the certificate beside the gate bounds the score '{proof.score}', not the task's own metric"
    known = ", ".join(f"{point.budget:g}" for point in eligible(wishes, proof)) or "none"
    sure = "" if wishes.confidence is None else f" at confidence {wishes.confidence:g}"
    return f"there is no setting certified for a budget of {budget_of(wishes, proof):g}{sure} (certified: {known})"


def differences(proof: Proof, settings: dict[str, Any], block: int, drafter: str) -> tuple[str, ...]:
    """What differs from the certified combination besides the knob, as sentences; unnamed settings are at defaults."""
    wanted = {"block": proof.block, "drafter": proof.drafter, **complete(proof.rule, proof.fixed)}
    found = {"block": block, "drafter": drafter, **complete(proof.rule, settings)}
    return differing({name: value for name, value in found.items() if name != proof.knob}, wanted)


def differing(found: dict[str, Any], certified: dict[str, Any]) -> tuple[str, ...]:
    """One sentence for each entry of `found` that is not the certified one."""
    return tuple(
        f"{name} is {value}, but {certified.get(name)} was certified"
        for name, value in found.items()
        if value != certified.get(name)
    )


def as_certified(wishes: Wishes, proof: Proof) -> Choice:
    """What a named certificate says. A user who names a certificate wants it to hold, so nothing may contradict it.

    Raises:
        UserError: a wish contradicts the certificate, or it certifies nothing for the budget.
    """
    point = certified_point(wishes, proof)
    if point is None:
        raise UserError(f"The certificate cannot be kept: {refusal(wishes, proof)}. Decode without the certificate.")
    asked = {"rule": wishes.rule, "drafter": wishes.drafter, "block": wishes.block, "segments": wishes.segments}
    rule = complete(proof.rule, point.settings)
    certified = {"rule": proof.rule, "drafter": proof.drafter, "block": proof.block, **rule}
    named = {**{name: value for name, value in asked.items() if value is not None}, **wishes.settings}
    for name, value in named.items():
        if value != certified.get(name):
            known = "none" if certified.get(name) is None else certified[name]
            raise UserError(
                f"The certificate says {name} {known}, and {name} {value} is asked for beside it. Leave that option "
                "away, or decode without the certificate."
            )
    return Choice(proof.rule, dict(point.settings), proof.block, proof.drafter)
