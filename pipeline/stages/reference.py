"""Decode every split strictly, once for all methods that are compared with it.

python -m pipeline.stages.reference      reads data/prompts, writes data/reference/<split>.jsonl

An interruption loses a few batches: finished pieces of a split wait in .scratch.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gistgate.files import read_json_lines, write_json_lines
from pipeline.common import ranks
from pipeline.common.decoders import Outcome, make_decoder, read_prompts, run_split
from pipeline.common.entry import run
from pipeline.common.paths import prompts_of, reference_of
from pipeline.common.pool import side_by_side
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.pairs.pair import load_pair, pair_files
from pipeline.params import MethodParams, Params, read_params
from pipeline.tasks.loading import load_task

SPLITS = ("calibration", "train", "development")
"""The splits that later stages compare with, the largest first; test is evaluated by lm-eval."""
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
    files = [*map(prompts_of, SPLITS), *pair_files(params.pair), *sources("pipeline.stages.reference")]
    settings = [params.pair, params.seed, params.task, params.task_metric, params.decoding]
    return SCRATCH / f"reference-{fingerprint(*map(repr, settings), *files)}"


def referring(settings: tuple[Params, Path]) -> Callable[[str], None]:
    """Decodes one split after another."""
    params, folder = settings
    pair, task = load_pair(params), load_task(params)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    size = BATCHES * params.decoding.batch_size

    def work(split: str) -> None:
        prompts, rows = read_prompts(split), []
        for start in range(0, len(prompts), size):
            path, part = folder / f"{split}-{start:05d}.jsonl", prompts[start : start + size]
            if not path.exists():
                outcomes = run_split(decoder, task, pair, part, params, f"strict, {split}")
                write_json_lines(path, [row_of(outcome) for outcome in outcomes])
            rows += read_json_lines(path)
        write_json_lines(reference_of(split), rows)
        print(f"{split}: {sum(row['cut'] for row in rows)} of {len(rows)} strict answers are cut at the limit")

    return work


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
