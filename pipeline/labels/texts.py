"""The texts that mismatches lie on: many mismatches share a text, and the prefix of each is the text up to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gistgate.files import read_json_lines
from pipeline.common.resume import num_shards, read_shards
from pipeline.labels.schema import LABEL_FOLDER, LABELS, PASSES, REFERENCE, Column, checked
from pipeline.labels.tables import Table, concatenated


@dataclass(frozen=True)
class AnswerText:
    """One answer in which mismatches were found."""

    problem: int
    """Index of its prompt in the split."""
    policy: int
    """Whose text it is, a Policy."""
    ids: list[int]
    """The answer as token ids, without the prompt."""


Texts = dict[tuple[int, int], AnswerText]
"""Texts by (problem, policy)."""


def pack(records: Table, texts: Iterable[AnswerText]) -> Table:
    """Records and their texts as one shard; the columns `text_*` do not share the leading axis of the records."""
    texts = list(texts)
    return {
        **records,
        "text_ids": torch.tensor([token for text in texts for token in text.ids], dtype=torch.int32),
        "text_lengths": torch.tensor([len(text.ids) for text in texts], dtype=torch.int64),
        "text_problem": torch.tensor([text.problem for text in texts], dtype=torch.int64),
        "text_policy": torch.tensor([text.policy for text in texts], dtype=torch.int8),
    }


def unpack(shard: Table) -> tuple[Table, Texts]:
    """The records of a shard, and its texts."""
    parts = shard["text_ids"].split(shard["text_lengths"].tolist())
    keys = zip(shard["text_problem"].tolist(), shard["text_policy"].tolist(), strict=True)
    texts = {key: AnswerText(*key, ids=part.tolist()) for key, part in zip(keys, parts, strict=True)}
    return {name: column for name, column in shard.items() if not name.startswith("text_")}, texts


def read_records(folder: Path, columns: Mapping[str, Column]) -> list[tuple[Table, Texts]]:
    """The shards of data/mismatches/<pass> or data/labels/<pass>, each as records and texts.

    Raises:
        UserError: there are no shards, or one of them breaks the schema `columns`.
    """
    num_shards(folder)
    shards = [unpack(shard) for shard in read_shards(folder)]
    for index, (records, _) in enumerate(shards):
        checked(records, columns, f"{folder}, shard {index}")
    return shards


def read_references() -> dict[int, list[int]]:
    """The target's own answers to the training prompts, by problem, as token ids."""
    return {problem: row["ids"] for problem, row in enumerate(read_json_lines(REFERENCE))}


def read_labels() -> tuple[Table, Texts]:
    """All labels of both passes, and the texts they lie on."""
    shards = [shard for name in PASSES for shard in read_records(LABEL_FOLDER / name, LABELS)]
    texts: Texts = {}
    for _, some in shards:
        texts |= some
    return concatenated([records for records, _ in shards]), texts
