"""Train gate heads on labelled mismatches.

    python -m pipeline.stages.train pilot    data/features/pilot -> models/pilot, the gate whose texts come next
    python -m pipeline.stages.train heads    data/features/{strict,gated} -> models/heads/<head>, for all of train.heads

A head's folder is a gate folder with metrics.json and curves.json beside it. All heads are trained in one process.
Finished heads and checkpoints of unfinished ones wait in .scratch, so an interruption costs one epoch and an unchanged
head keeps its bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from matplotlib import pyplot
from threadpoolctl import threadpool_limits

from gistgate.core.files import fingerprint, read_json, write_atomic
from gistgate.core.utils import UserError
from pipeline import tracking
from pipeline.heads.data import Rows, read_rows
from pipeline.heads.job import Job, head_job, partners_of
from pipeline.labels.schema import FEATURE_FOLDER, PASSES
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import HEADS, LEARNED, PILOT, SCRATCH
from pipeline.report.figures import reliability_figure
from pipeline.run import run


def main(goal: str) -> None:
    params = read_params()
    # Where workers have one thread each because products are small, those of a head are as well: two threads took 27 s
    # and 38 processor seconds for the embedded pair's heads, one took 18 and 16.
    limit = 1 if params.decoding.workers > 1 else None
    with threadpool_limits(limit):
        train_all(goal, params)


def train_all(goal: str, params: Params) -> None:
    """Train the pilot or the heads.

    Raises:
        UserError: there is no such goal.
    """
    if goal == "pilot":
        own = with_features(params, params.train.pilot_features)
        train(["logistic"], [FEATURE_FOLDER / "pilot"], {"logistic": PILOT}, "pilot", own)
    elif goal == "heads":
        outputs = {head: HEADS / head for head in params.train.heads}
        train(params.train.heads, [FEATURE_FOLDER / name for name in PASSES], outputs, "head", params)
    else:
        raise UserError(f"There is nothing called '{goal}' to train. Use `pilot` or `heads`.")


def with_features(params: Params, features: tuple[str, ...]) -> Params:
    """The same parameters for a head that sees these features."""
    return replace(params, train=replace(params.train, features=features))


def train(heads: Sequence[str], folders: Sequence[Path], outputs: dict[str, Path], stage: str, params: Params) -> None:
    """Train every head on the rows of these folders, publish its folder and record it."""
    read = cache(lambda features: read_rows(folders, features))
    partners = partners_of(load_pair(params))
    data, problems = {str(folder): fingerprint(folder) for folder in folders}, read_json(LEARNED)["train"]
    for head in heads:
        rows, widths = read(params.train.features_of(head))
        job = head_job(head, params, widths, partners, data, problems)
        done = finish(stage, job, rows)
        write_atomic(outputs[head], partial(shutil.copytree, done))
        record(outputs[head], stage, job, params, folders)


def finish(stage: str, job: Job, rows: Rows) -> Path:
    """The folder of the finished head in .scratch; the head is trained now unless an earlier start has done so."""
    name = f"{stage}-{job.head}"
    folder = SCRATCH / f"{name}-{fingerprint(job.as_json())}"
    done = folder / "done"
    if not done.is_dir():
        write_atomic(done, lambda part: job.run(rows, folder / "checkpoints").save(part))
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for other in SCRATCH.glob(f"{name}-*"):
        if other != folder:
            shutil.rmtree(other)
    return done


def record(folder: Path, stage: str, job: Job, params: Params, data: Sequence[Path]) -> None:
    """Track parameters, metrics and files of a head as a run, and print one line."""
    metrics = read_json(folder / "metrics.json")
    shown = ", ".join(
        f"{name} {metrics[name]:.3f}" for name in ("auc", "ap", "brier", "ece") if metrics[name] is not None
    )
    print(f"{job.head}: {shown} on {metrics['n']} {metrics['policy']} mismatches of unseen problems")
    with tracking.run(params, job.head if stage == "head" else stage, kind=stage) as run_:
        run_.log_params(job.as_json()["settings"])
        run_.log_metrics(metrics)
        for name, values in metrics["training"].get("curves", {}).items():
            run_.log_curve(name, values)
        for features in data:
            run_.log_data(features, "training")
        run_.log_artifacts(folder)
        figure = reliability_figure({job.head: read_json(folder / "curves.json")})
        run_.log_figure(figure, "reliability.png")
        pyplot.close(figure)


if __name__ == "__main__":
    run(main)
