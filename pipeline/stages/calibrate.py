"""Find for every method and budget the loosest setting whose loss is certified.

    python -m pipeline.stages.calibrate free       all methods that need no gate
    python -m pipeline.stages.calibrate learned    all methods that ask a trained gate
    python -m pipeline.stages.calibrate fly        one method

Reads data/prompts and data/reference, writes <method>.json below reports/calibration. Studies calibrate other methods
by `calibrate_all`.
Development prompts choose a few settings; these are decoded on the calibration prompts from strict to loose until one
fails the largest budget. Decoded settings wait in a scratch folder under a fingerprint of all they depend on: an
interruption loses one at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gistgate.certificates.bounds import upper_bound
from gistgate.certificates.fixed_sequence import Verdict, fixed_sequence
from gistgate.certificates.search import Aims, Choice, Setting, choose_settings
from gistgate.files import write_json
from pipeline.certification.outcomes import Arm, Bench, Run
from pipeline.common.entry import run
from pipeline.common.operating_point import REPORTS, calibration_file
from pipeline.common.pool import side_by_side
from pipeline.common.scope import binding_of
from pipeline.params import MethodParams, Params, read_params


def main(group: str) -> None:
    params = read_params()
    calibrate_all(params, methods_of(params, group))


def calibrate_all(params: Params, names: Sequence[str], reports: Path = REPORTS) -> None:
    """Calibrate methods of `params` side by side and write their files below `reports`."""
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
    """The methods of the group `free` or `learned`, or the one of that name."""
    if group not in ("free", "learned"):
        params.method(group)
        return [group]
    return [name for name, method in params.methods.items() if method.learned == (group == "learned")]


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
        "binding": binding_of(params, arm.name, arm.bench.pair, arm.bench.task, arm.gate),
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
