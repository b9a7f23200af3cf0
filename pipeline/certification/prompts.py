"""Calibration prompts that no other purpose has used."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from gistgate.files import read_json_lines
from pipeline.pairs.world.corpus import documents
from pipeline.pairs.world.params import WorldParams
from pipeline.stages.prompts import Maker, Prompt, fresh_prompts

USED = Path("data/prompts")


def used_prompts(folder: Path = USED, splits: Iterable[str] = ("train", "development", "test")) -> list[Prompt]:
    """Prompts of a finished run that may have shaped the gate or its settings; none where there is no such run."""
    files = [folder / f"{split}.jsonl" for split in splits]
    return [prompt for file in files if file.is_file() for prompt in read_json_lines(file)]


def unused_prompts(maker: Maker, docs: list[dict[str, Any]], count: int, seed: int, used: list[Prompt]) -> list[Prompt]:
    """At most `count` prompts of `docs` in random order, without problems that `used` holds."""
    seen = {maker.problem(prompt["doc"]) for prompt in used}
    return list(islice(fresh_prompts(maker, docs, random.Random(f"{seed} certificates"), seen), count))


def world_documents(params: WorldParams, seed: int, count: int) -> list[dict[str, str]]:
    """Problems of the embedded world behind those of the task's training file, which they never repeat."""
    return documents(params, seed, "train", params.task_train + count)[params.task_train :]
