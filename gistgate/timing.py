"""Seconds of plain, strict and chosen decoding on the same prompts, one row at a time, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from gistgate.decoding.decoder import Decoder
from gistgate.decoding.statistics import Statistics
from gistgate.errors import UserError
from gistgate.rules.exact import Exact


@dataclass
class Clock:
    """What one kind of decoding took."""

    name: str
    decoder: Decoder
    seconds: float = 0.0
    """Summed over the prompts, prefill included."""
    statistics: Statistics = field(default_factory=Statistics)

    def run(self, ids: Sequence[int], **request: Any) -> None:
        """Decode one prompt between two ticks."""
        synchronise(self.decoder.target.device)
        started = perf_counter()
        answer = self.decoder.generate([ids], **request)[0]
        synchronise(self.decoder.target.device)
        self.seconds += perf_counter() - started
        self.statistics += answer.statistics


def side_by_side(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> list[Clock]:
    """Plain, strict and `decoder` on every prompt, in an order that rotates; the first prompt warms up.

    Raises:
        UserError: there is no prompt.
    """
    if not prompts:
        raise UserError("There is no prompt to time. Put at least one line of text into the file.")
    shared: dict[str, Any] = {"tokenizer": decoder.tokenizer, "vocabulary": decoder.vocabulary}
    clocks = [
        Clock("plain", Decoder(decoder.target, None, Exact(), **shared)),
        Clock("strict", Decoder(decoder.target, decoder.drafter, Exact(), decoder.block, **shared)),
        Clock(decoder.rule.id, decoder),
    ]
    for clock in clocks:
        clock.decoder.generate([prompts[0]], **request)
    for place, ids in enumerate(prompts):
        turn = place % len(clocks)
        for clock in [*clocks[turn:], *clocks[:turn]]:
            clock.run(ids, **request)
    return clocks


def synchronise(device: torch.device) -> None:
    """Wait for the device, where it runs by itself."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
