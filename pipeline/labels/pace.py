"""Whether rollouts are faster token by token or with speculative rounds, measured on the pair itself.

Greedy rollouts have the same ids either way (in bfloat16 up to near ties), so the choice changes the time alone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch

from gistgate.decoding.decoder import Decoder
from gistgate.files import read_json, write_json
from gistgate.observing.race import synchronise
from gistgate.rules import make_rule
from pipeline.common.decoders import make_decoder, request_of
from pipeline.pairs.pair import load_pair
from pipeline.params import MethodParams, Params

Way = Literal["plain", "speculative"]
"""One token per forward of the target, or drafted blocks."""
MEASURED = 24
"""Tokens that every row writes for the measurement."""


def settled(params: Params, prompts: Sequence[dict[str, Any]], file: Path) -> dict[str, Any]:
    """`way` and, where it was measured, tokens per second of both: what `file` says, else measured and written there.

    A stage that goes on after an interruption keeps to what its first start has found.
    """
    if params.engine.rollouts != "own":
        return {"way": params.engine.rollouts}
    if params.label.way != "auto":
        return {"way": params.label.way}
    if not file.exists():
        write_json(file, on_pair(params, prompts))
        gc.collect()
        torch.cuda.empty_cache()  # the stage loads the pair again, perhaps in other processes
    found: dict[str, Any] = read_json(file)
    return found


def on_pair(params: Params, prompts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `measured` finds on the run's pair, which is in memory for this measurement alone."""
    pair = load_pair(params)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    request = {**request_of(prompts, pair), "eos_ids": (), "stops": (), "max_new_tokens": MEASURED}
    ids = [prompts[place % len(prompts)]["ids"] for place in range(params.label.batch_size)]
    with threads_of(params):
        return measured(decoder, ids, **request)


@contextmanager
def threads_of(params: Params) -> Iterator[None]:
    """As many threads as the rollouts will have: where several processes share the shards, each has one."""
    before = torch.get_num_threads()
    if params.decoding.workers > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> dict[str, Any]:
    """The faster way behind these prompts, as many as a batch holds, and both rates in tokens per second."""
    memories = decoder.remember(prompts)
    decoders = {"plain": plain_of(decoder), "speculative": decoder}
    rates = {}
    for way, one in decoders.items():
        for num in (2, request["max_new_tokens"]):  # the first round warms up
            synchronise(one.target.device)
            started = perf_counter()
            done = one.resume(
                memories,
                [(len(ids) - 1, ids[-1:]) for ids in prompts],
                [len(ids) for ids in prompts],
                remember=False,
                **{**request, "max_new_tokens": num},
            )
            synchronise(one.target.device)
            rates[way] = sum(len(answer.ids) for answer, _ in done) / (perf_counter() - started)
    return {"way": max(rates, key=lambda way: rates[way]), "rows": len(prompts), "tokens_per_second": rates}


def plain_of(decoder: Decoder) -> Decoder:
    """The same target without a drafter."""
    rule, tokenizer = make_rule("exact"), decoder.tokenizer
    return Decoder(decoder.target, None, rule, tokenizer=tokenizer, vocabulary=decoder.vocabulary)
