"""One gate from the labels of several finished runs of the same pair, such as two tasks of `make real`.

    python -m pipeline.studies.real.together .scratch/real .scratch/real-code --out models/gates/both

Rows of all runs train one head, with the parameters of the first run; problems of different runs stay apart in its
splits. The gate has no certificate: `gistgate calibrate --gate FOLDER --task ...` makes one for each task, with --chat
and --system where a task is asked in another way than the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import torch
import typer

from gistgate.errors import UserError
from gistgate.files import fingerprint, write_atomic
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from pipeline.common.entry import run
from pipeline.common.paths import PARAMS
from pipeline.heads.job import Job
from pipeline.heads.rows import Rows, read_rows
from pipeline.labels.schema import FEATURE_FOLDER, PASSES
from pipeline.params import read_params
from pipeline.stages.train import HEADS

SHARED = ("target", "draft", "tokenizer", "features", "head")
"""What the gates of all runs have in common."""


def main(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs; the first lends its parameters.")],
    out: Annotated[Path, typer.Option(help="Folder of the new gate.")],
) -> None:
    if len(runs) < 2:
        raise UserError("One gate for several tasks needs the folders of at least two runs.")
    params = read_params(runs[0] / PARAMS)
    head = params.train.headline_head
    configs = [config_in(place, head) for place in runs]
    check_same(runs, configs)
    names = params.train.features_of(head)
    rows = stacked([read_rows(folders_of(place), names)[0] for place in runs])
    job = Job(head, config_of(configs, runs), params.train, params.seed)
    with TemporaryDirectory() as scratch:
        trained = job.run(rows, Path(scratch))
    write_atomic(out, trained.save)
    metrics = trained.metrics
    print(
        f"{out}: {len(rows)} mismatches of {len(rows.problem.unique())} problems, AUC {metrics['auc']} on unseen ones"
    )


def config_in(place: Path, head: str) -> GateConfig:
    """The configuration of a run's head.

    Raises:
        UserError: it does not say which problems taught it, so that the new gate could be certified on them.
    """
    config = Gate.load(place / HEADS / head).config
    if not config.problems:
        raise UserError(
            f"The head of {place} does not say which problems it was trained on, so that a gate that learns from it "
            "could be certified on them. Train it again with this version."
        )
    return config


def folders_of(place: Path) -> list[Path]:
    """The features of a run."""
    return [place / FEATURE_FOLDER / name for name in PASSES]


def check_same(runs: Sequence[Path], configs: Sequence[GateConfig]) -> None:
    """Refuse runs of different pairs, or with different features.

    Raises:
        UserError: they differ; the sentence says in what.
    """
    for place, config in zip(runs[1:], configs[1:], strict=True):
        other = [name for name in SHARED if getattr(config, name) != getattr(configs[0], name)]
        if other:
            raise UserError(
                f"The gates of {runs[0]} and {place} differ in {', '.join(other)}. Only runs of the same pair with the "
                "same features and head train one gate together."
            )


def stacked(parts: Sequence[Rows]) -> Rows:
    """The rows of all runs, one run below the other; their problems get numbers of their own."""
    shifted, first = [], 0
    for rows in parts:
        shifted.append(replace(rows, problem=rows.problem + first))
        first = int(shifted[-1].problem.max()) + 1
    return Rows(**{field.name: torch.cat([getattr(rows, field.name) for rows in shifted]) for field in fields(Rows)})


def config_of(configs: Sequence[GateConfig], runs: Sequence[Path]) -> GateConfig:
    """The configuration of the new gate: that of the first run, with the tasks and the data of all."""
    tasks = dict.fromkeys(str(config.labels["task"]) for config in configs)
    data = {f"{place.name}: {folder.name}": fingerprint(folder) for place in runs for folder in folders_of(place)}
    code = {"code": True} if any(config.labels.get("code") for config in configs) else {}
    first, problems = configs[0], {problem for config in configs for problem in config.problems.split()}
    return replace(
        first,
        labels={**first.labels, **code, "task": ", ".join(tasks)},
        provenance={**first.provenance, "data": data},
        problems=" ".join(sorted(problems)),
    )


if __name__ == "__main__":
    run(main)
