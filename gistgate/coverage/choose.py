"""Which rule, setting, K and drafter run: one pure function, whose answers are the table in
docs/troubleshooting.md.
"""

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

from gistgate.core.utils import UserError
from gistgate.coverage.certificate import TASK, Certificate, OperatingPoint
from gistgate.models.options import DecodeOptions
from gistgate.rules import RULES, complete, make_rule, meant

BLOCK = 8  # K where neither user nor certificate names one, in tokens
STRICT = "exact"  # the rule that loses nothing, and the rule that a gate is trained for
GATED = "autojudge"
MODEL = "model"  # the drafter that needs a draft model, and plain decoding
NONE = "none"
Policy = Literal["warn", "refuse"]
"""What a caller does about doubts. Both warn about what the user asked for; `refuse` stops where
strict decoding would silently replace the loose decoding that the user expects."""


@dataclass(frozen=True)
class Choice:
    """What decoding runs with."""

    rule: str  # rule id
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the rule
    block: int = BLOCK  # K, drafted tokens per round
    drafter: str = NONE  # drafter id
    doubts: tuple[
        str, ...
    ] = ()  # why no certificate covers the loss; empty where one does or nothing can be lost
    fell_back: bool = (
        False  # whether strict decoding replaces a loose setting because none is certified
    )

    def warn(self, policy: Policy = "warn", stacklevel: int = 3) -> None:
        """Warn of the doubts, or refuse to go on."""
        if not self.doubts:
            return
        text = f"No certificate covers this: {'; '.join(self.doubts)}."
        if policy == "refuse" and self.fell_back:
            raise UserError(f"{text} Name a setting, or name rule={STRICT} for strict decoding.")
        warnings.warn(text, stacklevel=stacklevel)


def choose(
    options: DecodeOptions,
    certificate: Certificate | None = None,
    *,
    has_gate: bool = False,
    has_draft: bool = False,
) -> Choice:
    """What runs by options and a certificate, named or beside the gate; docs/troubleshooting.md has
    the table.
    """
    if options.budget is not None and not has_gate and certificate is None:
        raise UserError(
            "A budget is kept by a certificate, and none was given. Name a gate or a certificate as"
            " well."
        )
    if options.certificate is not None and certificate is not None:
        return as_certified(options, certificate)
    by_default = (
        certificate.rule if certificate else GATED if has_gate and options.settings else STRICT
    )
    name = options.rule or by_default
    rule, preset = meant(name)
    fixed = certificate.fixed if certificate is not None and name == certificate.rule else {}
    make_rule(
        name, **{**fixed, **options.settings}
    )  # refuses unknown settings; a rule may need a file, as csd does
    settings = {**preset, **options.settings}
    block = (
        options.block
        if options.block is not None
        else (certificate.block if certificate else BLOCK)
    )
    drafter = options.drafter or (
        certificate.drafter if certificate else MODEL if has_draft else NONE
    )
    doubts: list[str] = []
    is_plain = not block or drafter == NONE
    fell_back = False
    if RULES[rule].knob is None:
        if fell_back := has_gate and options.rule is None:
            doubts = ["the gate has no certificate, so every token is verified strictly"]
    elif certificate is None:
        doubts = [f"the rule '{rule}' has no certificate"]
    elif rule != certificate.rule:
        doubts = [f"the rule '{certificate.rule}' was certified, not '{rule}'"]
    elif certificate.knob in settings:
        knob = certificate.knob
        value = settings[certificate.knob]
        if options.budget is not None:
            raise UserError(
                f"{knob}= and budget= both say how loose decoding is. Leave one of them away."
            )
        certified = [point.settings[knob] for point in eligible(options, certificate)]
        if value not in certified:
            known = ", ".join(f"{one:g}" for one in certified) or "none"
            doubts = [f"{knob} {value:g} is not among the certified values ({known})"]
        settings = {**certificate.fixed, **settings}
        doubts += differences(certificate, settings, block, drafter)
    elif (point := certified_point(options, certificate)) is None:
        rule = STRICT
        settings = {}
        fell_back = True
        doubts = [f"{refusal(options, certificate)}, so every token is verified strictly"]
    else:
        settings = {**point.settings, **settings}
        doubts = [*differences(certificate, settings, block, drafter)]
    if is_plain:  # nothing can be lost
        doubts = []
        fell_back = False
    return Choice(rule, settings, block, drafter, tuple(doubts), fell_back)


def certified_point(options: DecodeOptions, certificate: Certificate) -> OperatingPoint | None:
    """The loosest point that keeps the budget, by default the headline budget; None where there is
    none.
    """
    budget = certificate.headline_budget if options.budget is None else options.budget
    within = [point for point in eligible(options, certificate) if point.budget <= budget + 1e-9]
    return max(within, key=lambda point: (point.budget, point.mean_accepted_length), default=None)


def eligible(options: DecodeOptions, certificate: Certificate) -> list[OperatingPoint]:
    """The certified points that are sure enough, and whose loss is in the unit of budgets or named
    by the user.
    """
    if certificate.score != TASK and options.certificate is None:
        return []
    return [
        point for point in certificate.certified if point.confidence >= (options.confidence or 0.0)
    ]


def refusal(options: DecodeOptions, certificate: Certificate) -> str:
    """Why no setting is certified."""
    if certificate.score != TASK and options.certificate is None:
        return (
            f"the certificate beside the gate bounds the score '{certificate.score}', not the"
            " task's own metric"
        )
    budget = certificate.headline_budget if options.budget is None else options.budget
    known = ", ".join(f"{point.budget:g}" for point in eligible(options, certificate)) or "none"
    sure = "" if options.confidence is None else f" at confidence {options.confidence:g}"
    return f"there is no setting certified for a budget of {budget:g}{sure} (certified: {known})"


def differences(
    certificate: Certificate, settings: dict[str, Any], block: int, drafter: str
) -> tuple[str, ...]:
    """What differs from the certified combination besides the knob, as sentences; unnamed settings
    are at defaults.
    """
    fixed = complete(certificate.rule, certificate.fixed)
    certified = {"block": certificate.block, "drafter": certificate.drafter, **fixed}
    found = {"block": block, "drafter": drafter, **complete(certificate.rule, settings)}
    return differing(
        {name: value for name, value in found.items() if name != certificate.knob}, certified
    )


def differing(found: dict[str, Any], certified: dict[str, Any]) -> tuple[str, ...]:
    """One sentence for each entry of `found` that is not the certified one."""
    return tuple(
        f"{name} is {value}, but {certified.get(name)} was certified"
        for name, value in found.items()
        if value != certified.get(name)
    )


def as_certified(options: DecodeOptions, certificate: Certificate) -> Choice:
    """What a named certificate says. A user who names a certificate wants it to hold, so nothing
    may contradict it.
    """
    point = certified_point(options, certificate)
    if point is None:
        raise UserError(
            f"The certificate cannot be kept: {refusal(options, certificate)}. Decode without it."
        )
    asked = {
        "rule": options.rule,
        "drafter": options.drafter,
        "block": options.block,
        "segments": options.segments,
    }
    rule = complete(certificate.rule, point.settings)
    certified = {
        "rule": certificate.rule,
        "drafter": certificate.drafter,
        "block": certificate.block,
        **rule,
    }
    named = {
        **{name: value for name, value in asked.items() if value is not None},
        **options.settings,
    }
    for name, value in named.items():
        if value != certified.get(name):
            known = "none" if certified.get(name) is None else certified[name]
            raise UserError(
                f"The certificate says {name} {known}, and {name} {value} is asked for. Leave one"
                " away."
            )
    return Choice(certificate.rule, dict(point.settings), certificate.block, certificate.drafter)
