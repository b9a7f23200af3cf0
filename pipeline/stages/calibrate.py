"""Find for every method and budget the loosest setting whose loss is certified.

    python -m pipeline.stages.calibrate free       all methods that need no gate
    python -m pipeline.stages.calibrate learned    all methods that ask a trained gate
    python -m pipeline.stages.calibrate fly        one method
    python -m pipeline.stages.calibrate table-free, table-learned      what only the large table compares
    python -m pipeline.stages.calibrate speed      the methods of `speed.blocks`, each at its own K

Reads data/prompts and data/reference, writes <method>.json below reports/calibration, reports/table/calibration or
reports/speed.
Development prompts choose a few settings; these are decoded on the calibration prompts from strict to loose until one
fails the largest budget. Decoded settings wait in a scratch folder under a fingerprint of all they depend on: an
interruption loses one at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.common.entry import item, run  # first: it sets the environment that the libraries read at import

# isort: split
import numpy as np

from gistgate.certificates.bounds import upper_bound
from gistgate.certificates.fixed_sequence import Verdict, fixed_sequence
from gistgate.certificates.search import Aims, Choice, Setting, choose_settings
from gistgate.files import write_json
from pipeline.certification.outcomes import Arm, Bench, Run
from pipeline.common.operating_point import OWN_REPORTS, REPORTS, calibration_file
from pipeline.common.pool import side_by_side
from pipeline.common.scope import scope_of
from pipeline.params import MethodParams, Params, read_params

GROUPS = {"free": (False, False), "learned": (False, True), "table-free": (True, False), "table-learned": (True, True)}
"""Names of the groups: whether only the large table has their methods, and whether these are learned."""


OWN_K = "speed"
"""The group of methods at their own K."""


def main() -> None:
    params, group = read_params(), item()
    if group == OWN_K:
        params, reports = params.at_own_blocks(), OWN_REPORTS
        names = list(params.methods)
    else:
        params, reports = params if group in params.methods else params.with_table(), REPORTS
        names = methods_of(params, group)
    prepare = partial(calibrator, reports=reports)
    side_by_side(prepare, params, names, params.decoding.workers, "calibrate", "method")


def calibrator(params: Params, reports: Path = REPORTS) -> Callable[[str], None]:
    """Calibrates one method after another on the same pair and prompts."""
    bench = Bench(params)

    def work(name: str) -> None:
        report = calibrate(Arm(bench, name))
        write_json(calibration_file(params, name, reports), report)
        print(f"{name}: {summary(report)}")

    return work


def methods_of(params: Params, group: str) -> list[str]:
    """The methods of a group, or the one of that name."""
    if group not in GROUPS:
        params.method(group)
        return [group]
    return [name for name, method in params.methods.items() if (method.extra, method.learned) == GROUPS[group]]


def calibrate(arm: Arm) -> dict[str, Any]:
    """The calibration file of one method, without dates, so that equal runs give equal bytes."""
    params, method = arm.params, arm.method
    choice = choose(arm)
    tested = test_sequence(arm, choice.settings)
    differences = [run.differences for run in tested]
    confidence = params.calibrate.confidence
    verdicts = [fixed_sequence(differences, budget, confidence) for budget in budgets(params)]
    return {
        "method": arm.name,
        "rule": method.rule,
        "drafter": method.drafter,
        "head": method.head,
        "block": params.block_of(arm.name),
        "knob": method.knob,
        "confidence": confidence,
        "headline_budget": params.headline_budget,
        "sequence": [place(method, setting) for setting in choice.settings],
        "settings": [describe(method, run, confidence) for run in tested],
        "development": [describe(method, arm.run("development", setting), confidence) for setting in choice.measured],
        "budgets": {f"{verdict.budget:g}": decide(method, verdict, tested) for verdict in verdicts},
        "scope": scope_of(params, arm.name, arm.bench.pair, arm.bench.task, arm.gate),
        "source": f"training documents of the task '{arm.bench.task.name}'; certificates hold for prompts like these",
    }


def choose(arm: Arm) -> Choice:
    """The settings to test, by development prompts; a rule without a knob has but one."""
    if arm.method.knob is None:
        return Choice([Setting(None, arm.method.variants[0])], [])
    return choose_settings(
        arm.method.grid,
        arm.method.variants,
        lambda setting: arm.run("development", setting).measured,
        aims(arm.params),
    )


def budgets(params: Params) -> list[float]:
    """All budgets, small to large; the headline is one of them."""
    return sorted({*params.calibrate.budgets, params.headline_budget})


def aims(params: Params) -> Aims:
    """What the settings of every method are chosen for."""
    block = params.calibrate
    return Aims(
        budgets(params), params.headline_budget, params.prompts.calibration, block.confidence,
        block.settings, block.evaluations, block.reserve,
    )  # fmt: skip


def test_sequence(arm: Arm, settings: Sequence[Setting]) -> list[Run]:
    """Decode the calibration prompts from strict to loose, up to the first setting that fails the largest budget."""
    tested: list[Run] = []
    for setting in settings:
        tested.append(arm.run("calibration", setting))
        bound = upper_bound(tested[-1].differences, arm.params.calibrate.confidence)
        if not bound.within(max(budgets(arm.params))):
            break
    return tested


def place(method: MethodParams, setting: Setting) -> dict[str, Any]:
    """The knob, and all other settings of the rule."""
    return {"knob": setting.value, "fixed": {**method.fixed, **setting.variant}}


def describe(method: MethodParams, run: Run, confidence: float) -> dict[str, Any]:
    """One decoded setting: losses and gains are prompts, `loss` and the bounds shares."""
    bound, counted = upper_bound(run.differences, confidence), run.statistics
    return {
        **place(method, run.setting),
        "n": bound.n,
        "losses": bound.losses,
        "gains": bound.gains,
        "loss": bound.mean,
        "bound": bound.value,
        "bound_kind": bound.kind,
        "harm": float(np.maximum(run.differences, 0).mean()),
        "harm_bound": bound.harm,
        "accuracy": float(run.loose.mean()),
        "strict_accuracy": float(run.strict.mean()),
        "mean_accepted_length": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
        "statistics": counted.as_dict(timed=False),
    }


def decide(method: MethodParams, verdict: Verdict, tested: Sequence[Run]) -> dict[str, Any]:
    """What one budget permits."""
    bound = verdict.bound
    assert bound is not None
    kept = None if verdict.passed is None else place(method, tested[verdict.passed].setting)
    return {
        "certified": verdict.certified,
        "knob": kept and kept["knob"],
        "fixed": kept and kept["fixed"],
        "bound": bound.value,
        "bound_kind": bound.kind,
        "loss": bound.mean,
        "n": bound.n,
        "discordant": bound.discordant,
        "needed_n": verdict.needed_n,
        "refusal": verdict.refusal,
    }


def summary(report: dict[str, Any]) -> str:
    """A line for the terminal."""
    parts = []
    for budget, found in report["budgets"].items():
        knob = "" if report["knob"] is None else f" at {report['knob']} {found['knob']}"
        at = f"certified{knob}" if found["certified"] else "refused"
        parts.append(f"{float(budget):.0%} {at} (bound {found['bound']:.2%})")
    return "; ".join(parts)


if __name__ == "__main__":
    run(main)
