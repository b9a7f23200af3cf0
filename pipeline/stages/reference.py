"""Decode every split strictly, once for all methods that are compared with it: `python -m
pipeline.stages.reference` writes data/reference/<split>.jsonl. The splits that calibration decodes
come in its own pieces wherever numbers are rounded more than in float32: there a row's rounding
depends on its batch.
"""

from collections.abc import Callable

import torch

from gistgate.core.batches import PromptCache
from gistgate.core.files import write_json_lines
from pipeline.decode import decode_split, strict_decoder
from pipeline.outcomes import TOGETHER, maker_of, mark
from pipeline.pair.pair import load_pair
from pipeline.params import Params, read_params
from pipeline.paths import reference_of
from pipeline.run import run, side_by_side
from pipeline.task import load_task, read_prompts

SPLITS = ("calibration", "train", "development")
"""The splits that later stages compare with, the largest first; test is evaluated by lm-eval."""


def main() -> None:
    params = read_params()
    side_by_side(referring, params, SPLITS, params.decoding.workers, "reference", "split")


def referring(params: Params) -> Callable[[str], None]:
    """Decodes one split after another."""
    pair = load_pair(params)
    task = load_task(params)
    decoder = strict_decoder(pair, params.decoding.block)
    maker = maker_of(pair)

    def work(split: str) -> None:
        prompts = read_prompts(split)
        in_pieces = pair.target.dtype != torch.float32 and split != "train"
        size = TOGETHER * params.decoding.batch_size if in_pieces else len(prompts)
        rows = []
        for start in range(0, len(prompts), size):
            memory = PromptCache(0) if in_pieces else None
            part = prompts[start : start + size]
            title = f"strict, {split}"
            answers = decode_split(decoder, pair, part, params, title, memory, start)
            for answer, prompt in zip(answers, part):
                text = task.text(pair.tokenizer, answer.ids)
                row = {
                    "id": prompt["id"],
                    "ids": answer.ids,
                    "text": text,
                    "score": task.score(prompt["doc"], text),
                    "cut": answer.finish == "length",
                    "statistics": answer.statistics.as_dict(timed=False),
                    "mark": mark(maker, prompt["ids"]),  # DVC does not see weights that change
                }
                rows.append(row)
        write_json_lines(reference_of(split), rows)
        cut = sum(row["cut"] for row in rows)
        print(f"{split}: {cut} of {len(rows)} strict answers are cut at the limit")

    return work


if __name__ == "__main__":
    run(main)
