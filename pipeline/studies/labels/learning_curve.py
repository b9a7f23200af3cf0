"""How many labels a gate needs, and whether it pays to choose them.

    python -m pipeline.studies.labels.learning_curve [--sizes 300,600] [--seeds 3] [--resplit]
                                                      data/features -> reports/studies/learning_curve.{json,png}

From the same first labels, one head goes on with random labels, another with those that it is least sure of, and a
third with those of which the first head was least sure, as `label.strategy: uncertain` chooses. All are measured on
gated texts of problems that only measure. A last head trains on random labels that are hard instead of soft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from matplotlib import pyplot
from torch import Tensor

from gistgate.errors import UserError
from gistgate.files import write_atomic
from pipeline.common.code import write_result
from pipeline.common.entry import run
from pipeline.heads.logistic import fit_logistic
from pipeline.heads.metrics import rank_metrics
from pipeline.heads.rows import Rows, read_rows
from pipeline.heads.split import split_by_problem
from pipeline.labels.schema import FEATURE_FOLDER, PASSES, Policy
from pipeline.params import Params, read_params

OUTPUT = Path("reports/studies/learning_curve")
SIZES = (300, 600, 1200, 2400, 4800)
"""Labels trained on."""
STRENGTH = 0.003
"""C of every head, so that sizes differ by labels alone."""
SEEDS = 3
WAYS = ("random", "active", "pilot", "hard")
"""Random labels; those that the last head is least sure of; those that the first head was least sure of; random labels
rounded to kept or lost."""


def main(
    sizes: Annotated[str, typer.Option(help="Labels trained on.")] = ",".join(map(str, SIZES)),
    seeds: Annotated[int, typer.Option(help="Repetitions with other first labels.", min=1)] = SEEDS,
    resplit: Annotated[bool, typer.Option("--resplit", help="Measure on other problems at each seed.")] = False,
) -> None:
    params, wanted = read_params(), numbers(sizes)
    rows, _ = read_rows([FEATURE_FOLDER / name for name in PASSES], params.train.features)
    splits = [divided(rows, params, seed if resplit else 0) for seed in range(seeds)]
    least = min(len(pool) for pool, _ in splits)
    taken = [size for size in wanted if size < least] + [least]
    curves = {
        way: [curve(pool, test, way, taken, params.seed + seed) for seed, (pool, test) in enumerate(splits)]
        for way in WAYS
    }
    num_tests = [len(test) for _, test in splits]
    report = {"sizes": taken, "test_rows": num_tests if resplit else num_tests[0], "ap": curves}
    figure = OUTPUT.with_suffix(".png")
    write_atomic(figure, lambda part: draw(report, part))
    write_result(OUTPUT.with_suffix(".json"), report, "pipeline.studies.labels.learning_curve", files=[figure])
    for way, runs in curves.items():
        print(
            f"{way:7}",
            " ".join(f"{size}: {value:.3f}" for size, value in zip(taken, np.array(runs, float).mean(0), strict=True)),
        )


def numbers(text: str) -> list[int]:
    """Numbers of labels, the smallest first.

    Raises:
        UserError: the text is no list of whole numbers above 0.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise UserError(f"--sizes {text} is no list of numbers of labels. Write something like 300,600.")
    return found


def divided(rows: Rows, params: Params, number: int) -> tuple[Rows, Rows]:
    """What may be labelled, and the gated rows of the problems that only measure, in the split of this number."""
    parts = split_by_problem(rows.problem, params.train, params.seed + number)
    return rows.where(~parts.test), rows.where(parts.test & (rows.policy == Policy.GATED))


def curve(pool: Rows, test: Rows, way: str, sizes: Sequence[int], seed: int) -> list[float | None]:
    """Average precision of the class "lost" on the test rows, by number of labels."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    if way == "hard":
        pool = replace(pool, kept=(pool.kept > 0.5).float())
    head: torch.nn.Module | None = None
    chosen, found, first = order[: sizes[0]], [], head
    for size in sizes:
        asked = first if way == "pilot" else head
        if asked is not None:
            chosen = torch.cat([chosen, next_labels(pool, chosen, order, way, size - len(chosen), asked)])
        mask = torch.zeros(len(pool), dtype=torch.bool)
        mask[chosen] = True
        head, _ = fit_logistic(pool.where(mask), [STRENGTH], 2)
        first = head if first is None else first
        with torch.no_grad():
            score = head(test.x)
        found.append(rank_metrics(test.kept.double().numpy(), score.double().numpy())["ap"])
    return found


def next_labels(pool: Rows, chosen: Tensor, order: Tensor, way: str, count: int, head: torch.nn.Module) -> Tensor:
    """Which rows to label next [count]."""
    rest = order[~torch.isin(order, chosen)]
    if way not in ("active", "pilot"):
        return rest[:count]
    with torch.no_grad():
        unsure = head(pool.x[rest]).abs()
    return rest[unsure.argsort()[:count]]


def draw(report: dict[str, Any], path: Path) -> None:
    """Average precision against labels, one line per way, the seeds as a band."""
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for way, runs in report["ap"].items():
        values = np.array(runs, float)
        axes.plot(report["sizes"], values.mean(0), marker="o", label=way)
        axes.fill_between(report["sizes"], values.min(0), values.max(0), alpha=0.15)
    axes.set(xscale="log", xlabel="labels trained on", ylabel="average precision of lost meanings")
    axes.set_title("gated texts of unseen problems; mean and range of the seeds", fontsize=8)
    axes.set_xticks(report["sizes"], [str(size) for size in report["sizes"]])
    axes.set_xticks([], minor=True)
    axes.legend()
    figure.savefig(path, dpi=150, format="png")
    pyplot.close(figure)


if __name__ == "__main__":
    run(main)
