"""Which rule, setting, K and drafter run: one pure function, whose answers are the table in
docs/troubleshooting.md.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gistgate.core.utils import UserError
from gistgate.coverage.ask import Settings, Wish
from gistgate.coverage.certificate import TASK, Certificate
from gistgate.coverage.covers import covers
from gistgate.coverage.setup import Setup
from gistgate.rules import RULES, make_rule, meant

BLOCK = 8  # K where neither user nor certificate names one, in tokens
STRICT = "exact"  # the rule that loses nothing
GATED = "autojudge"  # the rule that a gate is trained for
MODEL = "model"  # the drafter that needs a draft model
NONE = "none"  # plain decoding
Policy = Literal["warn", "refuse"]
"""What a caller does about doubts. Both warn about what the user asked for; `refuse` stops where
strict decoding would silently replace the loose decoding that the user expects."""


@dataclass(frozen=True)
class Choice:
    """What decoding runs with."""

    rule: str  # rule id
    settings: Settings = field(default_factory=dict)
    block: int = BLOCK  # K, drafted tokens per round
    drafter: str = NONE  # drafter id
    # Why no certificate covers the loss; empty where one does or nothing can be lost.
    doubts: tuple[str, ...] = ()
    # Whether strict decoding replaces a loose setting because none is certified.
    fell_back: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing is drafted, so that nothing can be lost."""
        return not self.block or self.drafter == NONE

    def within(self, setup: Setup) -> Setup:
        """A setup whose rule, settings, drafter and K are those of this choice."""
        return replace(
            setup,
            rule=self.rule,
            settings=self.settings,
            drafter=self.drafter,
            block=self.block,
        )

    def doubted(self, *doubts: str) -> "Choice":
        """The choice with further doubts."""
        return replace(self, doubts=(*self.doubts, *doubts))

    def strict(self, doubt: str) -> "Choice":
        """Strict decoding in place of this choice, because of a doubt."""
        return replace(self, rule=STRICT, settings={}, doubts=(doubt,), fell_back=True)

    def warn(self, policy: Policy = "warn", stacklevel: int = 3) -> None:
        """Warn of the doubts, or refuse to go on."""
        if not self.doubts:
            return
        text = f"No certificate covers this: {'; '.join(self.doubts)}."
        if policy == "refuse" and self.fell_back:
            raise UserError(f"{text} Name a setting, or name rule={STRICT} for strict decoding.")
        warnings.warn(text, stacklevel=stacklevel)


def choose(
    wish: Wish,
    certificate: Certificate | None = None,
    *,
    has_gate: bool = False,
    has_draft: bool = False,
) -> Choice:
    """What runs by a wish and a certificate, named or beside the gate; docs/troubleshooting.md has
    the table.
    """
    if certificate is None:
        if wish.budget is not None and not has_gate:
            raise UserError(
                "A budget is kept by a certificate, and none was given. Name a gate or a"
                " certificate as well."
            )
        choice = uncertified(wish, has_gate, has_draft)
    else:
        choice = certified(wish, certificate)
    if choice.is_plain and not wish.names_certificate:
        return replace(choice, doubts=(), fell_back=False)
    return choice


def uncertified(wish: Wish, has_gate: bool, has_draft: bool) -> Choice:
    """What runs without a certificate."""
    rule, settings = wished_rule(wish, GATED if has_gate and wish.settings else STRICT)
    choice = Choice(
        rule,
        settings,
        BLOCK if wish.block is None else wish.block,
        wish.drafter or (MODEL if has_draft else NONE),
    )
    if RULES[rule].knob is not None:
        return choice.doubted(f"the rule '{rule}' has no certificate")
    if has_gate and wish.rule is None:
        return choice.strict("the gate has no certificate, so every token is verified strictly")
    return choice


def certified(wish: Wish, certificate: Certificate) -> Choice:
    """What runs by a certificate, and what of it the certificate does not cover."""
    rule, settings = wished_rule(wish, certificate.rule, certificate.fixed)
    choice = Choice(
        rule,
        settings,
        certificate.block if wish.block is None else wish.block,
        wish.drafter or certificate.drafter,
    )
    if RULES[rule].knob is None and not wish.names_certificate:
        return choice
    points = usable(certificate, wish)
    if rule == certificate.rule:
        point = points.point(wish.budget)
        knob = str(certificate.knob)
        if knob in settings:
            if wish.budget is not None:
                raise UserError(
                    f"{knob}= and budget= both say how loose decoding is. Leave one of them away."
                )
            choice = replace(choice, settings={**certificate.fixed, **settings})
        elif point is not None:
            choice = replace(choice, settings={**point.settings, **settings})
        else:
            why = f"there is {points.refusal(wish.budget, wish.confidence)}"
            if is_about_another_score(certificate, wish):
                why = (
                    f"the certificate beside the gate bounds the score '{certificate.score}', not"
                    " the task's own metric"
                )
            return choice.strict(f"{why}, so every token is verified strictly")
    return choice.doubted(
        *(difference.sentence for difference in covers(points, choice.within(Setup())))
    )


def usable(certificate: Certificate, wish: Wish) -> Certificate:
    """The certificate with those points alone that are sure enough, and whose loss is in the unit
    of budgets.
    """
    if is_about_another_score(certificate, wish):
        return certificate.sure(math.inf)
    return certificate.sure(wish.confidence)


def is_about_another_score(certificate: Certificate, wish: Wish) -> bool:
    """Whether a certificate that nobody named bounds something else than the task's own metric."""
    return certificate.score != TASK and not wish.names_certificate


def wished_rule(
    wish: Wish, usual: str, fixed: Mapping[str, Any] | None = None
) -> tuple[str, Settings]:
    """The rule and the settings that a user names, checked; `usual` is the rule that nobody has to
    name, with the `fixed` settings that come with it.
    """
    name = wish.rule or usual
    rule, preset = meant(name)
    by_certificate = (fixed or {}) if name == usual else {}
    # Refuses unknown settings; a rule may need a file, as csd does.
    make_rule(name, **{**by_certificate, **wish.settings})
    return rule, {**preset, **wish.settings}
