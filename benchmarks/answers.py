"""Answers of a server and of this process, side by side: equal ids, equal scores, what was accepted loosely."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any
from urllib.request import urlopen

from openai import AsyncOpenAI

from benchmarks.load import SECONDS, answered
from benchmarks.servers import MODEL
from gistgate.errors import UserError
from gistgate.integrations.vllm.metrics import INTERVAL

COUNTED = ("blocks", "loose")
"""Counters of the plug-in that are read."""
Score = Callable[[dict[str, Any], list[int]], float]
"""The task's metric of a prompt's answer."""


@dataclass(frozen=True)
class Answer:
    """One answer, of a server or of this process."""

    ids: list[int]
    score: float
    cut: bool


def asked(address: str, prompts: Sequence[dict[str, Any]], users: int, score: Score) -> list[Answer]:
    """A server's greedy answers to prompts of a run, at most `users` of them at once.

    Raises:
        UserError: the server did not answer one of them.
    """
    with answered(address):
        return asyncio.run(_asked(address, prompts, users, score))


async def _asked(address: str, prompts: Sequence[dict[str, Any]], users: int, score: Score) -> list[Answer]:
    free = asyncio.Semaphore(users)
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:

        async def ask(prompt: dict[str, Any]) -> Answer:
            async with free:
                done = await client.completions.create(
                    model=MODEL,
                    prompt=prompt["ids"],
                    max_tokens=prompt["max_new_tokens"],
                    stop=prompt["stops"] or None,
                    temperature=0.0,
                    extra_body={"return_token_ids": True},
                )
            first = done.choices[0]
            ids = list((first.model_extra or {})["token_ids"])  # vLLM's own field
            return Answer(ids, score(prompt, ids), first.finish_reason == "length")

        return list(await asyncio.gather(*map(ask, prompts)))


def counters(address: str) -> dict[str, float]:
    """What the plug-in has counted, once its workers have written it.

    Raises:
        UserError: the plug-in does not run in the server.
    """
    sleep(2.5 * INTERVAL)
    with urlopen(f"{address}/metrics", timeout=10) as page:
        lines = [line.split() for line in page.read().decode().splitlines() if line.startswith("gistgate_")]
    values = {words[0]: words[-1] for words in lines}
    if not values:
        raise UserError(
            f"The plug-in does not run in the server at {address}. Install gistgate into the server's environment; the "
            "server's log in .scratch says what kept it from loading."
        )
    return {name: float(values[f"gistgate_{name}_total"]) for name in COUNTED}


def compared(some: list[Answer], others: list[Answer]) -> dict[str, int]:
    """On how many prompts two lists of answers have equal ids, and unequal scores."""
    pairs = list(zip(some, others, strict=True))
    unequal = sum(one.score != other.score for one, other in pairs)
    return {"equal": sum(one.ids == other.ids for one, other in pairs), "unequal_scores": unequal, "n": len(pairs)}


def figures(done: list[Answer], counted: dict[str, float]) -> dict[str, float]:
    """Score, share of loose tokens and tokens per forward of one side."""
    tokens = sum(len(one.ids) for one in done)
    return {
        "right": sum(one.score for one in done),
        "cut": sum(one.cut for one in done),
        "tokens": tokens,
        "loose_share": counted["loose"] / tokens,
        "tokens_per_forward": tokens / (counted["blocks"] + len(done)),
    }
