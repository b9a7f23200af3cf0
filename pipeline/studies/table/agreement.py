"""Which method is right where two disagree: every method judges the same labelled mismatches of unseen problems.

    python -m pipeline.studies.table.agreement      -> reports/table/judgements.json

Each method runs at its certified setting; those with a drafter of their own are left out, since they meet other
mismatches. A mismatch counts as harmless when its label says that the meaning is kept with at least one half.
Precision: share of harmless ones among the accepted. Recall: share of the harmless that are accepted. A mismatch is
shown to every rule as the first token of a block, so that rules which look ahead see most.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gistgate.certificates.tango import Array
from gistgate.files import named_files, write_json
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import Operating, operating_point
from pipeline.heads.split import split_by_problem
from pipeline.labels.replay import FirstBlocks, rounds
from pipeline.labels.tables import Table, picked
from pipeline.labels.texts import Texts, read_labels
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import Params
from pipeline.params.methods import MODEL
from pipeline.studies.table.params import table_params

Flags = NDArray[np.bool_]
"""Truth values [N]."""


def main() -> None:
    params = table_params()
    torch.set_grad_enabled(False)
    pair = load_pair(params)
    table, texts = read_labels()
    table = picked(table, split_by_problem(table["problem"], params.train, params.seed).test)
    points = {name: operating_point(params, name) for name in params.methods}
    judges = {name: point for name, point in points.items() if judges_unseen(point)}
    opinions = {name: opinion(params, pair, point, table, texts) for name, point in judges.items()}
    write_json(params.reports / "judgements.json", compare(opinions, table["kept"].numpy() >= 0.5))


def judges_unseen(point: Operating) -> bool:
    """Whether a method judges these rows without having met them: counts of refused pairs come from all of them."""
    return point.rule != "exact" and point.drafter == MODEL and not named_files(point.settings)


def opinion(params: Params, pair: Pair, point: Operating, table: Table, texts: Texts) -> Array:
    """Whether the method accepts each record's token: 1 or 0, nan where its drafter proposed another one [N]."""
    prompts = read_prompts("train")
    observer = FirstBlocks()
    gate = load_gate(point.head, pair) if point.head else None
    method = point.as_method()
    decoder = make_decoder(pair, method, point.settings, point.block, gate=gate, observer=observer)
    said = np.full(len(table["kept"]), np.nan)
    numbered = {**table, "place": torch.arange(len(said))}
    request = request_of(prompts, pair)
    for part, _, acceptance in rounds(decoder, observer, numbered, texts, prompts, params.label.batch_size, **request):
        said[part["place"].numpy()] = (acceptance.length > 0).cpu().numpy()
    return said


def compare(opinions: dict[str, Array], harmless: Flags) -> dict[str, Any]:
    """Precision and recall of every method, and for every two of them who is right where they differ."""
    seen = np.ones(len(harmless), dtype=bool)
    for values in opinions.values():
        seen &= np.isfinite(values)
    said = {name: values[seen] == 1 for name, values in opinions.items()}
    fine = harmless[seen]
    return {
        "mismatches": int(seen.sum()),
        "harmless": int(fine.sum()),
        "methods": {name: against_labels(accepted, fine) for name, accepted in said.items()},
        "disagreements": [{"a": a, "b": b, **who_is_right(said[a], said[b], fine)} for a, b in combinations(said, 2)],
    }


def against_labels(accepted: Flags, fine: Flags) -> dict[str, Any]:
    """How well one method tells harmless mismatches; precision is None where it accepts nothing."""
    good = int((accepted & fine).sum())
    return {
        "accepted": int(accepted.sum()),
        "harmful_accepted": int((accepted & ~fine).sum()),
        "precision": good / int(accepted.sum()) if accepted.any() else None,
        "recall": good / int(fine.sum()) if fine.any() else None,
    }


def who_is_right(a: Flags, b: Flags, fine: Flags) -> dict[str, int]:
    """Mismatches that only one of two methods accepts, and how many of those are harmless."""
    only_a, only_b = a & ~b, b & ~a
    return {
        "only_a": int(only_a.sum()),
        "only_a_harmless": int((only_a & fine).sum()),
        "only_b": int(only_b.sum()),
        "only_b_harmless": int((only_b & fine).sum()),
    }


if __name__ == "__main__":
    run(main)
