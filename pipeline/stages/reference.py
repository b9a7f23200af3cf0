"""Decode every split strictly, once for all methods that are compared with it.

python -m pipeline.stages.reference      reads data/prompts, writes data/reference/<split>.jsonl

data/reference/<split>.json says how well the batches were filled (pipeline/certification/usage.py).
data/agreement/<split>.json says which settings of the methods without a gate would have kept the same tokens of every
block of a strict answer; calibration does not decode these again (pipeline/certification/agreement.py).

An interruption loses a few batches: finished pieces of a split wait in .scratch. The splits that calibration decodes
come in its own pieces and by its own way wherever numbers are rounded more than in float32: there a row's rounding
depends on its batch, and a setting that accepts nothing loosely would otherwise differ from its own reference.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gistgate.core.batches import PromptCache
from gistgate.core.files import fingerprint, read_json_lines, write_json, write_json_lines
from gistgate.core.request import Usage
from pipeline import run as ranks
from pipeline.decode import Outcome, make_decoder, read_prompts, run_split, seeds_of
from pipeline.outcomes import (
    TOGETHER,
    Agreement,
    agreement_file,
    as_json,
    keep_beside,
    kept_beside,
    maker_of,
    mark,
    rules_beside_strict,
    summed,
    watched,
)
from pipeline.pair.pair import load_pair, pair_files
from pipeline.params import MethodParams, Params, read_params
from pipeline.paths import SCRATCH, prompts_of, reference_of
from pipeline.run import run, side_by_side
from pipeline.tasks import load_task, task_parts

SPLITS = ("calibration", "train", "development")
"""The splits that later stages compare with, the largest first; test is evaluated by lm-eval."""
CALIBRATED = ("calibration", "development")
"""The splits that calibration decodes."""
BATCHES = 8
"""Batches in a piece."""


def main() -> None:
    params = read_params()
    folder = pieces_folder(params)
    side_by_side(referring, (params, folder), SPLITS, params.decoding.workers, "reference", "split")
    if ranks.is_first():
        shutil.rmtree(folder, ignore_errors=True)


def pieces_folder(params: Params) -> Path:
    """Where finished pieces wait."""
    files = [*map(prompts_of, SPLITS), *pair_files(params.pair)]
    settings = [params.pair, params.seed, params.decoding.deciding, params.methods]
    return SCRATCH / f"reference-{fingerprint(*map(repr, settings), *task_parts(params), *files)}"


def referring(settings: tuple[Params, Path]) -> Callable[[str], None]:
    """Decodes one split after another."""
    params, folder = settings
    pair, task, rules = load_pair(params), load_task(params), rules_beside_strict(params)
    strict = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    rounds, maker = pair.target.dtype != torch.float32, maker_of(pair)

    def size(split: str) -> int:
        return (TOGETHER if rounds and split in CALIBRATED else BATCHES) * params.decoding.batch_size

    def piece(split: str, start: int, usage: Usage) -> list[dict[str, Any]]:
        every = read_prompts(split)
        prompts = every[start : start + size(split)]
        title = f"strict, {split}, piece {start // size(split) + 1} of {-(-len(every) // size(split))}"
        memory = PromptCache(0) if rounds and split in CALIBRATED else None
        watcher = Agreement(rules if split in CALIBRATED else {})
        decoder = watched(strict, watcher)
        outcomes = run_split(decoder, task, pair, prompts, params, title, memory, start, usage)
        seeds = seeds_of(params, prompts, start)
        return [
            {**row_of(one), "mark": mark(maker, prompt["ids"]), "alike": watcher.alike(seed)}
            for one, prompt, seed in zip(outcomes, prompts, seeds, strict=True)
        ]

    def work(split: str) -> None:
        rows: list[dict[str, Any]] = []
        usages: list[Usage | None] = []
        for start in range(0, len(read_prompts(split)), size(split)):
            path, usage = folder / f"{split}-{start:05d}.jsonl", Usage()
            if not path.exists():
                found = piece(split, start, usage)
                keep_beside(path, usage)
                write_json_lines(path, found)
            rows += read_json_lines(path)
            usages.append(kept_beside(path))
        publish(split, rows, summed(usages))
        print(f"{split}: {sum(row['cut'] for row in rows)} of {len(rows)} strict answers are cut at the limit")

    return work


def publish(split: str, rows: list[dict[str, Any]], usage: Usage | None) -> None:
    """Write the answers of a split, how their slots were used, and by setting the prompts on which it agrees."""
    agreement: dict[str, list[str]] = {}
    for row in rows:
        for key in row.pop("alike"):
            agreement.setdefault(key, []).append(row["id"])
    if split in CALIBRATED:
        write_json(agreement_file(split), agreement)
    write_json(reference_of(split).with_suffix(".json"), as_json(usage))
    write_json_lines(reference_of(split), rows)


def row_of(outcome: Outcome) -> dict[str, Any]:
    """A line of the file."""
    return {
        "id": outcome.id,
        "ids": outcome.ids,
        "text": outcome.text,
        "score": outcome.score,
        "cut": outcome.cut,
        "statistics": outcome.statistics.as_dict(timed=False),
    }


if __name__ == "__main__":
    run(main)
