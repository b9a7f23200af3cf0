"""Train a gate head on labelled mismatches: `python -m pipeline.stages.train pilot` writes
models/pilot, the gate whose texts come next, and the name of any other head models/heads/<name>: a
gate folder with metrics.json and curves.json beside it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from gistgate.core.files import write_atomic, write_json
from gistgate.core.utils import UserError, nearest
from pipeline import tracking
from pipeline.heads.job import fit_head, head_config, partners_of, settings_of
from pipeline.labels.schema import FEATURE_FOLDER, PASSES, read_rows
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import HEADS, PILOT
from pipeline.run import run

MEASURES = ("auc", "ap", "brier", "ece", "kept_loss", "kept_saved", "refused_loss", "refused_saved")


def main(name: str) -> None:
    params = read_params()
    if name == "pilot":
        head = "effects" if params.label.recipe == "answers" else "logistic"
        train(head, PILOT, [FEATURE_FOLDER / "pilot"], "pilot", params, params.train.pilot_features)
    elif name in params.train.heads:
        train(name, HEADS / name, [FEATURE_FOLDER / one for one in PASSES], "head", params)
    else:
        raise UserError(
            f"There is no head '{name}' to train. {nearest(name, ['pilot', *params.train.heads])}"
        )


def train(
    head: str,
    output: Path,
    folders: Sequence[Path],
    stage: str,
    params: Params,
    features: tuple[str, ...] = (),
) -> None:
    """Train a head on the rows of these folders, publish its folder and track a run; `features` may
    be its own.
    """
    from matplotlib import pyplot

    from pipeline.report.figures import reliability_figure

    params = replace(
        params, train=replace(params.train, features=features or params.train.features)
    )
    rows, widths = read_rows(folders, params.train.features_of(head))
    config = head_config(head, params, widths, partners_of(load_pair(params)), folders)
    with threadpool_limits(
        1 if params.decoding.workers > 1 else None
    ):  # two threads are slower on products this small
        gate, metrics, curves = fit_head(head, config, rows, params.train, params.seed)

    def write(folder: Path) -> None:
        gate.save(folder)
        write_json(folder / "metrics.json", metrics)
        write_json(folder / "curves.json", curves)

    write_atomic(output, write)
    shown = ", ".join(
        f"{name} {metrics[name]:.3f}" for name in MEASURES if metrics.get(name) is not None
    )
    print(f"{head}: {shown} on {metrics['n']} {metrics['policy']} mismatches of unseen problems")
    with tracking.run(params, head if stage == "head" else stage, kind=stage) as record:
        record.log_params(settings_of(head, params.train))
        record.log_metrics(metrics)
        for name, values in metrics["training"].get("curves", {}).items():
            record.log_curve(name, values)
        for folder in folders:
            record.log_data(folder, "training")
        record.log_artifacts(output)
        figure = reliability_figure({head: curves})
        record.mlflow.log_figure(figure, "reliability.png")
        pyplot.close(figure)


if __name__ == "__main__":
    run(main)
