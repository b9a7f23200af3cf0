"""Decode every split strictly, once for all methods that are compared with it.

python -m pipeline.reference      reads data/prompts, writes data/reference/<split>.jsonl
"""

from __future__ import annotations

from pathlib import Path

from gistgate.files import write_json_lines
from pipeline.decode import make_decoder, read_prompts, run_split
from pipeline.pairs import load_pair
from pipeline.params import MethodParams, read_params
from pipeline.stage import run
from pipeline.tasks import load_task

SPLITS = ("train", "development", "calibration")
"""The splits that later stages compare with; test is evaluated by lm-eval."""


def main() -> None:
    params = read_params()
    pair, task = load_pair(params), load_task(params)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    for split in SPLITS:
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


if __name__ == "__main__":
    run(main)
