"""The tables on the way from a mismatch to a gate head (MISMATCHES, LABELS, FEATURES in data/<the
same>), their columns, and the check at every door. The first two hold the texts of their rows,
since many share one. A head is trained on `Rows`. Axis letters: N rows (mismatches), K drafted
tokens of a block, F width of a feature or of all features.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gistgate.core.features import SCALARS
from gistgate.core.files import load_tensors, read_json_lines
from gistgate.core.utils import UserError
from pipeline import paths
from pipeline.params import TrainParams
from pipeline.run import shard_files

REFERENCE = paths.reference_of("train")  # the target's own answers to the training prompts
PASSES = ("strict", "gated")
"""Passes of `collect`: strict and sequential texts, then the texts of the pilot gate."""
MISMATCH_FOLDER = paths.MISMATCHES
LABEL_FOLDER = paths.LABELS
FEATURE_FOLDER = paths.FEATURES
Array = NDArray[np.floating]
Table = dict[str, Tensor]  # columns by name, all with leading axis N (rows)


def concatenated(tables: Sequence[Table]) -> Table:
    """The rows of all tables, one table below the other; the columns are those of the first table,
    if there is one.
    """
    whole: Table = {}
    for name in tables[0] if tables else ():
        whole[name] = torch.cat([table[name] for table in tables])
    return whole


def picked(table: Table, index: Any) -> Table:
    """The rows that `index [N']` names, in its order, or the rows where a mask [N] is true."""
    return {name: column[index] for name, column in table.items()}


def num_rows(table: Table) -> int:
    """N; 0 for a table without columns."""
    return len(next(iter(table.values()))) if table else 0


def plain_rows(table: Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """The values of these columns as plain numbers, row after row."""
    return zip(*(table[name].tolist() for name in names))


class Policy(IntEnum):
    """Whose text a mismatch lies on."""

    STRICT = 0  # the target's own text
    SEQUENTIAL = 1  # the target's text with the harmless draft tokens kept (arXiv 2504.20039)
    GATED = 2  # the text of a gate


Columns = Mapping[str, torch.dtype]
"""Columns by name; each has the shape [N] unless its comment says otherwise."""
PLACE = {  # which text a row lies on, and where
    "problem": torch.int64,  # index of the training prompt
    "policy": torch.int8,  # whose text, a Policy
    "position": torch.int64,  # answer tokens in front of the mismatch
}
BLOCK = {  # its place, and what stood in the block from the mismatch on; enough to read it again
    **PLACE,
    "draft_id": torch.int64,  # x, the draft token
    "target_id": torch.int64,  # t*, the target's most probable token
    "behind": torch.int32,  # [N, K - 1] draft tokens behind x in its block, then -1
}
MISMATCHES = {
    **BLOCK,
    "accepted": torch.int8,  # 1 where the rule of this pass accepted x
    "greedy_kept": torch.int8,  # as in LABELS; -1 where no rollout has been made yet
}
LABELS = {
    **BLOCK,
    "greedy_kept": torch.int8,  # 1 where the greedy rollout behind x keeps the meaning
    "kept": torch.float32,  # the label: probability that x keeps the meaning
    "rollouts": torch.int16,  # rollouts behind the label
}
ROWS = {  # what a head's training needs beside the features
    **PLACE,
    "kept": torch.float32,  # the label
    "kl": torch.float32,  # KL(p || q) in nats; nan without draft probabilities
}
TRIAL = ("loss", "saved")
"""What a label of `label.recipe: answers` knows besides, as the column `trial` [N, 2]: what the
whole answer loses in score if x stands in place of t* and the target writes the rest, and the
tokens that this saves: x, those behind it in its block that the target writes too, less what the
answer grows by.
"""
FEATURES = {**ROWS, "same_target": torch.int8}  # 0 where t* differs when read again: a near tie
FEATURE = torch.float32
"""Of the columns [N, F] of features, by id; their units are those of gistgate.core.features."""


def checked(
    table: Table,
    columns: Columns,
    where: object,
    remedy: str = "Repeat the stage that writes it.",
) -> Table:
    """The table, once every column is there with its dtype and finite (`kl` may be unknown)."""
    for name, dtype in columns.items():
        if name not in table or table[name].dtype != dtype:
            raise UserError(f"{where} lacks '{name}' as {dtype}. {remedy}")
        if name != "kl" and not table[name].isfinite().all():
            raise UserError(f"{where}: '{name}' is not finite everywhere. {remedy}")
    return table


Texts = dict[tuple[int, int], list[int]]
"""Answers in which mismatches were found, as token ids, by problem and policy (whose text)."""


def pack(records: Table, texts: Texts) -> Table:
    """Records and their texts as one shard; the columns `text_*` do not share the leading axis of
    the records.
    """
    answers = texts.values()
    return {
        **records,
        "text_ids": torch.tensor(list(chain(*answers)), dtype=torch.int32),
        "text_lengths": torch.tensor(list(map(len, answers)), dtype=torch.int64),
        "text_problem": torch.tensor([problem for problem, _ in texts], dtype=torch.int64),
        "text_policy": torch.tensor([policy for _, policy in texts], dtype=torch.int8),
    }


def unpack(shard: Table) -> tuple[Table, Texts]:
    """The records of a shard, and its texts."""
    answers = shard["text_ids"].split(shard["text_lengths"].tolist())
    keys = plain_rows(shard, "text_problem", "text_policy")
    texts: Texts = dict(zip(keys, (answer.tolist() for answer in answers)))
    return {name: column for name, column in shard.items() if not name.startswith("text_")}, texts


def read_records(folder: Path, columns: Columns) -> list[tuple[Table, Texts]]:
    """The shards of data/mismatches/<pass> or data/labels/<pass>, each as records and texts."""
    shards = [unpack(load_tensors(file)) for file in shard_files(folder)]
    for index, (records, _) in enumerate(shards):
        checked(records, columns, f"{folder}, shard {index}")
    return shards


def read_references() -> dict[int, list[int]]:
    """The target's own answers to the training prompts, by problem, as token ids."""
    return {problem: row["ids"] for problem, row in enumerate(read_json_lines(REFERENCE))}


def read_labels() -> tuple[Table, Texts]:
    """All labels of both passes, and the texts they lie on."""
    tables: list[Table] = []
    texts: Texts = {}
    for name in PASSES:
        for records, texts_of_shard in read_records(LABEL_FOLDER / name, LABELS):
            tables.append(records)
            texts |= texts_of_shard
    return concatenated(tables), texts


@dataclass(frozen=True)
class Rows:
    """Mismatches with features and labels; every tensor has leading axis N."""

    x: Tensor  # features side by side [N, F], float32
    # the feature `scalars` [N, len(SCALARS)], float32; the training-free references judge by it
    scalars: Tensor
    problem: Tensor  # which training prompt the mismatch comes from [N]
    policy: Tensor  # whose text the mismatch lies on, a Policy [N]
    position: Tensor  # answer tokens in front of the mismatch [N]
    kept: Tensor  # probability that the meaning is kept [N], the label
    kl: Tensor  # KL(p || q) in nats [N], nan without a draft distribution
    trial: Tensor  # the columns TRIAL [N, 2], nan for labels of other recipes

    def __len__(self) -> int:
        return len(self.kept)

    def where(self, chosen: Tensor) -> "Rows":
        """The rows of a mask or an index."""
        return Rows(**picked(vars(self), chosen))

    def scalar(self, name: str) -> Tensor:
        """One column of `scalars` by name [N]."""
        return self.scalars[:, SCALARS.index(name)]


def read_rows(folders: Sequence[Path], features: Sequence[str]) -> tuple[Rows, dict[str, int]]:
    """All rows of some folders of data/features, and the width of every feature."""
    columns = {**ROWS, **dict.fromkeys((*features, "scalars"), FEATURE)}
    tables: list[Table] = []
    for file in chain(*map(shard_files, folders)):
        table = load_tensors(file)
        if num := len(table["kept"]):
            checked(table, columns, file)
            no_trial = torch.full((num, len(TRIAL)), torch.nan)
            table["trial"] = table.get("trial", no_trial)
            tables.append({name: table[name] for name in (*columns, "trial")})
    if not tables:
        raise UserError(
            f"{', '.join(map(str, folders))}: no label at all. Raise prompts.train in params.yaml,"
            " or take a draft that agrees less with the target."
        )
    table = concatenated(tables)
    del tables  # no more than two copies are in memory at any time
    table["x"] = torch.cat([table[name] for name in features], dim=-1)
    rows = Rows(**{field.name: table[field.name] for field in fields(Rows)})
    return rows, {name: table[name].shape[-1] for name in features}


@dataclass(frozen=True)
class ProblemParts:
    """Masks over the rows [N]; every row is in exactly one, and no problem is in two."""

    train: Tensor  # fits the head
    # stops the training of Lightning heads; the logistic head, which cross-validates, trains on it
    validation: Tensor
    calibration: Tensor  # fits the probability map
    test: Tensor  # measures the head and does nothing else


def split_by_problem(problem_N: Tensor, params: TrainParams, seed: int) -> ProblemParts:
    """Divide the rows by the hash of their problem, so that labels of another policy fall into the
    same parts.
    """

    def digest(problem: int) -> bytes:
        return hashlib.sha256(f"{seed}:{problem}".encode()).digest()

    problems = sorted(problem_N.unique().tolist(), key=digest)
    total = len(problems)
    if total < 4:
        raise UserError(
            f"Labels of {total} problems cannot be split into four parts. Raise prompts.train."
        )
    parts = {}
    for name in ("test", "calibration", "validation"):
        num = min(max(1, round(getattr(params, f"{name}_share") * total)), len(problems) - 1)
        parts[name] = torch.isin(problem_N, torch.tensor(problems[:num]))
        problems = problems[num:]
    return ProblemParts(torch.isin(problem_N, torch.tensor(problems)), **parts)


def as_classes(kept_N: Array) -> tuple[NDArray[np.intp], NDArray[np.intp], Array]:
    """Soft labels for estimators that know only classes: row index, class (1: kept) and weight [M],
    N <= M <= 2 N.
    """
    index = np.tile(np.arange(len(kept_N)), 2)
    label = np.repeat([1, 0], len(kept_N))
    weight = np.concatenate([kept_N, 1 - kept_N])
    counts = weight > 0
    return index[counts], label[counts], weight[counts]
