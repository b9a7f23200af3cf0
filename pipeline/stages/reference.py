"""Decode every split strictly, once for all methods that are compared with it: `python -m
pipeline.stages.reference` writes data/reference/<split>.jsonl. Wherever numbers are rounded more
than in float32 a split comes in the pieces of calibration: there a row's rounding depends on its
batch. Answers wait in .scratch, so that an interruption loses a piece at most.
"""

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gistgate.certificates.outcomes import Answer, cached
from gistgate.core.batches import PromptCache
from gistgate.core.files import write_json_lines
from gistgate.coverage.choose import Choice
from gistgate.tasks.prompts import Prompt
from pipeline.decode import decode_split, surroundings
from pipeline.methods import MODEL
from pipeline.outcomes import answer_of, maker_of, mark, piece_of
from pipeline.params import Params, read_params
from pipeline.paths import SCRATCH, reference_of
from pipeline.plan import announce
from pipeline.run import run, side_by_side
from pipeline.served import answering_decoder, load_answering
from pipeline.task import load_task, read_prompts, request_of

SPLITS = ("calibration", "train", "development")
"""The splits that later stages compare with, the largest first; test is evaluated by lm-eval."""
KEPT = SCRATCH / "reference"


def main() -> None:
    params = read_params()
    # Each worker would start a vLLM of its own.
    workers = 1 if params.engine.answers == "vllm" else params.decoding.workers
    side_by_side(referring, params, SPLITS, workers, "reference", "split")
    shutil.rmtree(KEPT, ignore_errors=True)


def referring(params: Params) -> Callable[[str], None]:
    """Decodes one split after another."""
    pair = load_answering(params)
    task = load_task(params)
    decoder = answering_decoder(pair, Choice("exact", {}, params.decoding.block, MODEL), None)
    maker = maker_of(pair)
    if params.decoding.workers == 1 and pair.server is None:
        training = read_prompts("train")
        announce(params, decoder, training, **request_of(training, pair))

    def work(split: str) -> None:
        prompts = read_prompts(split)
        batch_size = params.decoding.batch_size
        if split == "train":  # no certificate is about its answers
            batch_size = params.label.batch_size
        is_rounded = pair.target.dtype != torch.float32
        in_pieces = is_rounded or batch_size == 1
        size = piece_of(batch_size) if in_pieces else len(prompts)

        def decode(_: dict[str, Any], piece: Sequence[Prompt], start: int) -> list[Answer]:
            memory = PromptCache(0) if is_rounded else None
            job = (decoder, pair, piece, params, f"strict, {split}", memory, start, batch_size)
            return [answer_of(answer) for answer in decode_split(*job)]

        block = params.decoding.block
        kept = cached(decode, KEPT, split, maker, block, batch_size, *surroundings(pair))
        rows = []
        for start in range(0, len(prompts), size):
            piece = prompts[start : start + size]
            for answer, prompt in zip(kept({}, piece, start), piece):
                text = task.text(pair.tokenizer, answer.ids)
                row = {
                    "id": prompt["id"],
                    "ids": answer.ids,
                    "text": text,
                    "score": task.score(prompt["doc"], text),
                    "finish": answer.finish,
                    "statistics": answer.statistics.as_dict(timed=False),
                    "mark": mark(maker, prompt["ids"]),  # DVC does not see weights that change
                }
                if "answer" in answer.statistics.seconds:
                    row["seconds"] = answer.statistics.seconds["answer"]
                rows.append(row)
        write_json_lines(reference_of(split), rows)
        cut = sum(row["finish"] == "length" for row in rows)
        print(f"{split}: {cut} of {len(rows)} strict answers are cut at the limit")

    return work


if __name__ == "__main__":
    run(main)
