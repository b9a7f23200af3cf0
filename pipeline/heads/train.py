"""One head from rows of features to its published folder and its run in MLflow."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from gistgate.core.files import write_atomic, write_json
from pipeline import tracking
from pipeline.heads.job import fit_head, head_config, partners_of, settings_of
from pipeline.labels.schema import read_rows
from pipeline.pair.pair import load_pair
from pipeline.params import Params

MEASURES = ("auc", "ap", "brier", "ece", "kept_loss", "kept_saved", "refused_loss", "refused_saved")


def train_head(
    head: str,
    output: Path,
    folders: Sequence[Path],
    kind: str,
    params: Params,
    features: tuple[str, ...],
) -> None:
    """Train a head that sees these `features`, and those that its name adds, on the rows of these
    folders; publish its folder and track a run of this `kind`.
    """
    params = replace(params, train=replace(params.train, features=features))
    rows, widths = read_rows(folders, params.train.features_of(head))
    config = head_config(head, params, widths, partners_of(load_pair(params)), folders)
    # Two threads are slower on products this small.
    with threadpool_limits(1 if params.decoding.workers > 1 else None):
        gate, metrics, curves = fit_head(head, config, rows, params.train, params.seed)

    def write(folder: Path) -> None:
        gate.save(folder)
        write_json(folder / "metrics.json", metrics)
        write_json(folder / "curves.json", curves)

    write_atomic(output, write)
    measures = ", ".join(
        f"{name} {metrics[name]:.3f}" for name in MEASURES if metrics.get(name) is not None
    )
    print(f"{head}: {measures} on {metrics['n']} {metrics['policy']} mismatches of unseen problems")
    with tracking.run(params, head if kind == "head" else kind, kind) as record:
        record.log_params(settings_of(head, params.train))
        record.log_metrics(metrics)
        for name, values in metrics["training"].get("curves", {}).items():
            record.log_curve(name, values)
        for folder in folders:
            record.log_data(folder, "training")
        record.log_artifacts(output)
