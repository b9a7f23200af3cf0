"""Which hidden layer of the target tells harm best: the states of several, ranked as `worth` ranks sets of features.

    python -m pipeline.studies.labels.layers --layer 12 --layer 16     data/labels -> reports/studies/layers.json

The states are read here, because `data/features` holds those of `train.features` alone. An interruption costs one
shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gistgate.files import load_tensors
from pipeline.common.entry import run
from pipeline.common.pool import side_by_side
from pipeline.common.resume import num_shards
from pipeline.labels.schema import LABEL_FOLDER, PASSES
from pipeline.labels.tables import Table, concatenated
from pipeline.params import Params, read_params
from pipeline.stages.features import reading, shards_of
from pipeline.studies.labels.worth import rank

OUTPUT = Path("reports/studies/layers.json")


def main(
    layer: Annotated[list[int], typer.Option(help="A hidden layer; repeat it for several.", min=1)],
    folds: Annotated[int, typer.Option(help="Folds of the problems.", min=2)] = 6,
) -> None:
    params, pairs = read_params(), {number: states_of(number) for number in dict.fromkeys(layer)}
    table = states(params, [name for names in pairs.values() for name in names])
    rank(table, [names for tok, pred in pairs.values() for names in ((pred,), (tok, pred))], params, folds, OUTPUT)


def states_of(layer: int) -> tuple[str, str]:
    """Ids of a layer's two features: the states that read the token, and those that predict it."""
    return f"h_tok:layer:{layer}", f"h_pred:layer:{layer}"


def states(params: Params, names: Sequence[str]) -> Table:
    """These features of every labelled mismatch; what is read stays in `.scratch`, for another start."""
    wanted = replace(params, train=replace(params.train, features=tuple(names), extra_features=(), heads=("logistic",)))
    tables = []
    for goal in PASSES:
        shards, count = shards_of(wanted, goal), num_shards(LABEL_FOLDER / goal)
        side_by_side(
            reading, (wanted, goal), shards.missing(count), params.decoding.workers, f"layers, {goal}", "shard"
        )
        tables += [load_tensors(shards.path(index)) for index in range(count)]
    return concatenated([table for table in tables if len(table["problem"])])


if __name__ == "__main__":
    run(main)
