"""Find for a method and every budget the loosest setting whose loss is certified
(docs/certificates.md): `python -m pipeline.stages.calibrate fly` writes
reports/calibration/fly.json, without dates, so that equal runs give equal bytes, and fly.csv, the
outcome of every prompt at every tested setting."""

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
from pipeline.decode import load_gate
from pipeline.outcomes import SPLITS, Setup, chunk_of, look_of, method_of, scope_of, write_records
from pipeline.params import Params, read_params
from pipeline.paths import calibration_file
from pipeline.run import run


def main(name: str) -> None:
    params = read_params()
    setup = Setup(params)
    method = method_of(params, name)
    request = request_of(params)
    outcomes = setup.outcomes(name, chunk_of(params, setup.pair.target.dtype))
    scope = scope_of(
        params, name, setup.pair, setup.task, load_gate(params.method(name), setup.pair)
    )
    look = look_of(setup, name)
    finding = engine.calibrate(method, outcomes, request, look, scope, Ledger())
    selection = finding.selection
    verdicts = finding.verdicts
    confidence = request.confidence
    known = setup.reference
    scores = {
        split: np.array([known[one["id"]]["score"] for one in setup.prompts[split]], float)
        for split in SPLITS
    }

    def described(split: str, setting: Setting, decoded: Decoded) -> dict[str, Any]:
        return describe(method, setting, decoded, scores[split], confidence)

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
        "confidence": confidence,
        "headline_budget": params.headline_budget,
        "sequence": [place(method, setting) for setting in selection.settings],
        "settings": [
            described("calibration", setting, one.decoded)
            for setting, one in zip(selection.settings, verdicts.tested, strict=False)
        ],
        "development": [
            described("development", one, outcomes.decoded("development", method.settings(one)))
            for one in selection.measured
        ],
        "budgets": {repr(budget): decide(finding, budget) for budget in verdicts.budgets},
        "proof": asdict(finding.certificate(setup.scorer.id, scope, source)),
        "looks": params.calibrate.looks,
    }
    path = calibration_file(name)
    prompts = setup.prompts["calibration"]
    write_records(
        path.with_suffix(".csv"), verdicts.tested, prompts, scores["calibration"].tolist()
    )
    write_json(path, report)
    print(f"{name}: {summary(report)}")


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
        growth=block.growth,
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
    bound = finding.verdicts.bound(budget)
    passed = verdicts.passed(budget)
    kept = None if passed is None else place(finding.method, finding.selection.settings[passed])
    return {
        "certified": passed is not None,
        "knob": kept and kept["knob"],
        "fixed": kept and kept["fixed"],
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
    for budget, found in report["budgets"].items():
        knob = "" if report["knob"] is None else f" at {report['knob']} {found['knob']}"
        at = f"certified{knob}" if found["certified"] else "refused"
        parts.append(f"{float(budget):.0%} {at} (bound {found['bound']:.2%})")
    return "; ".join(parts)


if __name__ == "__main__":
    run(main)
