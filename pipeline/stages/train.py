"""Train a gate head on labelled mismatches: `python -m pipeline.stages.train pilot` writes
models/pilot, the gate whose texts come next, and the name of any other head models/heads/<name>: a
gate folder with metrics.json and curves.json beside it.
"""

from gistgate.core.utils import UserError, nearest
from pipeline.heads.train import train_head
from pipeline.labels.schema import FEATURE_FOLDER, PASSES
from pipeline.params import read_params
from pipeline.paths import HEADS, PILOT
from pipeline.run import run


def main(name: str) -> None:
    params = read_params()
    block = params.train
    if name == "pilot":
        head = "effects" if params.label.recipe == "answers" else "logistic"
        folders = [FEATURE_FOLDER / "pilot"]
        train_head(head, PILOT, folders, "pilot", params, block.pilot_features)
    elif name in block.heads:
        folders = [FEATURE_FOLDER / labels for labels in PASSES]
        train_head(name, HEADS / name, folders, "head", params, block.features)
    else:
        raise UserError(
            f"There is no head '{name}' to train. {nearest(name, ['pilot', *block.heads])}"
        )


if __name__ == "__main__":
    run(main)
