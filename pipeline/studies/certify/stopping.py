"""Do certificates hold that stop early, and those of scores that are not right or wrong?

    python -m pipeline.studies.certify.stopping [folder]      -> coverage-stopping.json; default benchmarks/results

`gistgate.certificates.fixed_sequence.try_setting`, which `gistgate calibrate` calls for each setting, runs on made-up
prompts in chunks of its usual size, once for every `--stop`. On the boundary the true loss is the budget, so any
certificate is an error; a share of holding certificates is refuted as in `pipeline.studies.certify.coverage`. Two more
worlds, without a loss and with a loss of 5 %, show how often a setting is certified and how many prompts that takes.
Nothing is decoded; the seeds stand in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer
from scipy.stats import binomtest

from gistgate.certificates.fixed_sequence import Stop, Tested, try_setting
from gistgate.certificates.outcomes import CHUNK, Decoded
from gistgate.certificates.tango import Array
from pipeline.common.code import write_result
from pipeline.common.entry import run
from pipeline.common.paths import BENCHMARK_RESULTS
from pipeline.params import read_params
from pipeline.studies.certify.coverage import LEVEL, RESAMPLES, SEED

PROMPTS, BUDGETS, DISCORDANCE = 1000, (0.01, 0.02, 0.03), 0.05
TIMED = 50
"""Draws that stopping is timed on."""
LOSSES = {"kept": 0.0, "lost": 0.05}
"""True losses of the worlds in which stopping is timed."""


def right_or_wrong(loss: float, rng: np.random.Generator) -> Array:
    """Answers that differ on 5 % of the prompts."""
    rates = [(DISCORDANCE + loss) / 2, 1 - DISCORDANCE, (DISCORDANCE - loss) / 2]
    return rng.choice([1.0, 0.0, -1.0], PROMPTS, p=rates)


def many_small(loss: float, rng: np.random.Generator) -> Array:
    """Every other answer differs, by a little in either direction: open text under its log-probability."""
    return np.where(rng.random(PROMPTS) < 0.5, 2 * loss + rng.uniform(-0.2, 0.2, PROMPTS), 0.0)


def few_large(loss: float, rng: np.random.Generator) -> Array:
    """A few answers lose half of their score, the others nothing: as skewed as losses get."""
    return np.where(rng.random(PROMPTS) < 2 * loss, 0.5, 0.0)


WORLDS: dict[str, tuple[Callable[[float, np.random.Generator], Array], bool]] = {
    "right or wrong": (right_or_wrong, True),
    "many small differences": (many_small, False),
    "few large losses": (few_large, False),
}
"""How prompts are made up, and whether the score is right or wrong."""


def main(folder: Annotated[Path, typer.Argument(help="Where the results go.")] = BENCHMARK_RESULTS) -> None:
    confidence = read_params().calibrate.confidence
    cases = [
        {"world": world, "stop": stop, "budget": budget, **examined(world, stop, budget, confidence)}
        for world in WORLDS for stop in get_args(Stop) for budget in BUDGETS
    ]  # fmt: skip
    refuted = [f"{case['world']}, {case['stop']}, budget {case['budget']:g}" for case in cases if case["refuted"]]
    report = {
        "confidence": confidence, "resamples": RESAMPLES, "prompts": PROMPTS, "chunk": CHUNK, "seed": SEED,
        "level": LEVEL, "refuted": refuted, "cases": cases,
    }  # fmt: skip
    write_result(folder / "coverage-stopping.json", report, "pipeline.studies.certify.stopping")
    lowest = min(cases, key=lambda case: case["share_holding"])
    print(f"lowest share {lowest['share_holding']:.1%} ({lowest['world']}, {lowest['stop']})")
    print(f"refuted: {refuted or 'none'}")


def examined(world: str, stop: Stop, budget: float, confidence: float) -> dict[str, Any]:
    """One way to stop at one budget: on the boundary, where nothing is lost, and where much is."""
    found = [tested.within[0] for tested in tries(world, stop, budget, budget, confidence, RESAMPLES)]
    test = binomtest(found.count(False), len(found), confidence, alternative="less")
    timed = {name: timing(tries(world, stop, budget, loss, confidence, TIMED)) for name, loss in LOSSES.items()}
    p_value = float(test.pvalue)
    return {"share_holding": test.statistic, "p_value": p_value, "refuted": bool(p_value < LEVEL), **timed}


def tries(world: str, stop: Stop, budget: float, loss: float, confidence: float, draws: int) -> Iterator[Tested]:
    """One setting tested in many draws of prompts with this true loss."""
    make, ternary = WORLDS[world]
    for resample in range(draws):
        d = make(loss, np.random.default_rng([SEED, resample]))
        chunks = (Decoded(d[start : start + CHUNK]) for start in range(0, len(d), CHUNK))
        yield try_setting(chunks, [budget], confidence, stop, ternary)


def timing(tested: Iterator[Tested]) -> dict[str, float]:
    """Share of draws with a certificate, and the mean number of prompts decoded."""
    rows = [(one.within[0], len(one.decoded.differences)) for one in tested]
    return {"certified": float(np.mean([kept for kept, _ in rows])), "prompts": float(np.mean([n for _, n in rows]))}


if __name__ == "__main__":
    run(main, kept=False)
