"""Do certificates hold as often as they promise, and how many prompts does each bound need?

    python -m pipeline.studies.certify.coverage [folder]      -> coverage.json, coverage.png; default benchmarks/results

Outcomes are resampled, not decoded again: the recorded d = strict - loose of every calibrated setting and prompt of a
finished run is taken for the truth. One resampled calibration draws as many prompts with replacement, the same prompts
for all settings of a method. It tests the fixed sequence and asks whether the true loss of the certified setting is
below the budget; fresh prompts are drawn beside it. Settings behind the last recorded one are not tested.

Three kinds of worlds: `recorded` at the usual budgets and the headline budget; `recorded, at its loss`, where the
budget is the true loss of a setting, so that certifying it is an error; and `boundary`, made up, with a loss at the
budget and discordant pairs on 5 % of the prompts (more where the budget is larger): the hardest case, because any
certificate at all is an error. The headline number is the exact bound's on recorded outcomes at the headline budget, of
the method that has the lowest; the made-up boundary at that budget and the lowest of all recorded settings at their
loss, if any loses something, stand beside it. Where the first setting is at the boundary, the share that a sum over all
tables expects stands beside the exact bound's. Seeds stand in this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from scipy.stats import binomtest

from gistgate.certificates.betting import answer_at
from gistgate.certificates.bounds import EXACT
from gistgate.certificates.differences import expected_table, right_or_wrong, spread_out
from gistgate.certificates.planning import CERTIFIES, needed_prompts
from gistgate.certificates.tango import Array, p_value
from pipeline.common.code import write_result
from pipeline.common.entry import run
from pipeline.common.paths import BENCHMARK_RESULTS
from pipeline.params import Params, read_params
from pipeline.report.figures import save
from pipeline.studies.certify.coverage_figure import draw
from pipeline.studies.certify.error_rate import certified_probability
from pipeline.studies.certify.recorded import recorded_methods

RESAMPLES, SEED = 200, 20_260
LEVEL = 0.01
"""A share of holding certificates is refuted where it would come by chance this rarely."""
BUDGETS, DISCORDANCES = (0.01, 0.02, 0.03, 0.05), (0.02, 0.05, 0.1)
BOUNDARY_DISCORDANCE, BOUNDARY_PROMPTS = 0.05, 1000
LONGEST_WAGER = 4000
"""Prompts after which a wager without an answer ends."""
TINY = 1e-12
"""Rounding of a mean; a loss this close to the budget counts as beyond it."""


@dataclass(frozen=True)
class World:
    """A truth to calibrate in."""

    kind: str
    """One of the three kinds above."""
    method: str | None
    """Whose outcomes it has; None where they are made up."""
    budget: float
    """What is to be certified."""
    outcomes: Array
    """d of every setting, strict to loose, and prompt; its distribution is the truth [S, N]."""


def main(folder: Annotated[Path, typer.Argument(help="Where the results go.")] = BENCHMARK_RESULTS) -> None:
    params = read_params()
    confidence, headline = params.calibrate.confidence, params.headline_budget
    budgets = sorted({*BUDGETS, headline})
    cases = [examined(world, confidence) for world in worlds(params, budgets)]
    report = {
        **headlines(cases, headline),
        "confidence": confidence,
        "resamples": RESAMPLES,
        "seed": SEED,
        "level": LEVEL,
        "refuted": [named(case, bound) for case in cases for bound in CERTIFIES if case["bounds"][bound]["refuted"]],
        "issued": {bound: issued(cases, bound, confidence) for bound in CERTIFIES},
        "cases": cases,
        "needed_prompts": [planned(budget, rate, confidence) for budget in budgets for rate in DISCORDANCES],
        "early_stopping": [
            stopped(budget, loss, BOUNDARY_DISCORDANCE, confidence) for budget in budgets for loss in (0.0, 0.05)
        ],
    }
    figure = folder / "coverage.png"
    figure.parent.mkdir(parents=True, exist_ok=True)
    save(draw(report), figure)
    write_result(folder / "coverage.json", report, "pipeline.studies.certify.coverage", files=[figure])
    shares = (
        f"{report['share_holding']:.1%} of {RESAMPLES} hold, {report['boundary']['share_holding']:.1%} on the boundary"
    )
    print(f"{shares}; refuted: {report['refuted'] or 'none'}")


def headlines(cases: list[dict[str, Any]], budget: float) -> dict[str, Any]:
    """What the report begins with: the exact bound on recorded outcomes, then where any certificate is an error.

    Of methods that hold equally often the one counts whose strictest setting loses most.
    """
    at_budget = [case for case in cases if case["budget"] == budget]
    recorded = [case for case in at_budget if case["kind"] == "recorded"]
    exact = {case["method"]: case["bounds"][EXACT]["share_holding"] for case in recorded}
    lowest = min(recorded, key=lambda case: (exact[case["method"]], -case["true_losses"][0]))
    at_loss = min(
        (case for case in cases if case["kind"] == "recorded, at its loss"),
        key=lambda case: case["bounds"][EXACT]["share_holding"],
        default=None,
    )
    return {
        **entry(lowest),
        "bound": EXACT,
        "by_method": exact,
        "boundary": entry(next(case for case in at_budget if case["kind"] == "boundary")),
        "at_its_loss": at_loss and entry(at_loss),
    }


def entry(case: dict[str, Any]) -> dict[str, Any]:
    """What the exact bound showed in one world."""
    return {"world": case["kind"], "method": case["method"], "budget": case["budget"], **case["bounds"][EXACT]}


def worlds(params: Params, budgets: list[float]) -> Iterator[World]:
    """All truths that are calibrated in."""
    for budget in budgets:
        table = expected_table(budget, BOUNDARY_DISCORDANCE, BOUNDARY_PROMPTS)
        yield World("boundary", None, budget, spread_out(*table, BOUNDARY_PROMPTS)[None])
    for recorded in recorded_methods(params):
        for budget in budgets:
            yield World("recorded", recorded.method, budget, recorded.outcomes)
        for setting, loss in enumerate(recorded.losses):
            if loss > 0:
                yield World("recorded, at its loss", recorded.method, float(loss), recorded.outcomes[setting:])


def examined(world: World, confidence: float) -> dict[str, Any]:
    """What every bound certified in one world."""
    losses, n = world.outcomes.mean(-1), world.outcomes.shape[1]
    kept: dict[str, list[int | None]] = {bound: [] for bound in CERTIFIES}
    fresh_RS = []
    for resample in range(RESAMPLES):
        draws = np.random.default_rng([SEED, resample]).integers(n, size=(2, n))
        seen_SN, fresh_SN = world.outcomes[:, draws[0]], world.outcomes[:, draws[1]]
        fresh_RS.append(fresh_SN.mean(-1))
        for bound in CERTIFIES:
            kept[bound].append(loosest(bound, seen_SN, world.budget, confidence))
    bounds = {bound: counted(settings, losses, fresh_RS, world.budget, confidence) for bound, settings in kept.items()}
    if losses[0] >= world.budget - TINY and right_or_wrong(world.outcomes):
        expected = 1 - certified_probability(world.outcomes[0], world.budget, confidence)
        bounds[EXACT]["expected_share_holding"] = round(expected, 6)
    return {
        "kind": world.kind,
        "method": world.method,
        "budget": world.budget,
        "true_losses": losses.tolist(),
        "bounds": bounds,
    }


def loosest(bound: str, outcomes_SN: Array, budget: float, confidence: float) -> int | None:
    """The setting that one calibration certifies by fixed-sequence testing; None without one."""
    passed = sum(1 for _ in takewhile(lambda d: CERTIFIES[bound](d, budget, confidence), outcomes_SN))
    return passed - 1 if passed else None


def counted(
    kept: list[int | None], losses: Array, fresh_RS: list[Array], budget: float, confidence: float
) -> dict[str, Any]:
    """How many calibrations claimed nothing false: no certificate, or one of a setting whose true loss is below."""
    certified = [(turn, setting) for turn, setting in enumerate(kept) if setting is not None]
    false = sum(losses[setting] >= budget - TINY for _, setting in certified)
    test = binomtest(RESAMPLES - int(false), RESAMPLES, confidence, alternative="less")
    fresh = [float(fresh_RS[turn][setting]) for turn, setting in certified]
    return {
        "share_holding": test.statistic,
        "p_value": float(test.pvalue),
        "refuted": bool(test.pvalue < LEVEL),
        "certified": len(certified),
        "fresh_loss": float(np.mean(fresh)) if fresh else None,
    }


def issued(cases: list[dict[str, Any]], bound: str, confidence: float) -> dict[str, Any]:
    """Certificates that a bound gave in the recorded worlds at the usual budgets, and how many of these are true.

    Worlds without a permitted setting can only give false ones, so no theorem promises this share to reach the
    confidence; it is what somebody finds who collects certificates.
    """
    found = [case["bounds"][bound] for case in cases if case["kind"] == "recorded"]
    given = sum(entry["certified"] for entry in found)
    false = sum(round(RESAMPLES * (1 - entry["share_holding"])) for entry in found)
    test = binomtest(given - false, given, confidence, alternative="less") if given else None
    return {"certificates": given, "true": given - false, "p_value": float(test.pvalue) if test else 1.0}


def planned(budget: float, discordance: float, confidence: float) -> dict[str, Any]:
    """The plan of every bound where looseness costs nothing, and how often it and its double certify then."""
    needed = needed_prompts(budget, confidence, discordance)
    shares = {
        name: {
            bound: certified_share(bound, times * n, budget, discordance, confidence)
            for bound, n in needed.items()
            if n
        }
        for name, times in (("certified_share", 1), ("certified_share_of_double", 2))
    }
    return {"budget": budget, "discordance": discordance, "prompts": needed, **shares}


def certified_share(bound: str, n: int, budget: float, discordance: float, confidence: float) -> float:
    """Share of calibrations of n prompts that certify, in a world whose true loss is 0."""
    passed = 0
    for resample in range(RESAMPLES):
        d = drawn(0.0, discordance, n, resample)
        if bound == EXACT:  # the p-value alone decides as the bound does, and is quicker
            passed += p_value(int((d > 0).sum()), int((d < 0).sum()), n, budget) <= 1 - confidence
        else:
            passed += CERTIFIES[bound](d, budget, confidence)
    return passed / RESAMPLES


def stopped(budget: float, loss: float, discordance: float, confidence: float) -> dict[str, Any]:
    """When a wager answers in a world with this loss."""
    worlds_RN = (drawn(loss, discordance, LONGEST_WAGER, resample) for resample in range(RESAMPLES))
    answers = [answer_at(d, budget, confidence) for d in worlds_RN]
    return {
        "budget": budget,
        "loss": loss,
        "discordance": discordance,
        "share": {name: sum(answer == name for answer, _ in answers) / RESAMPLES for name in ("within", "beyond")},
        "prompts": dict(zip(("low", "median", "high"), np.quantile([n for _, n in answers], (0.1, 0.5, 0.9)).tolist())),
    }


def drawn(loss: float, discordance: float, n: int, resample: int) -> Array:
    """Differences [N] of a made-up world."""
    rates = [(discordance + loss) / 2, 1 - discordance, (discordance - loss) / 2]
    return np.random.default_rng([SEED, resample, n]).choice([1.0, 0.0, -1.0], n, p=rates)


def named(case: dict[str, Any], bound: str) -> str:
    """A case in words."""
    return f"{bound}, {case['kind']}, {case['method'] or 'made up'}, budget {case['budget']:g}"


if __name__ == "__main__":
    run(main, kept=False)
