"""Certify small budgets for the preselected gate and the best rules without training: `make certify`.

    python -m pipeline.studies.certify.certify autojudge     one method -> reports/certify/<method>.json
    python -m pipeline.studies.certify.certify summary       all of them side by side -> reports/certify/summary.json

Every budget that is kept has its certificate.json in reports/certify/<method>/<budget>, for `--certificate`.

On the embedded world the calibration prompts are new problems, on any other task its unused training documents.
Settings are chosen on the run's development and calibration prompts, none of which certifies anything here: small
budgets want more prompts to choose on. All methods share K (`certify.block`) and prompts, so that their mean accepted
lengths can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gistgate.certificates.calibration import Finding, Method, Request, calibrate
from gistgate.certificates.certificate import Proof
from gistgate.certificates.looks import level
from gistgate.certificates.outcomes import Outcomes
from gistgate.certificates.planning import check_possible, plan_sentence
from gistgate.certificates.scores import Ids
from gistgate.errors import UserError
from gistgate.files import read_json, write_atomic, write_json
from gistgate.integrations.lm_eval.prompts import Prompt
from pipeline.certification.further import new_prompts
from pipeline.certification.looks import looks_of
from pipeline.certification.outcomes import Setup, method_of
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.common.scope import scope_of
from pipeline.params import MethodParams, Params
from pipeline.studies.certify.params import read_certify_params
from pipeline.studies.table.params import table_params
from pipeline.studies.table.study import table_study

REPORTS = Path("reports/certify")
STUDY, MODULE = "certify", "pipeline.studies.certify.certify"
RESAMPLES = 2000
SOURCE = "problems of the task that no other stage uses; the certificate holds for prompts like these"


def main(name: str) -> None:
    params = table_params()
    if name == "summary":
        write_json(REPORTS / "summary.json", summary(params))
        return
    torch.set_grad_enabled(False)
    report, kept = certify(params, name)
    write_json(REPORTS / f"{name}.json", report)
    write_atomic(REPORTS / name, lambda part: save_all(kept, part))
    for budget, found in report["budgets"].items():
        verdict = found["refusal"] or f"{found['settings']}, bound {found['bound']:.2%}"
        print(f"{name}, {float(budget):.0%}: {verdict}")


def save_all(kept: dict[float, Proof], folder: Path) -> None:
    """A folder per certified budget; none where nothing was certified."""
    folder.mkdir(parents=True)
    for budget, one in kept.items():
        one.save(folder / repr(budget))


def certify(params: Params, name: str) -> tuple[dict[str, Any], dict[float, Proof]]:
    """What one method may do within each budget, with counts of every prompt, and the proofs of what is certified."""
    request = request_of(params)
    for budget in request.budgets:
        print(plan_sentence(budget, request.confidence, request.n))
        check_possible(budget, request.confidence, request.n)
    setup = setup_of(params)
    outcomes, method = outcomes_of(setup, name)
    asked = [prompt["ids"] for prompt in setup.prompts["calibration"]]
    scope = scope_of(setup.params, name, setup.pair, setup.task, setup.gate(name), asked)
    looks = looks_of(setup, name, table_study(STUDY, asdict(read_certify_params()), (MODULE,)))
    look = looks.before(method, request, setup.scorer.ternary, scope)
    finding = calibrate(method, outcomes, request, look)
    certified = [budget for budget in request.budgets if finding.verdicts.passed(budget) is not None]
    made = datetime.now(UTC).date().isoformat()
    kept = {budget: finding.proof(setup.scorer.id, scope, SOURCE, [budget], made) for budget in certified}
    found = {repr(budget): entry(finding, budget) for budget in request.budgets}
    about = {"method": name, "learned": params.method(name).learned, "block": method.block}
    return {**about, "looks": params.calibrate.looks, "look": look.record, "budgets": found}, kept


def entry(finding: Finding, budget: float) -> dict[str, Any]:
    """One budget: what was certified, or why nothing was."""
    refusal = finding.verdicts.refusal(budget)
    if refusal is not None:
        return {"refusal": refusal, "rounds": None}
    point, decoded = finding.point(budget), finding.verdicts.shown(budget).decoded
    return {
        **asdict(point),
        "block": finding.method.block,
        "discordant": point.losses + point.gains,
        **decoded.lengths,
        "rounds": [[one.tokens, one.forwards] for one in decoded.statistics],
    }


def request_of(params: Params) -> Request:
    """The request that params.yaml makes."""
    own, common = read_certify_params(), params.calibrate
    return Request(
        budgets=tuple(sorted(own.budgets)),
        confidence=level(common.confidence, common.looks),
        n=own.prompts,
        stop="lost",
        settings=common.settings,
        evaluations=common.evaluations + 1,
        reserve=common.reserve,
    )


def setup_of(params: Params) -> Setup:
    """The prompts of this stage, every method at the K that they share."""
    methods = {name: replace(method, block=read_certify_params().block) for name, method in params.methods.items()}
    choosing = read_prompts("development") + read_prompts("calibration")
    prompts = {"development": choosing, "calibration": calibration_prompts(params)}
    return Setup(replace(params, methods=methods), prompts)


def outcomes_of(setup: Setup, name: str) -> tuple[Outcomes, Method]:
    """A method against strict decoding at the same K and with the same drafter."""
    method = method_of(setup.params, name)
    strict = MethodParams("exact", drafter=method.drafter)
    reader = setup.loose("exact", strict, method.block)
    loose = setup.loose(name, setup.params.method(name), method.block)

    def strict_answers(prompts: Sequence[Prompt], start: int) -> list[Ids]:
        return [answer.ids for answer in reader({}, prompts, start)]

    return Outcomes(setup.prompts, setup.scorer, strict_answers, loose), method


def calibration_prompts(params: Params) -> list[Prompt]:
    """As many prompts as `certify.prompts` asks for.

    Raises:
        UserError: the task has fewer unused documents.
    """
    size, draw = read_certify_params().prompts, params.prompts.draw
    prompts = new_prompts(params, size, "certify", draw)
    if len(prompts) < size:
        raise UserError(
            f"certify.prompts asks for {size} prompts, but draw {draw} of the task '{params.task}' has only "
            f"{len(prompts)} unused ones. Lower certify.prompts or prompts.draw."
        )
    return prompts


def summary(params: Params) -> dict[str, Any]:
    """All methods at each budget, and how far the gate is ahead of the best rule without training."""
    reports = {name: read_json(REPORTS / f"{name}.json") for name in read_certify_params().methods}
    return {repr(budget): compared(reports, repr(budget)) for budget in sorted(read_certify_params().budgets)}


def compared(reports: dict[str, dict[str, Any]], budget: str) -> dict[str, Any]:
    """Mean accepted lengths at one budget, and the ratio with its interval over prompts."""
    rows = {name: report["budgets"][budget] for name, report in reports.items()}
    kept = {name: row for name, row in rows.items() if row["refusal"] is None}
    line = {name: shown(row) for name, row in rows.items()}
    tau = {name: row["mean_accepted_length"] for name, row in kept.items()}
    learned = max((name for name in kept if reports[name]["learned"]), key=tau.__getitem__, default=None)
    free = max((name for name in kept if not reports[name]["learned"]), key=tau.__getitem__, default=None)
    if learned is None or free is None:
        return {"methods": line, "ratio": None}
    interval = ratio_interval(kept[learned]["rounds"], kept[free]["rounds"])
    ratio = {"learned": learned, "free": free, "value": tau[learned] / tau[free], "interval": interval}
    return {"methods": line, "ratio": ratio}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """What the summary keeps of a method at a budget."""
    if row["refusal"] is not None:
        return {"certified": False, "refusal": row["refusal"]}
    names = (
        "settings", "block", "confidence", "n", "losses", "gains", "loss", "bound", "bound_kind", "harm", "harm_bound",
        "discordant", "mean_accepted_length", "mean_tokens", "strict_mean_tokens", "capped", "strict_capped",
    )  # fmt: skip
    return {"certified": True, **{name: row[name] for name in names if name in row}}


def ratio_interval(learned: list[list[int]], free: list[list[int]], seed: int = 0) -> list[float]:
    """95 % bootstrap interval of the ratio of mean accepted lengths, over the prompts that both decoded."""
    n = min(len(learned), len(free))
    counts = np.array([learned[:n], free[:n]], float)  # [2, N, (tokens, forwards)]
    draws = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    sums = np.stack([counts[:, draw].sum(1) for draw in draws])
    ratios = (sums[:, 0, 0] / sums[:, 0, 1]) / (sums[:, 1, 0] / sums[:, 1, 1])
    return [float(q) for q in np.quantile(ratios, (0.025, 0.975))]


if __name__ == "__main__":
    run(main)
