"""Seconds of plain, strict and chosen decoding on the same prompts, one row at a time, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from gistgate.decoding.decoder import Decoder
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.optional.guards.loop import LoopGuard
from gistgate.request.rows import Generation
from gistgate.request.statistics import Statistics
from gistgate.rules.exact import Exact

BATCHES = (1, 4, 16, 32)
"""Batch sizes that are tried, in rows."""
MEASURED = 64
"""Longest answer of a measurement, in tokens."""
Lap = dict[str, tuple[float, Generation]]
"""Seconds and answer of one prompt, by the name of the clock."""


@dataclass
class Clock:
    """Time and counters of one way of decoding."""

    name: str
    decoder: Decoder
    seconds: float = 0.0
    """Summed over the prompts, prefill included."""
    statistics: Statistics = field(default_factory=Statistics)
    loops: int = 0
    """Prompts that any of the three ways answered with a loop; they are left out unless every prompt loops."""

    def run(self, ids: Sequence[int], **request: Any) -> tuple[float, Generation]:
        """Decode one prompt; return seconds and answer."""
        synchronise(self.decoder.target.device)
        started = perf_counter()
        answer = self.decoder.generate([ids], **request)[0]
        synchronise(self.decoder.target.device)
        return perf_counter() - started, answer

    def add(self, seconds: float, answer: Generation) -> None:
        """Add one answer to the sums."""
        self.seconds += seconds
        self.statistics += answer.statistics


def side_by_side(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> list[Clock]:
    """Plain, strict and `decoder` on every prompt, in an order that rotates; the first prompt warms up.

    Loops are easy to draft. If any way of decoding loops on a prompt, the prompt is dropped for all of them; if every
    prompt loops, all are kept.

    Raises:
        UserError: there is no prompt.
    """
    if not prompts:
        raise UserError("There is no prompt to time. Put at least one line of text into the file.")
    clocks = [Clock("plain", strict_of(decoder, None)), Clock("strict", strict_of(decoder, decoder.drafter))]
    clocks.append(Clock(decoder.rule.id, decoder))
    rounds = interleaved(clocks, prompts, **request)
    sound = without_loops(rounds)
    for clock in clocks:
        clock.loops = len(rounds) - len(sound)
        for ran in sound or rounds:
            clock.add(*ran[clock.name])
    return clocks


def interleaved(clocks: Sequence[Clock], prompts: Sequence[Sequence[int]], **request: Any) -> list[Lap]:
    """Every prompt decoded by every clock, in an order that rotates.

    The first prompt warms up; the compiled engine, which builds other programs for longer prompts, decodes all of them.
    """
    for clock in clocks:
        for ids in prompts if clock.decoder.engine.name == "compiled" else prompts[:1]:
            clock.decoder.generate([ids], **request)
    rounds = []
    for place, ids in enumerate(prompts):
        turn = place % len(clocks)
        rounds.append({clock.name: clock.run(ids, **request) for clock in [*clocks[turn:], *clocks[:turn]]})
    return rounds


def without_loops(rounds: Sequence[Lap]) -> list[Lap]:
    """The prompts that no clock answered with a loop."""
    return [ran for ran in rounds if not any(LoopGuard().is_loop(answer.ids) for _, answer in ran.values())]


def strict_of(decoder: Decoder, drafter: Drafter | None) -> Decoder:
    """Strict decoding on the same target and engine; without a drafter it is plain decoding."""
    return Decoder(
        decoder.target,
        drafter,
        Exact(),
        decoder.block,
        tokenizer=decoder.tokenizer,
        vocabulary=decoder.vocabulary,
        engine=decoder.engine.name,
    )


def pays_up_to(
    decoder: Decoder, prompts: Sequence[Sequence[int]], sizes: Sequence[int] = BATCHES, **request: Any
) -> int:
    """Largest batch of `sizes` up to which speculation is faster than plain decoding; 0: it never is.

    For `Decoder(speculate_up_to=...)`, measured once before serving: chosen while serving, texts of loose rules would
    depend on how busy the machine is. Prompts repeat where there are too few for a batch; the better of two runs
    counts.

    Raises:
        UserError: there is no prompt.
    """
    if not prompts:
        raise UserError("There is no prompt to time. Pass at least one.")
    plain, most = strict_of(decoder, None), 0
    for size in sorted(sizes):
        batch = [prompts[place % len(prompts)] for place in range(size)]
        clocks = [rate(one, batch, request) for one in (plain, decoder)]
        if clocks[1] <= clocks[0]:
            break
        most = size
    return most


def settle_batches(decoder: Decoder, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **request: Any) -> int:
    """Measure on the first batch up to how many of its rows speculation pays, and let the decoder keep to it."""
    sizes = [*(size for size in BATCHES if size < len(prompts)), len(prompts)]
    most = pays_up_to(decoder, prompts, sizes, max_new_tokens=min(max_new_tokens, MEASURED), **request)
    decoder.speculate_up_to = most
    return most


def rate(decoder: Decoder, batch: Sequence[Sequence[int]], request: dict[str, Any]) -> float:
    """New tokens per second, the better of two runs behind one that warms up."""
    decoder.generate(batch, **request)
    rates = []
    for _ in range(2):
        synchronise(decoder.target.device)
        started = perf_counter()
        answers = decoder.generate(batch, **request)
        synchronise(decoder.target.device)
        rates.append(sum(len(answer.ids) for answer in answers) / (perf_counter() - started))
    return max(rates)


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
