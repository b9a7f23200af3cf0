"""Which certified setting is fastest on this machine: a race of plain, strict and certified decoding.

The fastest of many noisy times looks faster than it is. So the first half of the prompts picks one strict and one
certified candidate, and the second half alone says whether the certified one beats strict decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.observing.intervals import Ratio, ratio_of_sums
from gistgate.observing.race import Clock, Lap, interleaved, without_loops

PLAIN = "plain"
FEWEST = 4
"""Prompts without which two halves say nothing."""


@dataclass(frozen=True)
class Candidate:
    """One way of decoding that loses at most what was asked for."""

    name: str
    decoder: Decoder
    proof: Proof | None = None
    """Its certificate; None for plain and strict decoding, which lose nothing."""
    point: OperatingPoint | None = None
    """The certified setting."""

    @property
    def is_strict(self) -> bool:
        """Whether this is strict decoding with a drafter."""
        return self.point is None and self.name != PLAIN


@dataclass(frozen=True)
class Finding:
    """What the race showed."""

    screened: Mapping[str, float]
    """Speed of every candidate against plain decoding on the first half of the prompts."""
    strict: Candidate
    """The fastest strict candidate of the first half."""
    loose: Candidate | None
    """The fastest certified candidate of the first half; None where nothing is certified."""
    to_plain: Mapping[str, Ratio]
    """Speed of these two against plain decoding on the second half."""
    to_strict: Ratio | None
    """Speed of the certified one against the strict one on the second half."""

    @property
    def winner(self) -> Candidate | None:
        """The certified candidate, if it is faster than strict and plain decoding beyond doubt; else None."""
        if self.loose is None or self.to_strict is None:
            return None
        sure = self.to_strict.low > 1 and self.to_plain[self.loose.name].low > 1
        return self.loose if sure else None


def tune(candidates: Sequence[Candidate], prompts: Sequence[Sequence[int]], **request: Any) -> Finding:
    """Race the candidates, among them plain decoding and at least one strict one; `request` goes to the decoders.

    Raises:
        UserError: there are too few prompts.
    """
    if len(prompts) < FEWEST:
        raise UserError(
            f"Tuning needs at least {FEWEST} prompts, half of them to choose and half to decide, and {len(prompts)} "
            "were given. Twenty give an answer that can be relied on."
        )
    half = len(prompts) // 2
    first = times_of(candidates, prompts[:half], request)
    screened = {name: sum(first[PLAIN]) / sum(seconds) for name, seconds in first.items()}

    def fastest(some: Sequence[Candidate]) -> Candidate | None:
        return max(some, key=lambda one: screened[one.name], default=None)

    plain = next(one for one in candidates if one.name == PLAIN)
    strict = fastest([one for one in candidates if one.is_strict]) or plain
    loose = fastest([one for one in candidates if one.point is not None])
    finalists = [strict, *([loose] if loose else [])]
    second = times_of(list({one.name: one for one in [plain, *finalists]}.values()), prompts[half:], request)
    to_plain = {one.name: ratio_of_sums(second[PLAIN], second[one.name]) for one in finalists}
    to_strict = ratio_of_sums(second[strict.name], second[loose.name]) if loose else None
    return Finding(screened, strict, loose, to_plain, to_strict)


def times_of(
    candidates: Sequence[Candidate], prompts: Sequence[Sequence[int]], request: dict[str, Any]
) -> dict[str, list[float]]:
    """Seconds of every candidate on every prompt that none of them answered with a loop."""
    rounds = interleaved([Clock(one.name, one.decoder) for one in candidates], prompts, **request)
    laps: Sequence[Lap] = without_loops(rounds) or rounds
    return {one.name: [lap[one.name][0] for lap in laps] for one in candidates}
