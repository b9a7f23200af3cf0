"""How fast both endpoints answer one request at a time: seconds, tokens, and target forwards where
a server tells them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import openai

from gistgate.certify.comparison import BothEndpoints
from gistgate.certify.endpoint import Endpoint, note
from gistgate.certify.page import first_choice, parsed_page, tokens_in
from gistgate.certify.play import Request
from gistgate.certify.trouble import explained
from gistgate.core.utils import PromptError, UserError
from gistgate.measure.statistics import ratio_of_pairs

LEVEL = 0.95
"""Of the intervals."""
STEPS = re.compile(r"^vllm:iteration_tokens_total_count(?:\{.*\})? ([\d.e+]+)$", re.M)
"""The count of all forwards on vLLM's page of metrics, one line for each engine."""


@dataclass(frozen=True)
class Timing:
    """What one answer took, in seconds."""

    seconds: float
    first: float | None
    """Until the first text; None where the server does not stream."""
    tokens: int | None
    forwards: float | None


Timings = Sequence[tuple[Timing, Timing]]
"""Of the baseline and of the candidate, for each prompt."""
FIGURES: dict[str, tuple[Callable[[Timing], float | None], str]] = {
    "answer": (lambda timing: timing.seconds, "as fast per answer"),
    "token": (
        lambda timing: timing.seconds / timing.tokens if timing.tokens else None,
        "as fast per token",
    ),
    "first token": (lambda timing: timing.first, "as fast to the first token"),
    "forwards": (lambda timing: timing.forwards or None, "as few target forwards per answer"),
}
"""What is compared, as what of a timing, and how it is said."""


class Clock:
    """Times one endpoint, as it answers: in a stream or not, with metrics or not."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        # A repetition would count as time of the answer.
        self.client = endpoint.client.with_options(max_retries=0)
        self.is_streaming = True
        self.has_metrics = True

    async def warm_up(self, request: Request, sampling: Mapping[str, Any]) -> None:
        """Open the connection with an answer that does not count, and see how the server
        answers.
        """
        try:
            timing = await self.time(request, sampling)
            self.is_streaming = timing.first is not None
        except UserError:  # some servers refuse streams, or their options
            self.is_streaming = False
            await self.time(request, sampling)

    async def time_again(self, request: Request, sampling: Mapping[str, Any]) -> Timing:
        """What an answer takes, asked a second time if the connection broke: llama.cpp closes one
        after some requests.
        """
        try:
            return await self.time(request, sampling)
        except PromptError:
            raise
        except UserError:
            return await self.time(request, sampling)

    async def time(self, request: Request, sampling: Mapping[str, Any]) -> Timing:
        """What an answer takes, in a conversation the first one."""
        prompt, entries = next(request.turns())
        path, body = self.endpoint.request(
            prompt, request.stops, request.limit, entries, **sampling
        )
        before = await self.steps()
        first = None
        begin = perf_counter()
        with explained(self.endpoint):
            if self.is_streaming:
                first, page = await self.stream(path, body)
            else:
                page = parsed_page(await self.client.post(path, body=body, cast_to=object))
        seconds = perf_counter() - begin
        if not self.is_streaming:
            self.endpoint.choice_in(page, "tools" in body)
        after = await self.steps()
        forwards = forwards_in(page)
        if before is not None and after is not None:
            forwards = after - before
        until_first = None if first is None else first - begin
        return Timing(seconds, until_first, tokens_in(page, ""), forwards)

    async def stream(self, path: str, body: dict[str, Any]) -> tuple[float | None, dict[str, Any]]:
        """When the first text of a stream came, and the entries of all its pages."""
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        kind = openai.AsyncStream[Any]
        stream = await self.client.post(
            path, body=streamed, cast_to=object, stream=True, stream_cls=kind
        )
        first = None
        whole: dict[str, Any] = {}
        async for page in stream:
            choice = first_choice(page) or {}
            said = choice.get("delta") or choice
            words = ("content", "text", "reasoning_content", "reasoning", "tool_calls")
            if first is None and any(said.get(word) for word in words):
                first = perf_counter()
            whole |= {name: entry for name, entry in page.items() if entry is not None}
        return first, whole

    async def steps(self) -> float | None:
        """The forwards of the server so far, which vLLM counts."""
        if not self.has_metrics:
            return None
        counts: list[str] = []
        with suppress(Exception):
            place = f"{self.endpoint.url.removesuffix('/v1')}/metrics"
            page = await self.client.get(place, cast_to=str, options={"timeout": 5.0})
            counts = STEPS.findall(page)
        self.has_metrics = bool(counts)
        return sum(map(float, counts)) if counts else None


def forwards_in(page: Mapping[str, Any]) -> float | None:
    """The target forwards of an answer, which llama.cpp tells: its tokens less accepted ones."""
    timings = page.get("timings")
    if not isinstance(timings, dict) or "predicted_n" not in timings:
        return None
    return float(timings["predicted_n"] - timings.get("draft_n_accepted", 0))


async def timed(
    endpoints: BothEndpoints, requests: Sequence[Request], warm: Request
) -> dict[str, Any]:
    """What both endpoints take for the same requests, one at a time and in turn, as it stands on a
    card.

    Every second request goes to the candidate first: what a cache or the clock of a machine gives
    to the later one cancels out.
    """
    clocks = [Clock(endpoints.strict), Clock(endpoints.loose)]
    for clock in clocks:
        await clock.warm_up(warm, endpoints.samplings(warm)[0])
    timings: list[tuple[Timing, Timing]] = []
    for number, request in enumerate(requests):
        sampling = endpoints.samplings(request)[0]
        places = [0, 1] if number % 2 == 0 else [1, 0]
        row: dict[int, Timing] = {}
        try:
            for place in places:
                row[place] = await clocks[place].time_again(request, sampling)
        except UserError as error:
            note(f"{error} This prompt is not timed.")
        else:
            timings.append((row[0], row[1]))
    return summary(timings)


def summary(timings: Timings) -> dict[str, Any]:
    """The ratios of all figures that both servers tell, with their intervals and a sentence."""
    entries: dict[str, Any] = {"prompts": len(timings), "concurrent": 1, "confidence": LEVEL}
    said = []
    for name, (value, words) in FIGURES.items():
        rows = [(value(baseline), value(candidate)) for baseline, candidate in timings]
        pairs = [row for row in rows if row[0] and row[1]]
        if len(pairs) < 2:
            continue
        baseline, candidate = zip(*pairs, strict=True)
        ratio = ratio_of_pairs(baseline, candidate, LEVEL)
        entries[name] = {
            "baseline": sum(baseline) / len(pairs),
            "candidate": sum(candidate) / len(pairs),
            "ratio": ratio.mean,
            "interval": [ratio.low, ratio.high],
        }
        said.append(f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times {words}")
    if not said:
        return {**entries, "sentence": "Fewer than two prompts could be timed."}
    sentence = f"{', '.join(said)} ({len(timings)} prompts, one at a time)"
    return {**entries, "verdict": said[0], "sentence": f"Speed: {sentence}"}
