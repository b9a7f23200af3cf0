"""What the result of a method depends on besides the code of the stage that finds it."""

from __future__ import annotations

from pathlib import Path

from gistgate.files import named_files
from pipeline.common.drafters import files_behind
from pipeline.common.gates import gate_folder
from pipeline.common.operating_point import Operating
from pipeline.pairs.source import read_pair
from pipeline.params import Params


def method_parts(params: Params, point: Operating) -> list[str | Path]:
    """The settings, and the files and folders, that a result on test prompts depends on, for a fingerprint."""
    source = read_pair(params.pair)
    pair = [Path(model.model) for model in source.models if model.is_folder]
    gate = [gate_folder(point.head)] if point.head else []
    files = [Path("data/prompts/test.jsonl"), Path("data/tasks"), *pair, *gate, *files_behind(point.drafter)]
    settings = [point, source, params.task, params.task_metric, params.prompting, params.decoding.deciding, params.seed]
    return [*map(repr, settings), *files, *named_files(point.settings)]
