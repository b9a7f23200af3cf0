"""Find for a method and every budget the loosest setting whose loss is certified
(docs/certificates.md): `python -m pipeline.stages.calibrate fly` writes
reports/calibration/fly.json, without dates, so that equal runs give equal bytes, and the records of
every tested setting to reports/records/fly.
"""

import shutil
from dataclasses import asdict
from typing import Any

import numpy as np

from gistgate.certificates import calibration as engine
from gistgate.certificates.bounds import Array, upper_bound
from gistgate.certificates.calibration import Finding, Method, Request
from gistgate.certificates.ledger import Ledger, level
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.search import Setting
from gistgate.core.files import write_json
from pipeline.outcomes import Setup, chunk_of, look_of, method_of, scope_of
from pipeline.params import Params, read_params
from pipeline.paths import SCRATCH, calibration_file, records_folder
from pipeline.records import write_records
from pipeline.run import run


def main(name: str) -> None:
    params = read_params()
    setup = Setup(params)
    method = method_of(params, name)
    request = request_of(params)
    scratch = SCRATCH / f"calibrate-{name}"
    outcomes = setup.outcomes(name, scratch, chunk_of(params, name, setup.pair.target.dtype))
    scope = scope_of(params, name, setup.pair, setup.task)
    look = look_of(setup, name)
    finding = engine.calibrate(method, outcomes, request, look, scope, Ledger())
    settings = finding.selection.settings
    tested = finding.verdicts.tested

    def described(
        split: str,
        setting: Setting,
        decoded: Decoded,
    ) -> dict[str, Any]:
        strict = np.array([row["score"] for row in setup.strict_rows(setup.prompts[split])], float)
        return describe(method, setting, decoded, strict, request.confidence)

    source = (
        f"training documents of the task '{setup.task.name}'; certificates hold for prompts like"
        " these"
    )
    report = {
        "method": name,
        "rule": method.rule,
        "drafter": method.drafter,
        "head": params.method(name).head,
        "block": method.block,
        "knob": method.knob,
        "confidence": request.confidence,
        "headline_budget": params.headline_budget,
        "sequence": [place(method, setting) for setting in settings],
        "settings": [
            described("calibration", setting, test.decoded)
            for setting, test in zip(settings, tested)
        ],
        "development": [
            described(
                "development", setting, outcomes.decoded("development", method.settings(setting))
            )
            for setting in finding.selection.measured
        ],
        "budgets": {repr(budget): decide(finding, budget) for budget in request.budgets},
        "proof": asdict(finding.certificate(setup.scorer.id, scope, source)),
        "looks": params.calibrate.looks,
    }
    write_records(records_folder(name), setup, finding, scope)
    write_json(calibration_file(name), report)
    shutil.rmtree(scratch, ignore_errors=True)
    print(f"{name}: {summary(report)}")


def request_of(params: Params) -> Request:
    """What params.yaml asks for."""
    block = params.calibrate
    return Request(
        budgets=tuple(sorted({*block.budgets, params.headline_budget})),
        confidence=level(block.confidence, block.looks),
        n=params.prompts.calibration,
        stop=block.stop,
        settings=block.settings,
        evaluations=block.evaluations,
        reserve=block.reserve,
        growth=block.growth,
        fluency=block.fluency,
        headline=params.headline_budget,
    )


def place(method: Method, setting: Setting) -> dict[str, Any]:
    """The knob, and all other settings of the rule."""
    return {"knob": setting.value, "fixed": {**method.fixed, **setting.variant}}


def describe(
    method: Method, setting: Setting, decoded: Decoded, strict: Array, confidence: float
) -> dict[str, Any]:
    """One decoded setting: losses and gains are prompts, `loss` and the bounds are shares; `strict
    [N]` are scores.
    """
    d = decoded.differences
    counted = decoded.counted
    strict = strict[: len(d)]  # a setting that was left early has the first prompts alone
    bound = upper_bound(d, confidence)
    return {
        **place(method, setting),
        **bound.entries,
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
    verdicts = finding.verdicts
    bound = verdicts.bound(budget)
    passed = verdicts.passed(budget)
    certified = passed is not None
    loosest = finding.selection.settings[passed or 0]
    setting = place(finding.method, loosest) if certified else {"knob": None, "fixed": None}
    return {
        "certified": certified,
        **setting,
        **bound.entries,
        "confidence": bound.confidence,
        **verdicts.shown(budget).decoded.lengths,
        "discordant": bound.discordant,
        "needed_n": verdicts.needed(budget),
        "refusal": verdicts.refusal(budget),
    }


def summary(report: dict[str, Any]) -> str:
    """A line for the terminal."""
    parts = []
    for budget, entry in report["budgets"].items():
        knob = f" at {report['knob']} {entry['knob']}" if report["knob"] else ""
        verdict = f"certified{knob}" if entry["certified"] else "refused"
        parts.append(f"{float(budget):.0%} {verdict} (bound {entry['bound']:.2%})")
    return "; ".join(parts)


if __name__ == "__main__":
    run(main)
