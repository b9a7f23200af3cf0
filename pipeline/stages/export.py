"""The headline gate as a folder that decodes with plain transformers, registered as a model.

    python -m pipeline.stages.export     models/heads/<head>, reports/calibration/learned/<method>.json -> models/export

The method is the learned one that asks `train.headline_head`. Equal inputs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from gistgate.core.certificate import Certificate, certificate_from
from gistgate.core.files import read_json, write_atomic, write_json
from gistgate.core.gate import Gate
from gistgate.core.guards import CLOSED, DomainGuard
from gistgate.core.identity import gate_hash
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.export.write import write_code
from gistgate.lm_eval.task import Task
from gistgate.measure.statistics import accuracy_difference
from pipeline.decode import (
    Operating,
    Outcome,
    calibration_file,
    gate_folder,
    load_gate,
    make_decoder,
    operating_point,
    read_prompts,
    run_split,
)
from pipeline.heads.guard import NothingToGuardError, fit_domain, save, saved_for
from pipeline.pair.pair import Pair, load_pair
from pipeline.pair.world import documents
from pipeline.params import Params, read_params
from pipeline.paths import EXPORT
from pipeline.report.card import card, evaluations
from pipeline.run import run
from pipeline.tasks import load_task
from pipeline.tracking import register_gate

# isort: split

Report = dict[str, Any]
"""reports/calibration/learned/<method>.json."""


def main() -> None:
    params = read_params()
    name = exported_method(params)
    report = read_json(calibration_file(params, name))
    gate = Gate.load(gate_folder(params.train.headline_head))
    certificate = proof_for(gate, report)
    text = card(gate.config, certificate, report, evaluations(name))
    write_atomic(EXPORT, lambda part: write_folder(gate, certificate, text, part))
    version = register_gate(params, EXPORT, metrics(certificate))
    print(f"{EXPORT}: {describe(certificate)}" + (f"; registered as version {version}" if version else ""))


def exported_method(params: Params) -> str:
    """The calibrated method that asks the headline head; the first of several.

    Raises:
        UserError: there is none.
    """
    head = params.train.headline_head
    for name, method in params.methods.items():
        if method.head == head and method.knob is not None:
            return name
    raise UserError(
        f"No method of params.yaml asks the head '{head}', so nothing is calibrated for it. Add one under "
        "'methods.learned', or change 'train.headline_head'."
    )


def proof_for(gate: Gate, report: Report) -> Certificate:
    """What the calibration of a method proves for the gate.

    Raises:
        UserError: the calibration is another gate's.
    """
    certificate = certificate_from(report["proof"])
    if certificate.scope["gate"] != gate_hash(gate):
        raise UserError(
            f"The calibration of '{report['method']}' was made with other weights than the gate's. "
            "Run the stage `calibrate_learned` again."
        )
    return certificate


def write_folder(gate: Gate, certificate: Certificate, text: str, folder: Path) -> None:
    """The whole export."""
    gate.save(folder, card=text)
    certificate.save(folder)
    if (guard := saved_for(gate)) is not None:
        guard.save(folder)
    write_code(folder)


def metrics(certificate: Certificate) -> dict[str, Any]:
    """What the registered version shows: bound, knob and mean accepted length of every certified budget."""
    return {
        f"budget_{point.budget:g}": {
            "bound": point.bound, "knob": point.settings[certificate.knob or ""], "tau": point.mean_accepted_length
        }
        for point in certificate.certified
    }  # fmt: skip


def describe(certificate: Certificate) -> str:
    """A line for the terminal."""
    points = [f"{point.budget:.0%} at {point.settings[certificate.knob or '']:g}" for point in certificate.certified]
    return "; ".join(points) or "nothing certified, decodes strictly"


if __name__ == "__main__":
    run(main)

# ---- Measure what looseness costs on prompts unlike the prompts as usual, without a guard and with a guard.


REPORT = Path("reports/domain.json")
PROMPTS = 600
"""Prompts of each world, enough for an interval of about two points each way."""


def main_domain(goal: Annotated[str | None, typer.Argument()] = None) -> None:
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
        write_json(REPORT, report)
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
    run(main_domain)
