"""What features are worth where labels are few: every row is ranked by heads that have not seen its problem.

    python -m pipeline.studies.labels.worth [--folds 6]      data/features, data/labels -> reports/studies/worth.json

The stage `heads` measures on a part of the problems that trains nothing, which leaves few rows on a pretrained pair.
Here the problems are divided into folds; for each fold a logistic head is trained on the others, and its C comes from
folds within these. One figure for all rows, and one for each class of token: rows whose draft or target token has a
digit, rows where both have letters only, and the rest, which are operators and punctuation.

A threshold uses one end of a ranking alone, about which AUC says little. So `passable` says which share of the rows a
threshold lets through if at most `HARM` of these may be harmful; the threshold is chosen on these very rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.model_selection import GroupKFold
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError
from gistgate.files import load_tensors
from pipeline.common.code import running, write_result
from pipeline.common.entry import run
from pipeline.common.resume import read_shards
from pipeline.heads.logistic import fit_logistic
from pipeline.heads.metrics import rank_metrics
from pipeline.heads.rows import Rows, rows_of
from pipeline.heads.soft import Array
from pipeline.labels.schema import FEATURE_FOLDER, LABEL_FOLDER, PASSES
from pipeline.labels.tables import Table, concatenated, num_rows
from pipeline.pairs.loading import load_tokenizer
from pipeline.pairs.source import read_pair
from pipeline.params import Params, read_params

OUTPUT = Path("reports/studies/worth.json")
STATES = ("h_tok:post", "h_pred:post")
SETS: tuple[tuple[str, ...], ...] = (
    ("scalars",),
    ("scalars", "lookahead"),
    ("scalars", "lookahead", "draft"),
    ("h_tok:post",),
    ("h_pred:post",),
    STATES,
    (*STATES, "scalars", "lookahead"),
)
"""The sets that are compared, where their features were read."""
CLASSES = ("number", "operator", "word")
HARM = 0.05
"""Largest share of harmful rows among those that `passable` lets through."""
Key = tuple[int, int, int]
"""Problem, policy and position of a mismatch."""


def main(folds: Annotated[int, typer.Option(help="Folds of the problems.", min=2)] = 6) -> None:
    params = read_params()
    shards = [shard for name in PASSES for shard in read_shards(FEATURE_FOLDER / name)]
    table = concatenated([shard for shard in shards if num_rows(shard)])  # one without labels has no features
    rank(table, [names for names in SETS if all(name in table for name in names)], params, folds, OUTPUT)


def rank(table: Table, sets: Sequence[tuple[str, ...]], params: Params, folds: int, output: Path) -> None:
    """Write to `output` what each of these sets of features is worth, and print its AUC and passable share."""
    kinds = classes_of(table, load_tokenizer(read_pair(params.pair)))
    found = {" + ".join(names): worth(rows_of(table, names), kinds, params, folds) for names in sets}
    problems = int(table["problem"].unique().numel())
    payload = {"pair": params.pair, "n": num_rows(table), "problems": problems, "folds": folds, "sets": found}
    write_result(output, payload, running())
    for name, entry in found.items():
        print(f"{name:40}", {kind: shown(figures) for kind, figures in entry.items()})


def shown(figures: Mapping[str, Any]) -> tuple[float | None, float]:
    """AUC and passable share as they are printed."""
    return figures["auc"] and round(figures["auc"], 3), round(figures["passable"], 3)


def worth(rows: Rows, kinds: Sequence[str], params: Params, folds: int) -> dict[str, dict[str, Any]]:
    """AUC, average precision of harm and passable share, over all rows and over those of each class of token."""
    scores = unseen_scores(rows, params, folds)
    kept, of = rows.kept.double().numpy(), np.array(kinds)
    masks = {"all": np.ones(len(of), bool), **{kind: of == kind for kind in CLASSES}}
    return {
        kind: {
            "n": int(mask.sum()),
            "harm": float(1 - kept[mask].mean()),
            "passable": passable(kept[mask], scores[mask]),
            **rank_metrics(kept[mask], scores[mask]),
        }
        for kind, mask in masks.items()
        if mask.any()
    }


def passable(kept_N: Array, score_N: Array, harm: float = HARM) -> float:
    """Largest share of the rows whose scores reach some threshold and of which at most `harm` are harmful."""
    order = np.argsort(-score_N, kind="stable")
    harmful = np.cumsum(1 - kept_N[order]) / np.arange(1, len(order) + 1)
    last_of_its_score = np.append(np.diff(score_N[order]) != 0, True)
    passing = np.flatnonzero((harmful <= harm) & last_of_its_score)
    return float((passing[-1] + 1) / len(order)) if len(passing) else 0.0


def unseen_scores(rows: Rows, params: Params, folds: int) -> Array:
    """Logits of "kept" [N], each from a head that has not seen its problem.

    Raises:
        UserError: there are fewer problems than folds.
    """
    problems, scores = rows.problem.numpy(), np.zeros(len(rows))
    if len(np.unique(problems)) < folds:
        raise UserError(f"There are labels of fewer than {folds} problems. Lower --folds, or label more problems.")
    for train, unseen in GroupKFold(folds).split(scores, groups=problems):
        head, _ = fit_logistic(rows.where(torch.from_numpy(train)), params.train.c, params.train.folds)
        with torch.no_grad():
            scores[unseen] = head(rows.x[torch.from_numpy(unseen)]).double().numpy()
    return scores


def classes_of(table: Table, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The class of every row, by its draft token and the target's own."""
    tokens: dict[Key, tuple[int, int]] = {}
    for name in PASSES:
        for file in sorted((LABEL_FOLDER / name).glob("rows-*.safetensors")):
            labels = load_tensors(file)
            pairs = zip(labels["draft_id"].tolist(), labels["target_id"].tolist(), strict=True)
            tokens |= dict(zip(keys_of(labels), pairs, strict=True))
    return [kind_of(*(tokenizer.decode([token]) for token in tokens[key])) for key in keys_of(table)]


def keys_of(table: Mapping[str, Tensor]) -> list[Key]:
    """What tells the mismatches of a table apart."""
    return list(zip(*(table[name].tolist() for name in ("problem", "policy", "position")), strict=True))


def kind_of(draft: str, target: str) -> str:
    """number, word or operator."""
    if any(letter.isdigit() for letter in draft + target):
        return "number"
    return "word" if all(text.strip().isalpha() for text in (draft, target)) else "operator"


if __name__ == "__main__":
    run(main)
