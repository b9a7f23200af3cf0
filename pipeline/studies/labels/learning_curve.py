"""How many labels a gate needs, and whether it pays to choose them.

    python -m pipeline.studies.labels.learning_curve      data/features -> reports/studies/learning_curve.{json,png}

From the same first labels, one head goes on with random labels, another with those that it is least sure of. Both are
measured on gated texts of problems that only measure. A third head trains on hard instead of soft labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor

from gistgate.files import write_atomic
from pipeline.common.code import write_result
from pipeline.common.entry import run
from pipeline.heads.logistic import fit_logistic
from pipeline.heads.metrics import rank_metrics
from pipeline.heads.rows import Rows, read_rows
from pipeline.heads.split import split_by_problem
from pipeline.labels.schema import FEATURE_FOLDER, PASSES, Policy
from pipeline.params import read_params

OUTPUT = Path("reports/studies/learning_curve")
SIZES = (300, 600, 1200, 2400, 4800)
"""Labels trained on."""
STRENGTH = 0.003
"""C of every head, so that sizes differ by labels alone."""
SEEDS = 3
WAYS = ("random", "active", "hard")
"""Random labels; the labels that the head is least sure of; random labels rounded to kept or lost."""


def main() -> None:
    params = read_params()
    rows, _ = read_rows([FEATURE_FOLDER / name for name in PASSES], params.train.features)
    parts = split_by_problem(rows.problem, params.train, params.seed)
    pool, test = rows.where(~parts.test), rows.where(parts.test & (rows.policy == Policy.GATED))
    sizes = [size for size in SIZES if size < len(pool)] + [len(pool)]
    curves = {way: [curve(pool, test, way, sizes, params.seed + seed) for seed in range(SEEDS)] for way in WAYS}
    report = {"sizes": sizes, "test_rows": len(test), "ap": curves}
    figure = OUTPUT.with_suffix(".png")
    write_atomic(figure, lambda part: draw(report, part))
    write_result(OUTPUT.with_suffix(".json"), report, "pipeline.studies.labels.learning_curve", files=[figure])
    for way, runs in curves.items():
        print(
            f"{way:7}",
            " ".join(f"{size}: {value:.3f}" for size, value in zip(sizes, np.array(runs, float).mean(0), strict=True)),
        )


def curve(pool: Rows, test: Rows, way: str, sizes: Sequence[int], seed: int) -> list[float | None]:
    """Average precision of the class "lost" on the test rows, by number of labels."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    if way == "hard":
        pool = replace(pool, kept=(pool.kept > 0.5).float())
    chosen, found, head = order[: sizes[0]], [], None
    for size in sizes:
        if head is not None:
            chosen = torch.cat([chosen, next_labels(pool, chosen, order, way, size - len(chosen), head)])
        mask = torch.zeros(len(pool), dtype=torch.bool)
        mask[chosen] = True
        head, _ = fit_logistic(pool.where(mask), [STRENGTH], 2)
        with torch.no_grad():
            score = head(test.x)
        found.append(rank_metrics(test.kept.double().numpy(), score.double().numpy())["ap"])
    return found


def next_labels(pool: Rows, chosen: Tensor, order: Tensor, way: str, count: int, head: torch.nn.Module) -> Tensor:
    """Which rows to label next [count]."""
    rest = order[~torch.isin(order, chosen)]
    if way != "active":
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
