"""Sampled trees at T = 1: accepted length and speed of lossless rules on one chain and on trees of whole chains.

    python -m benchmarks.sampled [--prompts 24] [--counted 100] [--results FOLDER]

In the folder of a finished run whose pair has a draft model, on development prompts, every arm with seeds of its own.
tau on the first `counted` prompts, read in batches; speed on the first `prompts`, one row at a time, eager engine.
Sampled answers differ in length from arm to arm, so that speed compares seconds per token, averaged over prompts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from benchmarks.bench import RESULTS, save, side_by_side
from benchmarks.workload import Workload
from gistgate.block import Sampling
from gistgate.decoding.batches import decode_all
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.base import Drafter
from gistgate.drafters.model import ModelDrafter
from gistgate.forward.context import num_ids
from gistgate.observing.intervals import ratio_of_sums
from gistgate.optional.trees.drafter import TreeDrafter
from gistgate.rules import make_rule
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.speed.clock import Contender, Prompts, ours

PLAIN = "plain"


def main(prompts: int = 24, counted: int = 100, threads: int = 1, results: Path = RESULTS) -> None:
    torch.set_num_threads(threads)
    workload = replace(Workload.load(0), prompts=read_prompts("development")[: max(prompts, counted)])
    decoders, request = make_decoders(workload), {**workload.request, "sampling": Sampling(temperature=1.0)}
    field = [contender(name, decoder, request) for name, decoder in decoders.items()]
    arms = speeds(side_by_side(field, [[ids] for ids in workload.ids[:prompts]]))
    for name, decoder in decoders.items():
        texts = workload.ids[:counted]
        answers = decode_all(
            decoder, texts, batch_size=workload.params.decoding.batch_size, seeds=seeds_of(name, texts), **request
        )
        forwards = [one.statistics.forwards for one in answers]
        arms[name]["tau"] = ratio_of_sums([one.statistics.tokens for one in answers], forwards).as_dict()
        print(name, {key: round(value, 2) for key, value in arms[name]["tau"].items()}, flush=True)
    block = workload.params.decoding.block
    save("sampled", {"pair": workload.pair.name, "block": block, "counted": counted, "arms": arms}, results)


def make_decoders(workload: Workload) -> dict[str, Decoder]:
    """Plain decoding, and each lossless rule with what it is compared on.

    Raises:
        UserError: the pair has no draft model.
    """
    draft, block = workload.pair.draft_model, workload.params.decoding.block
    chain = ModelDrafter(draft)
    two, four = (TreeDrafter(draft, nodes=block * count, chains=count) for count in (2, 4))
    arms: dict[str, tuple[Drafter | None, str]] = {
        PLAIN: (None, "exact"),
        "one chain, exact": (chain, "exact"),
        "one chain, block": (chain, "block"),
        "two chains, exact": (two, "exact"),
        "two chains, traversal": (two, "traversal"),
        "four chains, exact": (four, "exact"),
        "four chains, traversal": (four, "traversal"),
    }
    return {
        name: Decoder(
            workload.pair.target,
            drafter,
            make_rule(rule),
            block if drafter else 0,
            tokenizer=workload.pair.tokenizer,
            vocabulary=num_ids(workload.pair.tokenizer),
        )
        for name, (drafter, rule) in arms.items()
    }


def contender(name: str, decoder: Decoder, request: dict[str, Any]) -> Contender:
    """One arm, with its seeds."""

    def decode(prompts: Prompts) -> tuple[list[list[int]], int | None]:
        return ours(decoder, {**request, "seeds": seeds_of(name, prompts)})(prompts)

    return Contender(name, decode, decoder.block)


def seeds_of(name: str, prompts: Prompts) -> list[int]:
    """Another number for every arm and prompt, the same one in every run."""
    return [crc32(f"{name} {ids}".encode()) for ids in prompts]


def speeds(times: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tokens per second of every arm, and how many times faster than plain decoding a token of a prompt is."""
    slow = {name: [s / n for s, n in zip(one["seconds"], one["tokens"], strict=True)] for name, one in times.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, one in times.items():
        rate = sum(one["tokens"]) / sum(one["seconds"])
        found[name] = {"block": one["block"], "tokens_per_second": rate, "n": len(one["seconds"])}
        if name != PLAIN:
            found[name]["vs_plain"] = ratio_of_sums(slow[PLAIN], slow[name]).as_dict()
    return found


if __name__ == "__main__":
    run(main, kept=False)
