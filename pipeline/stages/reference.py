"""Decode every split strictly, once for all methods that are compared with it.

python -m pipeline.stages.reference      reads data/prompts, writes data/reference/<split>.jsonl
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gistgate.files import write_json_lines
from pipeline.common.decoders import make_decoder, read_prompts, run_split
from pipeline.common.entry import run
from pipeline.common.pool import side_by_side
from pipeline.pairs.pair import load_pair
from pipeline.params import MethodParams, Params, read_params
from pipeline.tasks.loading import load_task

SPLITS = ("calibration", "train", "development")
"""The splits that later stages compare with, the largest first; test is evaluated by lm-eval."""


def main() -> None:
    params = read_params()
    side_by_side(referring, params, SPLITS, params.decoding.workers, "reference", "split")


def referring(params: Params) -> Callable[[str], None]:
    """Decodes one split after another."""
    pair, task = load_pair(params), load_task(params)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)

    def work(split: str) -> None:
        outcomes = run_split(decoder, task, pair, read_prompts(split), params, f"strict, {split}")
        rows = [
            {
                "id": outcome.id,
                "ids": outcome.ids,
                "text": outcome.text,
                "score": outcome.score,
                "statistics": outcome.statistics.as_dict(timed=False),
            }
            for outcome in outcomes
        ]
        write_json_lines(Path("data/reference") / f"{split}.jsonl", rows)

    return work


if __name__ == "__main__":
    run(main)
