"""From a budget to a certificate: plan, choose settings, test them, write down what was found.

Prompts of the split `development` choose the settings, those of `calibration` certify them; no prompt does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from gistgate.certificates.bernstein import PLUG_IN
from gistgate.certificates.betting import BETTING
from gistgate.certificates.bounds import EXACT, Bound
from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.certificates.fixed_sequence import needed_beyond, needed_n
from gistgate.certificates.planning import fewest, needed_prompts, plug_in_certifies
from gistgate.certificates.search import Aims, Choice, Setting, choose_settings
from gistgate.certificates.sequence import Stop, Tested, passed, try_settings, watch_confidence
from gistgate.errors import UserError
from pipeline.certification.trial import Trial
from pipeline.common.resume import fingerprint
from pipeline.common.scope import decoding_scope
from pipeline.params import PromptingParams

PLANNED = (0.01, 0.02, 0.05, 0.1)
"""Discordances for which a plan is said before anything is known."""
EXPECTED = 0.05
"""Discordance that the default number of prompts is planned for."""


@dataclass(frozen=True)
class Request:
    """What shall be certified, and how."""

    budgets: tuple[float, ...]
    """Largest mean losses, each a claim of its own."""
    confidence: float = 0.95
    """Probability with which each certificate holds."""
    n: int = 1000
    """Most calibration prompts to decode for a setting."""
    stop: Stop = "lost"
    """When to leave a setting early."""
    settings: int = 3
    """Most settings to test behind the strictest."""
    evaluations: int = 6
    """Most settings to measure on development prompts, plus one for each variant behind the first."""
    reserve: float = 1.0
    """Standard errors that the choice of settings leaves free below a budget."""

    @property
    def aims(self) -> Aims:
        """What the settings are chosen for; the largest budget decides between variants."""
        return Aims(
            sorted(self.budgets), max(self.budgets), self.n, watch_confidence(self.stop, self.confidence),
            self.settings, self.evaluations, self.reserve,
        )  # fmt: skip


def needed(budget: float, confidence: float, rate: float, ternary: bool = True, stop: Stop = "lost") -> int | None:
    """Prompts that certify `budget` without a net loss at a discordance (mean of d squared), by what decides there.

    The exact bound where the score is right or wrong, else the plug-in Bernstein bound, or the watch if it may certify.
    """
    sure = watch_confidence(stop, confidence)
    if ternary:
        return needed_n(budget, sure, rate)
    plan = needed_prompts(budget, sure, rate)
    deciding = [plan[bound] for bound in (PLUG_IN, *([BETTING] if stop == "clear" else []))]
    return min((n for n in deciding if n is not None), default=None)


def plan_sentence(budget: float, confidence: float, n: int, ternary: bool = True, stop: Stop = "lost") -> str:
    """What a budget needs, for people, before the first prompt is decoded."""
    plan = {rate: needed(budget, confidence, rate, ternary, stop) for rate in PLANNED}
    parts = ", ".join(f"{need or 'too many'} at {rate:.0%}" for rate, need in plan.items())
    return (
        f"A budget of {budget:.2%} at {confidence:.0%} confidence needs, were nothing lost, about so many prompts by "
        f"the share of answers that differ: {parts}; twice as many to be safe. There are {n}."
    )


def default_n(budget: float, confidence: float, ternary: bool, available: int, stop: Stop = "lost") -> int:
    """Twice what the expected discordance needs, or all there are."""
    need = needed(budget, confidence, EXPECTED, ternary, stop)
    return min(available, 2 * need) if need else available


def check_possible(budget: float, confidence: float, n: int, ternary: bool = True, stop: Stop = "lost") -> None:
    """Refuse what n prompts cannot certify even if no answer differs.

    Raises:
        UserError: with the number that would do.
    """
    least = needed(budget, confidence, 0.0, ternary, stop)
    if least is None or n < least:
        raise UserError(
            f"{n} prompts cannot certify a budget of {budget:.2%} even if no answer differs: that takes "
            f"{least or 'too many'}. "
            "Use more prompts (--prompts, or a task with more documents) or a larger budget."
        )


@dataclass(frozen=True)
class Finding:
    """What a sequence showed."""

    request: Request
    choice: Choice
    tested: list[Tested]

    def certified(self, budget: float) -> int | None:
        """Index of the loosest setting that keeps a budget."""
        return passed(self.tested, self.request.budgets.index(budget))

    def refusal(self, budget: float) -> str | None:
        """Why a budget has no certificate and what would help; None where it has one."""
        if self.certified(budget) is not None:
            return None
        at = self.request.budgets.index(budget)
        first, bound = self.tested[0], self.tested[0].bounds[at]
        seen = (
            f"{bound.n} prompts with a loss of {bound.mean:.2%} and {bound.discordant / bound.n:.2%} differing answers"
        )
        if first.watched[at] == "beyond":
            return f"A budget of {budget:.2%} is lost at the strictest setting tested: {seen} leave no doubt."
        need = needed_beyond(bound, budget) if bound.kind == EXACT else needed_like(first, bound, budget)
        help_ = f"about {need} prompts would do" if need else "more prompts would not help; take a larger budget"
        return f"A budget of {budget:.2%} cannot be certified: {seen} bound it by {bound.value:.2%}; {help_}."


def needed_like(first: Tested, bound: Bound, budget: float) -> int | None:
    """How many prompts would certify `budget` by the plug-in Bernstein bound, were they to repeat those seen."""
    if bound.mean >= budget:
        return None
    seen = first.decoded.differences
    return fewest(lambda n: plug_in_certifies(np.resize(seen, n), budget, bound.confidence), above=bound.n)


def find(trial: Trial, request: Request) -> Finding:
    """Choose settings on development prompts, then test them on calibration prompts."""
    choice = choose(trial, request)
    tests = [partial(trial.chunks, "calibration", setting, request.n) for setting in choice.settings]
    tested = try_settings(tests, request.budgets, request.confidence, request.stop, trial.ground.scorer.ternary)
    return Finding(request, choice, tested)


def choose(trial: Trial, request: Request) -> Choice:
    """The settings to test, the strictest value of the knob in front; a rule without a knob has but one.

    Development prompts are few, and what they let pass for a small budget may fail it: then the strictest is left.
    """
    method = trial.method
    if method.knob is None:
        return Choice([Setting(None, method.variants[0])], [])

    def evaluate(setting: Setting):
        done = trial.decoded("development", setting)
        return done.differences, done.counted.mean_accepted_length

    return choose_settings(method.grid, method.variants, evaluate, request.aims)


def proof(trial: Trial, finding: Finding, budgets: Sequence[float], scope: dict[str, Any], source: str) -> Proof:
    """The proof of a sequence for these of its budgets."""
    request, method = finding.request, trial.method
    return Proof(
        rule=method.rule,
        drafter=method.drafter,
        block=trial.block,
        knob=method.knob,
        score=trial.ground.scorer.id,
        confidence=request.confidence,
        headline_budget=max(budgets),
        scope=scope,
        points=tuple(point(trial, finding, budget) for budget in budgets),
        sequence=tuple(described(trial, finding, max(budgets))),
        source=source,
        made=datetime.now(UTC).date().isoformat(),
    )


def point(trial: Trial, finding: Finding, budget: float) -> OperatingPoint:
    """What was found for a budget: the loosest certified setting, or the strictest one that was refused."""
    kept = finding.certified(budget)
    one = finding.tested[kept or 0]
    bound = one.bounds[finding.request.budgets.index(budget)]
    return OperatingPoint(
        budget=budget,
        confidence=finding.request.confidence,
        settings=trial.settings(finding.choice.settings[kept or 0]),
        n=bound.n,
        losses=bound.losses,
        gains=bound.gains,
        loss=bound.mean,
        bound=bound.value,
        bound_kind=bound.kind,
        harm=float(np.maximum(one.decoded.differences, 0).mean()),
        harm_bound=bound.harm,
        certified=kept is not None,
        mean_accepted_length=one.decoded.counted.mean_accepted_length,
        refusal=finding.refusal(budget),
    )


def described(trial: Trial, finding: Finding, budget: float) -> list[dict[str, Any]]:
    """The sequence with what was found for the settings that were tested."""
    at = finding.request.budgets.index(budget)
    rows = [{"settings": trial.settings(setting)} for setting in finding.choice.settings]
    for row, one in zip(rows, finding.tested, strict=False):
        bound = one.bounds[at]
        row |= {
            "n": bound.n, "losses": bound.losses, "gains": bound.gains, "loss": bound.mean, "bound": bound.value,
            "bound_kind": bound.kind, "within": one.within[at], "watched": one.watched[at],
            "mean_accepted_length": one.decoded.counted.mean_accepted_length,
        }  # fmt: skip
    return rows


def scope_of_trial(trial: Trial, task: str, prompting: PromptingParams) -> dict[str, Any]:
    """Everything a certificate of this trial depends on."""
    ground = trial.ground
    return {
        **decoding_scope(ground.pair, trial.method, trial.block, trial.gate, ground.batch_size),
        "task": task,
        "prompts": fingerprint([prompt["ids"] for prompt in ground.prompts["calibration"]]),
        "prompting": asdict(prompting),
    }
