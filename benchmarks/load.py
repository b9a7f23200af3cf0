"""Requests sent to an OpenAI-compatible server as users would send them, and the seconds that they wait.

Closed loop: a fixed number of users, each of whom asks again as soon as the answer has come. Open loop: requests arrive
at a fixed mean rate, at exponentially distributed distances, whether earlier ones are answered or not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, median
from time import perf_counter
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from gistgate.errors import UserError, first_line

SECONDS = 300.0
"""Longest wait for one answer."""


@dataclass(frozen=True)
class Level:
    """How much is asked at once: one of the two is given."""

    users: int | None = None
    """Users of a closed loop."""
    rate: float | None = None
    """Requests per second of an open loop."""

    @property
    def name(self) -> str:
        """The level in a table."""
        return f"{self.users} users" if self.users is not None else f"{self.rate:g} per second"


@dataclass(frozen=True)
class Waited:
    """One answer."""

    tokens: int
    """Tokens of the answer."""
    first: float
    """Seconds until its first token."""
    total: float
    """Seconds until its last token."""

    @property
    def between(self) -> float:
        """Mean seconds from one token to the next."""
        return (self.total - self.first) / max(self.tokens - 1, 1)


@dataclass(frozen=True)
class Round:
    """All requests of one round at one level."""

    seconds: float
    """From the first request to the last token."""
    waited: list[Waited]
    """One for each request."""

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(one.tokens for one in self.waited)

    def as_dict(self) -> dict[str, float]:
        """Figures of the round: seconds, tokens, and the medians and means over its requests, in seconds."""
        return {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "first_token": median(one.first for one in self.waited),
            "between_tokens": mean(one.between for one in self.waited),
        }


def drive(address: str, model: str, prompts: Sequence[list[int]], level: Level, length: int, seed: int) -> Round:
    """Send every prompt once at a level.

    Args:
        address: of the server, without the version.
        model: name of the model at the server.
        prompts: token ids of each request.
        level: how many at once, or how often.
        length: longest answer, in tokens.
        seed: draws the distances of an open loop; equal seeds give equal arrivals.

    Raises:
        UserError: the server did not answer one of them.
    """
    with answered(address):
        return asyncio.run(_drive(address, model, prompts, level, length, seed))


@contextmanager
def answered(address: str) -> Iterator[None]:
    """Around requests to a server: the first one that fails ends all of them.

    Raises:
        UserError: the server did not answer one of them.
    """
    try:
        yield
    except OpenAIError as error:
        raise UserError(
            f"The server at {address} did not answer a request ({type(error).__name__}: {first_line(error)}). Its log "
            "in .scratch says why; mend that, and start again."
        ) from error


async def _drive(address: str, model: str, prompts: Sequence[list[int]], level: Level, length: int, seed: int) -> Round:
    free = asyncio.Semaphore(level.users or len(prompts))
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:

        async def ask(prompt: list[int], at: float) -> Waited:
            await asyncio.sleep(at)
            async with free:
                return await answer(client, model, prompt, length)

        started = perf_counter()
        asked = [ask(prompt, at) for prompt, at in zip(prompts, arrivals(len(prompts), level, seed), strict=True)]
        waited = await asyncio.gather(*asked)
        return Round(perf_counter() - started, list(waited))


async def answer(client: Any, model: str, prompt: list[int], length: int) -> Waited:
    """One streamed greedy answer."""
    started, first, last, tokens = perf_counter(), None, 0.0, 0
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=length,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for part in stream:
        if part.choices and part.choices[0].text:
            last = perf_counter() - started
            first = last if first is None else first
        if part.usage is not None:
            tokens = part.usage.completion_tokens
    return Waited(tokens, first or last, last)


def arrivals(number: int, level: Level, seed: int) -> list[float]:
    """Seconds after the start at which each request is sent."""
    if level.rate is None:
        return [0.0] * number
    draw, at = random.Random(seed), 0.0
    times = []
    for _ in range(number):
        times.append(at)
        at += draw.expovariate(level.rate)
    return times
