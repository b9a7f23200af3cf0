"""Which features a gate should see: every set on the same labels, problems and logistic head.

    python -m pipeline.studies.labels.features      data/labels -> reports/studies/features.json
    python -m pipeline.studies.labels.features --limit 400      every n-th label, about 400 in all -> features-400.json

All features of the sweep are read at every labelled mismatch, as the stage `features` does; then one head is trained
for each set. The heads are measured as the stage `train` does: on gated texts of problems that only measure. Folds of
the training problems choose (`loss`), so that the best line of the table is not picked on the numbers that it shows.
The features wait in .scratch; a line of the table is written as soon as it is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gistgate.files import load_tensors, save_tensors
from pipeline.common.code import running, write_result
from pipeline.common.decoders import read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.heads.logistic import fit_logistic
from pipeline.heads.maps import fit_map
from pipeline.heads.measuring import measure_score
from pipeline.heads.rows import Rows, rows_of
from pipeline.heads.split import split_by_problem
from pipeline.labels.features import FeatureReader
from pipeline.labels.schema import LABEL_FOLDER
from pipeline.labels.tables import Table, num_rows, picked
from pipeline.labels.texts import read_labels
from pipeline.pairs.pair import load_pair, pair_files
from pipeline.params import Params, read_params

OUTPUT = Path("reports/studies/features.json")
HEADLINE = ("h_tok:post", "h_pred:post", "scalars", "lookahead")
SETS: tuple[tuple[str, ...], ...] = (
    ("scalars",),
    ("draft",),
    ("lookahead",),
    ("scalars", "draft"),
    ("scalars", "lookahead"),
    ("h_tok:post",),
    ("h_pred:post",),
    ("h_tok:layer:2",),
    ("h_tok:layer:3",),
    ("h_tok:post", "scalars"),
    ("h_tok:post", "scalars", "lookahead"),
    ("h_tok:layer:2", "scalars", "lookahead"),
    HEADLINE,
    (*HEADLINE, "draft"),
    ("h_tok:layer:2", *HEADLINE),
)
"""The sets that are compared."""


def main(limit: Annotated[int | None, typer.Option(help="Labels to read at most, else all.")] = None) -> None:
    output = OUTPUT if limit is None else OUTPUT.with_stem(f"features-{limit}")
    params, report = read_params(), []
    table = features_of(params, limit)
    for names in SETS:
        report.append({"features": list(names), **measured(rows_of(table, names), params)})
        print(shown(report[-1]), flush=True)
        write_result(output, {"sets": report}, running())


def features_of(params: Params, limit: int | None = None) -> Table:
    """All features of the sweep at every label (at about `limit` of them), from the scratch folder or read now."""
    names = tuple(dict.fromkeys(name for one in SETS for name in one))
    modules = sources("pipeline.labels.features", "pipeline.labels.replay")
    mark = fingerprint(list(names), limit, params.decoding.deciding, LABEL_FOLDER, *pair_files(params.pair), *modules)
    path = SCRATCH / f"study-features-{mark}.safetensors"
    if not path.exists():
        save_tensors(path, read(params, names, limit))
    return load_tensors(path)


def read(params: Params, names: Sequence[str], limit: int | None = None) -> Table:
    """Labels with their features."""
    pair, prompts = load_pair(params), read_prompts("train")
    table, texts = read_labels()
    if limit is not None:  # spread over all problems and both passes
        table = picked(table, torch.arange(0, num_rows(table), max(1, -(-num_rows(table) // limit))))
    reader = FeatureReader(pair, prompts, names, params.decoding.block)
    return {**table, **reader.read(table, texts, params.decoding.batch_size, **request_of(prompts, pair))}


def measured(rows: Rows, params: Params) -> dict[str, Any]:
    """Metrics of a logistic head on these rows, and its loss on folds of the training problems."""
    parts = split_by_problem(rows.problem, params.train, params.seed)
    head, losses = fit_logistic(rows.where(parts.train | parts.validation), params.train.c, params.train.folds)
    with torch.no_grad():
        logits = head(rows.x)
    its_map = fit_map(params.train.map, logits[parts.calibration], rows.kept[parts.calibration])
    metrics, _ = measure_score(rows, parts.test, logits, its_map, "gated")
    every = metrics["policies"]["all"]
    gated = metrics["policies"].get("gated", {"auc": None, "ap": None, "ece": None, "n": 0})  # no such row is tested
    return {
        "width": rows.x.shape[1], "loss": min(losses.values()), "auc": gated["auc"], "ap": gated["ap"],
        "ece": gated["ece"], "n": gated["n"], "auc_all": every["auc"], "ap_all": every["ap"], "n_all": every["n"],
    }  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    """A line of a Markdown table."""
    figures = ["–" if row[key] is None else f"{row[key]:.3f}" for key in ("auc", "ap", "auc_all", "ap_all")]
    return f"| {', '.join(row['features'])} | {row['width']} | {row['loss']:.4f} | {' | '.join(figures)} |"


if __name__ == "__main__":
    run(main)
