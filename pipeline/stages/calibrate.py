"""Find for every method and budget the loosest setting whose loss is certified.

    python -m pipeline.stages.calibrate free       all methods that need no gate
    python -m pipeline.stages.calibrate learned    all methods that ask a trained gate
    python -m pipeline.stages.calibrate fly        one method

Reads data/prompts and data/reference, writes <method>.json and <method>.csv below reports/calibration; the second file
has the outcome of every prompt at every tested setting. Studies calibrate other methods by `calibrate_all`.
Development prompts choose a few settings; these are decoded on the calibration prompts from strict to loose until one
fails the largest budget; with `calibrate.stop: lost` that one is left as soon as it is clear that it fails. Before
they are decoded, the look is recorded; a second look at the same prompts with another choice is refused
(docs/certificates.md). Decoded settings wait in a scratch folder under a fingerprint of everything that they depend
on: an interruption loses one setting at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gistgate.certificates import calibration as engine
from gistgate.certificates.bounds import Array, upper_bound
from gistgate.certificates.calibration import Finding, Method, Request
from gistgate.certificates.judged import level
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.search import Setting
from gistgate.core.files import write_json
from gistgate.lm_eval.prompts import Prompt
from pipeline.decode import REPORTS, calibration_file
from pipeline.outcomes import CORE, TOGETHER, Setup, Study, as_json, look_of, method_of, scope_of, write_records
from pipeline.params import Params, read_params
from pipeline.run import run, side_by_side

GROUPS = ("free", "learned")
"""Methods without a gate, and those that ask one."""


def main(group: str) -> None:
    params = read_params()
    make_folder(params, group)
    calibrate_all(params, methods_of(params, group))


def make_folder(params: Params, group: str) -> None:
    """The folder of a group, which the graph expects even where the group has no method."""
    if group in GROUPS:
        (params.reports / "calibration" / group).mkdir(parents=True, exist_ok=True)


def calibrate_all(
    params: Params,
    names: Sequence[str],
    reports: Path = REPORTS,
    study: Study = CORE,
    fresh: list[Prompt] | None = None,
) -> None:
    """Calibrate methods of `params` side by side for a study, or the core, and write their files below `reports`.

    `fresh` are calibration prompts in place of the run's, for claims of a study's own.
    """
    prepare = partial(calibrator, reports=reports, study=study, fresh=fresh)
    side_by_side(prepare, params, names, params.decoding.workers, "calibrate", "method")


def calibrator(
    params: Params, reports: Path = REPORTS, study: Study = CORE, fresh: list[Prompt] | None = None
) -> Callable[[str], None]:
    """Calibrates one method after another on the same pair and prompts."""
    setup = Setup(params, {} if fresh is None else {"calibration": fresh})

    def work(name: str) -> None:
        finding, report = calibrate(setup, name, study)
        path, prompts = calibration_file(params, name, reports), setup.prompts["calibration"]
        strict = setup.strict_scores("calibration").tolist()
        write_records(path.with_suffix(".csv"), finding.verdicts.tested, prompts, strict)
        write_json(path, report)
        print(f"{name}: {summary(report)}")

    return work


def methods_of(params: Params, group: str) -> list[str]:
    """The methods of the group `free` or `learned`, or the one of that name."""
    if group not in GROUPS:
        params.method(group)
        return [group]
    return [name for name, method in params.methods.items() if method.learned == (group == "learned")]


def calibrate(setup: Setup, name: str, study: Study = CORE) -> tuple[Finding, dict[str, Any]]:
    """What calibration of one method showed, and its file, which has no dates, so that equal runs give equal bytes.

    Raises:
        UserError: the calibration prompts were judged before with another choice.
    """
    params, method = setup.params, method_of(setup.params, name)
    outcomes = setup.outcomes(name, chunk_of(params, setup.pair.target.dtype))
    asked = [[prompt["ids"] for prompt in setup.prompts["calibration"]]] if "calibration" in setup.fresh else []
    request, scope = request_of(params), scope_of(params, name, setup.pair, setup.task, setup.gate(name), *asked)
    finding = engine.calibrate(method, outcomes, request, look_of(setup, name, study), scope)
    selection, verdicts = finding.selection, finding.verdicts
    confidence = request.confidence

    def measured(setting: Setting) -> dict[str, Any]:
        decoded = outcomes.decoded("development", method.settings(setting))
        return describe(method, setting, decoded, setup.strict_scores("development"), confidence)

    source = f"training documents of the task '{setup.task.name}'; certificates hold for prompts like these"
    report = {
        "method": name,
        "rule": method.rule,
        "drafter": method.drafter,
        "head": params.method(name).head,
        "block": method.block,
        "knob": method.knob,
        "confidence": confidence,
        "headline_budget": params.headline_budget,
        "sequence": [place(method, setting) for setting in selection.settings],
        "settings": [
            describe(method, setting, one.decoded, setup.strict_scores("calibration"), confidence)
            for setting, one in zip(selection.settings, verdicts.tested, strict=False)
        ],
        "development": [measured(setting) for setting in selection.measured],
        "budgets": {repr(budget): decide(finding, budget) for budget in verdicts.budgets},
        "proof": asdict(finding.certificate(setup.scorer.id, scope, source)),
        "looks": params.calibrate.looks,
        **as_json(setup.usage[name].total),
    }
    return finding, report


def request_of(params: Params) -> Request:
    """What params.yaml asks for."""
    block = params.calibrate
    return Request(
        budgets=tuple(sorted({*block.budgets, params.headline_budget})),
        confidence=level(block.confidence, block.looks),
        n=params.prompts.calibration,
        stop=params.calibrate.stop,
        settings=block.settings,
        evaluations=block.evaluations,
        reserve=block.reserve,
        headline=params.headline_budget,
    )


def chunk_of(params: Params, dtype: torch.dtype) -> int | None:
    """Prompts between two looks at whether a setting is lost; None where all are decoded in any case.

    Outside float32 they are the pieces of the stage `reference`, so that equal decisions give equal batches.
    """
    whole = params.calibrate.stop == "planned" and dtype == torch.float32
    return None if whole else TOGETHER * params.decoding.batch_size


def place(method: Method, setting: Setting) -> dict[str, Any]:
    """The knob, and all other settings of the rule."""
    return {"knob": setting.value, "fixed": {**method.fixed, **setting.variant}}


def describe(method: Method, setting: Setting, decoded: Decoded, strict: Array, confidence: float) -> dict[str, Any]:
    """One decoded setting: losses and gains are prompts, `loss` and the bounds are shares; `strict [N]` are scores.

    A setting that was left early has the first prompts alone.
    """
    d, counted = decoded.differences, decoded.counted
    strict = strict[: len(d)]
    bound = upper_bound(d, confidence)
    return {
        **place(method, setting),
        "n": bound.n,
        "losses": bound.losses,
        "gains": bound.gains,
        "loss": bound.mean,
        "bound": bound.value,
        "bound_kind": bound.kind,
        "harm": float(np.maximum(d, 0).mean()),
        "harm_bound": bound.harm,
        "accuracy": float((strict - d).mean()),
        "strict_accuracy": float(strict.mean()),
        **decoded.lengths,
        "mean_accepted_length": counted.mean_accepted_length,
        "loose_per_100": counted.loose_per_100,
        "statistics": counted.as_dict(timed=False),
    }


def decide(finding: Finding, budget: float) -> dict[str, Any]:
    """What one budget permits."""
    verdicts, bound = finding.verdicts, finding.verdicts.bound(budget)
    passed = verdicts.passed(budget)
    kept = None if passed is None else place(finding.method, finding.selection.settings[passed])
    return {
        "certified": passed is not None,
        "knob": kept and kept["knob"],
        "fixed": kept and kept["fixed"],
        "bound": bound.value,
        "bound_kind": bound.kind,
        "loss": bound.mean,
        "n": bound.n,
        "losses": bound.losses,
        "gains": bound.gains,
        "confidence": bound.confidence,
        **verdicts.shown(budget).decoded.lengths,
        "discordant": bound.discordant,
        "needed_n": verdicts.needed(budget),
        "refusal": verdicts.refusal(budget),
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
