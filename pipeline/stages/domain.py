"""Measure what looseness costs on prompts unlike the prompts as usual, without a guard and with a guard.

    python -m pipeline.stages.domain            models/domain from the guard prompts, then reports/domain.json
    python -m pipeline.stages.domain fit        models/domain alone, which `export` puts beside the gate

Only the embedded world has such prompts: its `shifted` kind asks in a second dialect and begins with larger numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.task import Task
from gistgate.optional.guards import CLOSED, DomainGuard
from gistgate.request.statistics import total
from pipeline.common.code import write_result
from pipeline.common.decoders import Outcome, make_decoder, read_prompts, run_split
from pipeline.common.entry import run
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import Operating, operating_point
from pipeline.heads.guard_fit import NothingToGuardError, fit_domain, save
from pipeline.pairs.pair import Pair, load_pair
from pipeline.pairs.world.corpus import documents
from pipeline.params import Params, read_params
from pipeline.report.paired_statistics import accuracy_difference
from pipeline.stages.export import exported_method
from pipeline.tasks.loading import load_task

REPORT = Path("reports/domain.json")
PROMPTS = 600
"""Prompts of each world, enough for an interval of about two points each way."""


def main(goal: Annotated[str | None, typer.Argument()] = None) -> None:
    params = read_params()
    if goal not in (None, "fit"):
        raise UserError(f"There is nothing called '{goal}' here. Say `fit`, or nothing for the whole study.")
    try:
        study = Study(params)
        guard = study.guard()
    except NothingToGuardError as error:
        save(None, str(error))
        if goal:  # a run with too few prompts for a certificate has nothing to guard, and goes on
            return print(f"models/domain: none. {error}")
        raise
    save(guard)
    print(f"models/domain: distance {guard.far:.3f}, bet {guard.bet:.3f}, then {guard.stricter or CLOSED}")
    if not goal:
        report = study.report(guard)
        write_result(REPORT, report, "pipeline.stages.domain")
        print(table(report))
    return None


class Study:
    """The exported method on prompts as usual and on shifted ones."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.pair: Pair = load_pair(params)
        self.task: Task = load_task(params)
        self.point: Operating = operating_point(params, exported_method(params))
        if self.point.knob is None or not self.point.certified:
            raise NothingToGuardError(
                f"'{self.point.method}' has no certified setting, so it runs strictly and needs no guard. "
                "Calibrate with more prompts or a larger budget."
            )
        self.gate: Gate | None = load_gate(self.point.head, self.pair) if self.point.head else None

    def guard(self) -> DomainGuard:
        """What prompts as usual look like, from prompts that serve no other purpose and certify nothing."""
        prompts = read_prompts("guard")
        return fit_domain(self.params, self.pair, self.task, self.gate, self.point, prompts)

    def report(self, guard: DomainGuard, number: int = PROMPTS) -> dict[str, Any]:
        """What happens in both worlds."""
        worlds = {"usual": read_prompts("test")[:number], "shifted": self.shifted(number)}
        return {
            "method": self.point.method,
            "knob": self.point.knob,
            "stricter": guard.stricter,
            "alarms_wanted": guard.about["alarms"],
            "worlds": {name: self.world(prompts, guard, name) for name, prompts in worlds.items()},
        }

    def shifted(self, number: int) -> list[dict[str, Any]]:
        """Prompts of the shifted world, from the arithmetic that no training saw."""
        world = replace(self.params.world, kind="shifted")
        docs = documents(world, self.params.seed, "test", number)
        served = read_prompts("test")[0]
        kept = {name: served[name] for name in ("stops", "max_new_tokens")}
        return [{"id": f"shifted-{index}", "doc": doc, "ids": self.ids(doc), **kept} for index, doc in enumerate(docs)]

    def ids(self, doc: dict[str, Any]) -> list[int]:
        """The document's prompt as it is served."""
        return self.task.encode(self.pair.tokenizer, self.task.context(doc, self.pair.tokenizer))

    def world(self, prompts: Sequence[dict[str, Any]], guard: DomainGuard, name: str) -> dict[str, Any]:
        """Strict, loose without guard, loose with it, all on the same prompts."""
        exact = replace(self.point, rule="exact", settings={}, head=None)
        strict = self.decode(exact, prompts, f"{name}, strict")
        arms = {"no guard": (), "guard": (guard,), "guard that closes": (replace(guard, stricter=None),)}
        if guard.stricter is None:
            del arms["guard that closes"]
        return {
            "n": len(prompts),
            "strict_accuracy": float(np.mean([one.score for one in strict])),
            "strict_tau": total([one.statistics for one in strict]).mean_accepted_length,
            "arms": {
                arm: described(self.decode(self.point, prompts, f"{name}, {arm}", guards), strict)
                for arm, guards in arms.items()
            },
        }

    def decode(
        self, point: Operating, prompts: Sequence[dict[str, Any]], title: str, guards: Sequence[DomainGuard] = ()
    ) -> list[Outcome]:
        """One arm."""
        gate = self.gate if point.head else None
        decoder = make_decoder(self.pair, point.as_method(), point.settings, point.block, gate=gate, guards=guards)
        return run_split(decoder, self.task, self.pair, prompts, self.params, title)


def described(loose: Sequence[Outcome], strict: Sequence[Outcome]) -> dict[str, Any]:
    """Accuracy against strict with its 90 % interval, tau, and how many requests were alarmed."""
    scores = [one.score for one in loose]
    counted = total([one.statistics for one in loose])
    alarmed = [one.statistics.extra.get("domain_rounds", 0) > 0 for one in loose]
    kinds = {
        name: float(np.mean([one.statistics.extra.get(f"domain_{name}", 0) > 0 for one in loose]))
        for name in ("far", "loose")
    }
    return {
        "accuracy": float(np.mean(scores)),
        "accuracy_difference": accuracy_difference(scores, [one.score for one in strict]).as_dict(),
        "mean_accepted_length": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
        "alarmed": float(np.mean(alarmed)),
        **kinds,
    }


def table(report: dict[str, Any]) -> str:
    """One line per arm and world."""
    lines = [f"{'world':9}{'arm':19}{'accuracy':>9}{'against strict':>27}{'tau':>7}{'alarmed':>9}"]
    for name, world in report["worlds"].items():
        lines.append(f"{name:9}{'strict':19}{world['strict_accuracy']:9.3f}{'':27}{world['strict_tau']:7.2f}")
        for arm, found in world["arms"].items():
            lost = found["accuracy_difference"]
            span = f"{100 * lost['mean']:+.1f} ({100 * lost['low']:+.1f} to {100 * lost['high']:+.1f})"
            tau, alarmed = found["mean_accepted_length"], found["alarmed"]
            lines.append(f"{name:9}{arm:19}{found['accuracy']:9.3f}{span:>27}{tau:7.2f}{100 * alarmed:8.1f}%")
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
