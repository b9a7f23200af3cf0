"""Drafter by rule in one run: speed, accepted length and loss of retrieval, lookup, corpus and draft model.

    python -m benchmarks.drafters [--prompts 24] [--scored 200] [--ablation] [--results FOLDER]

In the folder of a finished run with a datastore (`make retrieval`). Speed one row at a time on the first prompts, eager
engine; accuracy against plain decoding on `scored` test prompts in batches. `sense` runs at the setting that was
certified for the draft model where there is one, else at its default: with another drafter that is **no certificate**.
`--ablation` compares SENSE alone: without states, without its soft gate, without both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, command, ratios, save, side_by_side
from benchmarks.workload import Workload
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.statistics import total
from gistgate.drafters import ModelDrafter, PromptLookup, SuffixDrafter
from gistgate.drafters.base import Drafter
from gistgate.drafters.corpus import CorpusDrafter
from gistgate.drafters.sen import SenDrafter
from gistgate.drafters.suffix_array import SuffixArray
from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.retrieval import Datastore
from gistgate.rules import make_rule
from pipeline.decode import read_prompts
from pipeline.timed import Contender, ours

STORE, ANSWERS = Path("models/datastore"), Path("data/reference/train.jsonl")
REFERENCES = ("plain", "lookup+exact", "corpus+exact", "model+exact")


def main(
    prompts: int = 24, scored: int = 200, block: int = 8, ablation: bool = False, threads: int = 1,
    results: Path = RESULTS,
) -> None:  # fmt: skip
    torch.set_num_threads(threads)
    workload = Workload.load(prompts)
    decoders = {name: decoder(workload, name, block) for name in names(ablation)}
    field = [Contender(name, ours(one, workload.request), one.block) for name, one in decoders.items()]
    measured = ratios(side_by_side(field, [[ids] for ids in workload.ids]), REFERENCES)
    for name, quality in losses(workload, decoders, scored).items():
        measured[name] |= quality
        tau, loss = quality["mean_accepted_length"], quality["accuracy_difference"]["mean"]
        print(f"{name:24} tau {tau:.2f} difference {loss:+.3f}")
    payload = {
        "pair": workload.pair.name,
        "block": block,
        "scored": scored,
        "sense": settings(workload),
        "arms": measured,
    }
    save("ablation" if ablation else "drafters", payload, results)


def names(ablation: bool) -> list[str]:
    """Arms as drafter+rule."""
    if ablation:
        return ["plain", "sen+sense", "sen-lexical+sense", "sen+exact", "sen-lexical+exact"]
    drafters = ["lookup", "suffix", "corpus", "sen", "model"]
    return ["plain", *[f"{drafter}+{rule}" for drafter in drafters for rule in ("exact", "sense")]]


def decoder(workload: Workload, name: str, block: int) -> Decoder:
    """The decoder of one arm."""
    drafter, _, rule = name.partition("+")
    pair = workload.pair
    return Decoder(
        pair.target,
        None if name == "plain" else make(workload, drafter),
        make_rule(rule or "exact", **(settings(workload) if rule == "sense" else {})),
        0 if name == "plain" else block,
        tokenizer=pair.tokenizer,
        vocabulary=len(pair.tokenizer),
    )


def settings(workload: Workload) -> dict[str, Any]:
    """Of the soft gate: what was certified for the draft model, else the defaults."""
    point = workload.points.get("sense")
    return dict(point.settings) if point is not None else {}


def make(workload: Workload, drafter: str) -> Drafter:
    """A drafter by its name in this table.

    Raises:
        UserError: the datastore or the training answers are missing.
    """
    if drafter == "model":
        return ModelDrafter(workload.pair.draft)
    if drafter in ("lookup", "suffix"):
        return PromptLookup() if drafter == "lookup" else SuffixDrafter()
    if drafter == "corpus":
        texts = training_texts()
        return CorpusDrafter(SuffixArray.build(texts))
    if not STORE.is_dir():
        raise UserError(f"{STORE} is missing. Run `make retrieval` in this folder first.")
    return SenDrafter(Datastore.load(STORE, workload.pair.target), semantic=drafter == "sen")


def training_texts() -> list[list[int]]:
    """Training prompts with the target's answers to them: all that a retrieval drafter may know."""
    answers = {row["id"]: row["ids"] for row in read_json_lines(ANSWERS)}
    return [[*prompt["ids"], *answers[prompt["id"]]] for prompt in read_prompts("train") if prompt["id"] in answers]


def losses(workload: Workload, decoders: dict[str, Decoder], count: int) -> dict[str, dict[str, Any]]:
    """Accepted length, loose tokens, and accuracy against plain decoding, by arm."""
    from gistgate.decoding.batches import decode_all
    from pipeline.paired import accuracy_difference
    from pipeline.tasks import load_task

    task, prompts = load_task(workload.params), read_prompts("test")[:count]
    scores, counts = {}, {}
    for name, one in decoders.items():
        answers = decode_all(
            one, [prompt["ids"] for prompt in prompts], batch_size=workload.params.decoding.batch_size,
            seeds=list(range(len(prompts))), **workload.request,
        )  # fmt: skip
        texts = [task.text(workload.pair.tokenizer, answer.ids) for answer in answers]
        scores[name] = [task.score(prompt["doc"], text) for prompt, text in zip(prompts, texts, strict=True)]
        counts[name] = total([answer.statistics for answer in answers])
    return {
        name: {
            "mean_accepted_length": counts[name].mean_accepted_length,
            "loose_per_100": counts[name].loose_per_100,
            "accuracy_difference": accuracy_difference(scores[name], scores["plain"]).as_dict(),
        }
        for name in decoders
    }


if __name__ == "__main__":
    command(main)
