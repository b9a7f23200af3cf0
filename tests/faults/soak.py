"""Many requests through one process: memory stays flat, and the last answers are those of a fresh process.

    python -m tests.faults.soak --requests 10000

Every request has its own length, rule, drafter, sampling and stop string, all drawn from its number.
"""

from __future__ import annotations

import gc
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import psutil
import torch
import typer

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.lookup import PromptLookup
from gistgate.drafters.model import ModelDrafter
from gistgate.optional.trees.lookup import LookupTree
from gistgate.rules import RULES as RULE_KINDS
from gistgate.rules import make_rule
from tests.decoding.watching import HalfGate
from tests.faults import results
from tests.tiny import byte_tokenizer, tiny_pair

LAST = 100
"""Answers that are compared with those of a fresh process."""
WARM = 0.2
"""Share of the requests after which memory is measured first: caches are filled by then."""
GROWTH = 16.0
"""MiB by which memory may grow afterwards."""
RULES: dict[str, dict[str, Any]] = {
    "exact": {}, "fly": {"theta": 0.3}, "autojudge": {"risk": 0.05}, "prob-ratio": {"r": 0.3}, "random": {"rate": 0.3},
}  # fmt: skip


def decoders() -> list[tuple[str, Decoder]]:
    """One decoder for each rule and drafter, all around the same models."""
    target, draft = tiny_pair(noise=0.3)
    drafters = (ModelDrafter(draft), PromptLookup(), LookupTree())
    return [
        (rule, Decoder(target, drafter, make_rule(rule, **settings), 5, gate=HalfGate(), tokenizer=byte_tokenizer()))
        for rule, settings in RULES.items()
        for drafter in drafters
    ]


def answer(number: int, made: list[tuple[str, Decoder]]) -> list[int]:
    """The ids of the answer to request `number`."""
    chance = random.Random(number)
    rule, decoder = made[chance.randrange(len(made))]
    prompt = [chance.randrange(3, 259) for _ in range(chance.choice((1, 2, 5, 17, 60)))]
    is_greedy = RULE_KINDS[rule].temperatures == "greedy" or decoder.drafter.nodes or chance.random() < 0.5
    sampling = Sampling() if is_greedy else Sampling(chance.choice((0.5, 1.0)), top_k=chance.choice((0, 20)))
    stops = [chr(chance.randrange(97, 123))] if chance.random() < 0.3 else []
    request: dict[str, Any] = {"max_new_tokens": chance.choice((1, 3, 8, 24)), "seeds": [number], "stops": stops}
    return decoder.generate([prompt], sampling=sampling, eos_ids=[2], **request)[0].ids


def memory() -> float:
    """MiB that this process occupies."""
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def main(
    requests: Annotated[int, typer.Option(help="Number of requests.", min=200)] = 10_000,
    only_last: Annotated[bool, typer.Option(help="Print the last answers of a fresh process as JSON.")] = False,
) -> None:
    """Send the requests, then compare."""
    made, first = decoders(), requests - LAST
    if only_last:
        print(json.dumps([answer(number, made) for number in range(first, requests)]))
        return
    ids, warm = [], 0.0
    for number in range(requests):
        ids.append(answer(number, made))
        del ids[:-LAST]
        if number == int(WARM * requests):
            warm = memory()
    grown = memory() - warm
    fresh = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak", "--requests", str(requests), "--only-last"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True,
    )  # fmt: skip
    differing = sum(one != other for one, other in zip(ids, json.loads(fresh.stdout), strict=True))
    results.add(soak_requests=requests, soak_growth_mib=round(grown, 1), soak_differing=differing)
    print(f"{requests} requests: memory grew by {grown:.1f} MiB, {differing} of the last {LAST} answers differ.")
    raise SystemExit(int(differing > 0 or grown > GROWTH))


if __name__ == "__main__":
    torch.set_num_threads(1)
    typer.run(main)
