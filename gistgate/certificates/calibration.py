"""From budgets to a proof: choose settings on development prompts, then test them on calibration prompts.

No prompt does both. Decoding is handed in as `Outcomes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from gistgate.certificates.bounds import Array
from gistgate.certificates.fixed_sequence import Stop, Verdicts, fixed_sequence
from gistgate.certificates.outcomes import Outcomes
from gistgate.certificates.planning import wager_confidence
from gistgate.certificates.search import Aims, Selection, Setting, choose_settings
from gistgate.core.certificate import Certificate, OperatingPoint
from gistgate.core.files import fingerprint, named_files
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import files_of


@dataclass(frozen=True)
class Method:
    """A rule with a drafter, and the settings that compete."""

    rule: str
    """Rule id."""
    drafter: str
    """Drafter id."""
    block: int
    """K, in tokens."""
    knob: str | None = None
    """The setting that calibration moves; None for a rule without one."""
    grid: tuple[float, ...] = ()
    """Values of the knob, from strict to loose."""
    fixed: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule that never change."""
    variants: tuple[dict[str, Any], ...] = ({},)
    """Settings of the rule of which development prompts choose one; each overrides `fixed`."""

    def __post_init__(self) -> None:
        if any({**self.fixed, **variant}.get("table") == "online" for variant in self.variants):
            raise UserError(
                f"{self.rule}: an online table changes with every answer, so that no test of it speaks of later ones. "
                "Set table to 'frozen', with counts that are made before."
            )
        if any({**self.fixed, **variant}.get("kappa", 0) for variant in self.variants):
            raise UserError(
                f"{self.rule}: with kappa the costs of requests loosen the rule. Calibration decodes without costs, so "
                "that no test of it speaks of requests that have some. Leave kappa at 0."
            )

    @property
    def files(self) -> list[Path]:
        """The files that fixed settings of the rule name."""
        return named_files(self.fixed)

    def settings(self, setting: Setting) -> dict[str, Any]:
        """All settings of the rule at one setting of the search."""
        knob = {} if self.knob is None else {self.knob: setting.value}
        return {**self.fixed, **setting.variant, **knob}


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
    headline: float | None = None
    """The budget that decides between variants; None takes the largest."""

    @property
    def headline_budget(self) -> float:
        """The budget that decides between variants."""
        return max(self.budgets) if self.headline is None else self.headline

    @property
    def aims(self) -> Aims:
        """What the settings are chosen for."""
        return Aims(
            budgets=sorted(self.budgets),
            headline=self.headline_budget,
            n=self.n,
            confidence=wager_confidence(self.stop, self.confidence),
            settings=self.settings,
            evaluations=self.evaluations,
            reserve=self.reserve,
        )


@dataclass(frozen=True)
class Finding:
    """What calibration of one method showed."""

    method: Method
    request: Request
    selection: Selection
    """The settings that were fixed on development prompts."""
    verdicts: Verdicts
    """What the tests on calibration prompts said."""

    def point(self, budget: float) -> OperatingPoint:
        """What was found for a budget: the loosest certified setting, or the strictest one, which was refused."""
        kept, shown, bound = self.verdicts.passed(budget), self.verdicts.shown(budget), self.verdicts.bound(budget)
        return OperatingPoint(
            budget=budget,
            confidence=self.request.confidence,
            settings=self.method.settings(self.selection.settings[kept or 0]),
            n=bound.n,
            losses=bound.losses,
            gains=bound.gains,
            loss=bound.mean,
            bound=bound.value,
            bound_kind=bound.kind,
            harm=float(np.maximum(shown.decoded.differences, 0).mean()),
            harm_bound=bound.harm,
            certified=kept is not None,
            mean_accepted_length=shown.decoded.counted.mean_accepted_length,
            refusal=self.verdicts.refusal(budget),
        )

    def certificate(
        self, score: str, scope: dict[str, Any], source: str, budgets: Sequence[float] = (), made: str = ""
    ) -> Certificate:
        """The proof for `budgets` (default: all).

        Args:
            score: id of the score that was compared.
            scope: everything that the proof depends on.
            source: where the prompts come from, for people.
            budgets: those of the request that the proof shall speak of.
            made: date in UTC; empty where equal inputs have to give equal bytes.
        """
        budgets = sorted(budgets or self.request.budgets)
        headline = self.request.headline_budget
        return Certificate(
            rule=self.method.rule,
            drafter=self.method.drafter,
            block=self.method.block,
            knob=self.method.knob,
            score=score,
            confidence=self.request.confidence,
            headline_budget=headline if headline in budgets else budgets[-1],
            scope=scope,
            points=tuple(self.point(budget) for budget in budgets),
            sequence=tuple(self.described(budgets[-1])),
            source=source,
            made=made,
        )

    def described(self, budget: float) -> list[dict[str, Any]]:
        """The sequence of settings, with what was found about a budget for those that were tested."""
        at = self.verdicts.budgets.index(budget)
        rows: list[dict[str, Any]] = [{"settings": self.method.settings(one)} for one in self.selection.settings]
        for row, one in zip(rows, self.verdicts.tested, strict=False):
            bound = one.bounds[at]
            row |= {"n": bound.n, "losses": bound.losses, "gains": bound.gains, "loss": bound.mean}
            row |= {"bound": bound.value, "bound_kind": bound.kind, "within": one.within[at]}
            row |= {"wagered": one.wagered[at], "mean_accepted_length": one.decoded.counted.mean_accepted_length}
        return rows


def calibrate(
    method: Method, outcomes: Outcomes, request: Request, before: Callable[[Selection], object] | None = None
) -> Finding:
    """Choose settings on development prompts, then test them on calibration prompts from strict to loose.

    `before` sees the chosen settings before any calibration prompt is decoded, and raises where the prompts may not be
    judged again (`gistgate.certificates.judged`).
    """
    selection = choose(method, outcomes, request)
    if before is not None:
        before(selection)
    chunks = (outcomes.chunks("calibration", method.settings(one), request.n) for one in selection.settings)
    ternary = outcomes.scorer.ternary
    verdicts = fixed_sequence(chunks, request.budgets, request.confidence, request.stop, ternary)
    return Finding(method, request, selection, verdicts)


def choose(method: Method, outcomes: Outcomes, request: Request) -> Selection:
    """The settings to test, the strictest value of the knob in front; a rule without a knob has but one setting."""
    if method.knob is None:
        return Selection([Setting(None, method.variants[0])], [])

    def evaluate(setting: Setting) -> tuple[Array, float]:
        done = outcomes.decoded("development", method.settings(setting))
        return done.differences, done.counted.mean_accepted_length

    return choose_settings(method.grid, method.variants, evaluate, request.aims)


# ---- The scope of a certificate: everything that decides what is decoded, as plain JSON without dates.


def decoding_scope(
    method: Method,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: Any,
    gate: Any,
    rows: int,
    data: Sequence[Path] = (),
    drafting: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What decodes: models, tokenizer, gate, method, and how.

    Args:
        method: rule, drafter, K and knob.
        target, tokenizer, gate: the parts that are served; the gate may be None.
        draft: the draft model; None where the drafter does not ask it.
        rows: prompts that are decoded together.
        data: files and folders that the drafter reads.
        drafting: the drafter's `binding`; nothing is written where it is empty.
    """
    return {
        "target": model_scope(identify_model(target)),
        "draft": None if draft is None else model_scope(identify_model(draft)),
        **({"drafter_data": fingerprint(*data)} if data else {}),
        **({"drafting": drafting} if drafting else {}),
        **({"rule_data": fingerprint(*method.files)} if method.files else {}),
        **tokenizer_scope(tokenizer, ("encoding",)),
        "ends": eos_ids(target, tokenizer),
        "gate": None if gate is None else gate_hash(gate),
        "rule": method.rule,
        "drafter": method.drafter,
        "block": method.block,
        "knob": method.knob,
        "temperature": 0.0,
        "engine": "eager",
        "batching": {"rows": rows, "ragged": True},
        "guards": [],
    }


def task_scope(task: Any, prompts: Any, tokenizer: Any = None) -> dict[str, Any]:
    """What is asked and how answers are judged.

    Args:
        task: an lm-eval task of `gistgate.lm_eval.task`.
        prompts: what tells the calibration prompts from others: their token ids, or the file (as Path).
        tokenizer: whose chat template the prompts have; None where a server writes them.
    """
    asked = task.prompting
    has_template = asked.chat_template and tokenizer is not None
    return {
        **({"template": tokenizer_scope(tokenizer, ("template",))["template"]} if has_template else {}),
        "task": task_hash(task),
        "prompts": fingerprint(prompts),
        "prompting": {"num_fewshot": asked.num_fewshot, "chat_template": asked.chat_template, "system": asked.system},
    }


def task_hash(task: Any) -> str:
    """Hash of how a task is asked and judged; its own files are included where data/tasks has them."""
    limits = [task.name, task.metric, list(task.stops), task.max_new_tokens]
    return fingerprint(limits, *files_of(Path("data/tasks") / f"{task.name}.yaml"))
