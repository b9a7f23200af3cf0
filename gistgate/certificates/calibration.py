"""From budgets to a certificate: choose settings on development prompts, then test them on
calibration prompts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from gistgate.certificates.fixed_sequence import Verdicts, fixed_sequence
from gistgate.certificates.ledger import Ledger, Look, digest
from gistgate.certificates.outcomes import Outcomes
from gistgate.certificates.search import (
    Evaluation,
    Request,
    Selection,
    Setting,
    choose_settings,
)
from gistgate.core.files import fingerprint, named_files
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.ask import Settings, stops_of
from gistgate.coverage.certificate import Certificate, OperatingPoint
from gistgate.coverage.setup import is_server
from gistgate.tasks.task import Task


@dataclass(frozen=True)
class Method:
    """A rule with a drafter, and the settings that compete."""

    rule: str  # rule id
    drafter: str  # drafter id
    block: int  # K, in tokens
    knob: str | None = None  # the setting that calibration moves; None for a rule without one
    grid: tuple[float, ...] = ()  # values of the knob, from strict to loose
    fixed: Settings = field(default_factory=dict)  # settings of the rule that never change
    variants: tuple[Settings, ...] = ({},)
    """Of these development prompts choose one; each overrides `fixed`."""

    def __post_init__(self) -> None:
        for variant in self.variants:
            settings = {**self.fixed, **variant}
            if settings.get("table") == "online":
                raise UserError(
                    f"{self.rule}: an online table changes with every answer. Set table to"
                    " 'frozen'."
                )
            if settings.get("kappa"):
                raise UserError(
                    f"{self.rule}: calibration decodes without the costs of requests. Leave kappa"
                    " at 0."
                )

    def settings(self, setting: Setting) -> Settings:
        """All settings of the rule at one setting of the search."""
        settings = {**self.fixed, **setting.variant}
        if self.knob is not None:
            settings[self.knob] = setting.value
        return settings


@dataclass(frozen=True)
class Finding:
    """What calibration of one method showed."""

    method: Method
    request: Request
    selection: Selection  # the settings that were fixed on development prompts
    verdicts: Verdicts  # what the tests on calibration prompts said

    def point(self, budget: float) -> OperatingPoint:
        """The operating point of a budget: the loosest certified setting, or the strictest one,
        which was refused.
        """
        passed = self.verdicts.passed(budget)
        shown = self.verdicts.shown(budget)
        bound = self.verdicts.bound(budget)
        return OperatingPoint(
            budget=budget,
            confidence=self.request.confidence,
            settings=self.method.settings(self.selection.settings[passed or 0]),
            **bound.entries,
            harm=float(np.maximum(shown.decoded.differences, 0).mean()),
            harm_bound=bound.harm,
            certified=passed is not None,
            mean_accepted_length=shown.decoded.counted.mean_accepted_length,
            growth=shown.decoded.growth,
            growth_bound=shown.growth_bound,
            growth_limit=self.request.growth,
            fluency_loss=shown.decoded.fluency_loss if shown.fluency_bound is not None else None,
            fluency_bound=shown.fluency_bound,
            fluency_limit=self.request.fluency,
            refusal=self.verdicts.refusal(budget),
        )

    def certificate(
        self, score: str, scope: dict[str, Any], source: str, made: str = ""
    ) -> Certificate:
        """The certificate for all budgets of the request; the arguments are entries of it."""
        method = self.method
        budgets = sorted(self.request.budgets)
        headline = self.request.headline_budget
        largest = budgets[-1]
        sequence: list[dict[str, Any]] = [
            {"settings": method.settings(setting)} for setting in self.selection.settings
        ]
        # what follows a failure was never tested
        for row, tested in zip(sequence, self.verdicts.tested, strict=False):
            row |= tested.bounds[largest].entries
            row["within"] = tested.within[largest]
            row["wagered"] = tested.answers[largest]
            row["mean_accepted_length"] = tested.decoded.counted.mean_accepted_length
        return Certificate(
            rule=method.rule,
            drafter=method.drafter,
            block=method.block,
            knob=method.knob,
            score=score,
            confidence=self.request.confidence,
            headline_budget=headline if headline in budgets else largest,
            scope=scope,
            points=tuple(self.point(budget) for budget in budgets),
            sequence=tuple(sequence),
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

    def evaluate(setting: Setting) -> Evaluation:
        decoded = outcomes.decoded("development", method.settings(setting))
        tau = decoded.counted.mean_accepted_length
        return Evaluation(decoded.differences, tau, decoded.growth, decoded.fluency_loss)

    if method.knob is None:
        selection = Selection([Setting(None, method.variants[0])], [])
    else:
        selection = choose_settings(method.grid, method.variants, evaluate, request)
    sequence = [method.settings(setting) for setting in selection.settings]
    ternary = outcomes.scorer.ternary
    ledger.record(replace(look, tested=hypothesis(sequence, request, ternary, scope)))
    chunks = (outcomes.chunks("calibration", settings, request.n) for settings in sequence)
    verdicts = fixed_sequence(
        chunks,
        request.budgets,
        request.confidence,
        request.stop,
        ternary,
        request.growth,
        request.fluency,
    )
    return Finding(method, request, selection, verdicts)


# Entries of a certificate's scope that decide which hypothesis is tested: always, and where they
# are there.
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
    settings: Sequence[Settings], request: Request, ternary: bool, scope: Mapping[str, Any]
) -> str:
    """Fingerprint of a tested hypothesis: settings in their order, budgets, bound, and what decodes
    and judges.
    """
    bound = "exact" if ternary else "betting"
    sequence: list[Any] = [list(settings), sorted(request.budgets), f"{bound} {request.stop}"]
    if request.growth is not None:
        sequence.append(request.growth)
    if request.fluency is not None:
        sequence.append(f"fluency {request.fluency}")
    decoding = {name: scope.get(name) for name in DECIDING}
    decoding |= {name: scope[name] for name in SOMETIMES if scope.get(name)}
    if is_server(scope.get("engine")):
        decoding["engine"] = scope["engine"]
    return digest([digest(sequence)[:16], decoding])[:16]


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
    """The part of a scope, plain JSON, that says what decodes.

    `draft` is None where the drafter does not ask it; `data` are the files that the drafter reads,
    and `drafting` is its `binding`.
    """
    scope = {
        "target": model_scope(identify_model(target)),
        "draft": None if draft is None else model_scope(identify_model(draft)),
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
    if data:
        scope["drafter_data"] = fingerprint(*data)
    if drafting:
        scope["drafting"] = drafting
    if files := named_files(method.fixed):
        scope["rule_data"] = fingerprint(*files)
    return scope


def task_scope(task: Task, prompts: Any, tokenizer: Any = None) -> dict[str, Any]:
    """The part about what is asked, of these `prompts`, and how answers are judged; a server needs
    no `tokenizer`.
    """
    prompting = task.prompting
    scope: dict[str, Any] = {
        "task": task_hash(task),
        "prompts": fingerprint(prompts),
        "prompting": {name: value for name, value in vars(prompting).items() if value != {}},
        "stops": stops_of(task.stops, tokenizer),
    }
    if prompting.num_fewshot is None:
        scope["examples"] = task.examples
    if prompting.chat_template and tokenizer is not None:
        scope["template"] = tokenizer_scope(tokenizer, ("template",))["template"]
    return scope


def task_hash(task: Task) -> str:
    """Hash of how a task is asked and judged, and of the files that define it."""
    limits = [task.name, task.metric, list(task.stops), task.max_new_tokens]
    return fingerprint(limits, *task.files)
