"""From budgets to a certificate: choose settings on development prompts, then test them on
calibration prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from gistgate.certificates.bounds import Array
from gistgate.certificates.fixed_sequence import Verdicts, fixed_sequence
from gistgate.certificates.ledger import Ledger, Look, digest
from gistgate.certificates.outcomes import Outcomes
from gistgate.certificates.search import Request, Selection, Setting, choose_settings
from gistgate.core.files import fingerprint, named_files
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import Certificate, OperatingPoint, stops_of
from gistgate.tasks.task import Task


@dataclass(frozen=True)
class Method:
    """A rule with a drafter, and the settings that compete."""

    rule: str  # rule id
    drafter: str  # drafter id
    block: int  # K, in tokens
    knob: str | None = None  # the setting that calibration moves; None for a rule without one
    grid: tuple[float, ...] = ()  # values of the knob, from strict to loose
    fixed: dict[str, Any] = field(default_factory=dict)  # settings of the rule that never change
    variants: tuple[dict[str, Any], ...] = (
        {},
    )  # of these development prompts choose one; each overrides `fixed`

    def __post_init__(self) -> None:
        for given in ({**self.fixed, **variant} for variant in self.variants):
            if given.get("table") == "online":
                raise UserError(
                    f"{self.rule}: an online table changes with every answer. Set table to"
                    " 'frozen'."
                )
            if given.get("kappa", 0):
                raise UserError(
                    f"{self.rule}: calibration decodes without the costs of requests. Leave kappa"
                    " at 0."
                )

    def settings(self, setting: Setting) -> dict[str, Any]:
        """All settings of the rule at one setting of the search."""
        return {
            **self.fixed,
            **setting.variant,
            **({} if self.knob is None else {self.knob: setting.value}),
        }


@dataclass(frozen=True)
class Finding:
    """What calibration of one method showed."""

    method: Method
    request: Request
    selection: Selection  # the settings that were fixed on development prompts
    verdicts: Verdicts  # what the tests on calibration prompts said

    def point(self, budget: float) -> OperatingPoint:
        """What was found for a budget: the loosest certified setting, or the strictest one, which
        was refused.
        """
        kept = self.verdicts.passed(budget)
        shown = self.verdicts.shown(budget)
        bound = self.verdicts.bound(budget)
        return OperatingPoint(
            budget=budget,
            confidence=self.request.confidence,
            settings=self.method.settings(self.selection.settings[kept or 0]),
            **bound.entries,
            harm=float(np.maximum(shown.decoded.differences, 0).mean()),
            harm_bound=bound.harm,
            certified=kept is not None,
            mean_accepted_length=shown.decoded.counted.mean_accepted_length,
            growth=shown.decoded.growth,
            growth_bound=shown.growth_bound,
            growth_limit=self.request.growth,
            refusal=self.verdicts.refusal(budget),
        )

    def certificate(
        self, score: str, scope: dict[str, Any], source: str, made: str = ""
    ) -> Certificate:
        """The certificate for all budgets of the request; the arguments are entries of it."""
        method = self.method
        budgets = sorted(self.request.budgets)
        headline = self.request.headline_budget
        at = self.verdicts.budgets.index(budgets[-1])
        rows: list[dict[str, Any]] = [
            {"settings": method.settings(one)} for one in self.selection.settings
        ]
        for row, one in zip(
            rows, self.verdicts.tested, strict=False
        ):  # what follows a failure was never tested
            row |= {**one.bounds[at].entries, "within": one.within[at], "wagered": one.answers[at]}
            row["mean_accepted_length"] = one.decoded.counted.mean_accepted_length
        return Certificate(
            rule=method.rule,
            drafter=method.drafter,
            block=method.block,
            knob=method.knob,
            score=score,
            confidence=self.request.confidence,
            headline_budget=headline if headline in budgets else budgets[-1],
            scope=scope,
            points=tuple(self.point(budget) for budget in budgets),
            sequence=tuple(rows),
            source=source,
            made=made,
        )


def calibrate(
    method: Method,
    outcomes: Outcomes,
    request: Request,
    look: Look,
    scope: Mapping[str, Any],
    ledger: Ledger,
) -> Finding:
    """Choose settings on development prompts, enter the `look` into the ledger, which may refuse
    it, then test them on calibration prompts.
    """

    def evaluate(setting: Setting) -> tuple[Array, float, float]:
        done = outcomes.decoded("development", method.settings(setting))
        return done.differences, done.counted.mean_accepted_length, done.growth

    if method.knob is None:
        selection = Selection([Setting(None, method.variants[0])], [])
    else:
        selection = choose_settings(method.grid, method.variants, evaluate, request)
    settings = [method.settings(one) for one in selection.settings]
    ternary = outcomes.scorer.ternary
    ledger.record(replace(look, tested=hypothesis(settings, request, ternary, scope)))
    chunks = (outcomes.chunks("calibration", one, request.n) for one in settings)
    verdicts = fixed_sequence(
        chunks, request.budgets, request.confidence, request.stop, ternary, request.growth
    )
    return Finding(method, request, selection, verdicts)


# What of a certificate's scope decides which hypothesis is tested, always and where it is there.
DECIDING = (
    "target",
    "draft",
    "tokenizer",
    "gate",
    "rule",
    "drafter",
    "drafter_data",
    "block",
    "task",
    "prompting",
)
SOMETIMES = ("drafting", "judge", "rule_data")


def hypothesis(
    settings: Sequence[dict[str, Any]], request: Request, ternary: bool, scope: Mapping[str, Any]
) -> str:
    """Fingerprint of a tested hypothesis: settings in their order, budgets, bound, and what decodes
    and judges.
    """
    sequence = [
        list(settings),
        sorted(request.budgets),
        f"{'exact' if ternary else 'betting'} {request.stop}",
    ]
    sequence += [] if request.growth is None else [request.growth]
    decoding = {name: scope.get(name) for name in DECIDING}
    decoding |= {name: scope[name] for name in SOMETIMES if scope.get(name)}
    return digest([digest(sequence)[:16], decoding])[:16]


def decoding_scope(
    method: Method,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: Any,
    gate: Any,
    rows: int,
    data: Sequence[Path] = (),
    drafting: dict[str, Any] | None = None,  # what the drafter reads, and its `binding`
) -> dict[str, Any]:
    """The part of a scope, plain JSON, that says what decodes; `draft` is None where the drafter
    does not ask it.
    """
    files = named_files(method.fixed)
    return {
        "target": model_scope(identify_model(target)),
        "draft": None if draft is None else model_scope(identify_model(draft)),
        **({"drafter_data": fingerprint(*data)} if data else {}),
        **({"drafting": drafting} if drafting else {}),
        **({"rule_data": fingerprint(*files)} if files else {}),
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


def task_scope(task: Task, prompts: Any, tokenizer: Any = None) -> dict[str, Any]:
    """The part about what is asked, of these `prompts`, and how answers are judged; a server needs
    no `tokenizer`.
    """
    asked = task.prompting
    has_template = asked.chat_template and tokenizer is not None
    return {
        **(
            {"template": tokenizer_scope(tokenizer, ("template",))["template"]}
            if has_template
            else {}
        ),
        "task": task_hash(task),
        "prompts": fingerprint(prompts),
        "prompting": {name: value for name, value in vars(asked).items() if value != {}},
        "stops": stops_of(task.stops, tokenizer),
        **({"examples": task.examples} if asked.num_fewshot is None else {}),
    }


def task_hash(task: Task) -> str:
    """Hash of how a task is asked and judged, and of the files that define it."""
    limits = [task.name, task.metric, list(task.stops), task.max_new_tokens]
    return fingerprint(limits, *task.files)
