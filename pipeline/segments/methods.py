"""The ways of judging a segment that are compared: the probes, and controls that need none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gistgate.decoding.decoder import Decoder
from gistgate.gates.gate import Gate
from gistgate.segments.building import segment_decoder
from gistgate.segments.files import Probes
from gistgate.segments.judges import Constant, MeanLogprob, Opinion, Semantic
from gistgate.segments.rule import SegmentDraw, SegmentRule
from pipeline.pairs import Pair


@dataclass(frozen=True)
class Method:
    """An opinion on segments and the rule that uses it, with one value to set."""

    rule: Callable[[float], SegmentRule]
    opinion: Callable[[Probes, float], Opinion]
    grid: tuple[float, ...] = field(default=SegmentRule.grid)
    """Values from strict to loose; a single one where nothing is calibrated."""
    certified: bool = True
    """False for a point that is measured as it is."""
    gated: bool = False
    """Whether the token gate speaks inside refused segments."""

    def decoder(self, pair: Pair, probes: Probes, value: float, gate: Gate, risk: float) -> Decoder:
        """The decoder at this value."""
        return segment_decoder(
            pair.target, pair.draft, pair.tokenizer, self.opinion(probes, value), self.rule(value), style=probes.style,
            limit=probes.limit, vocabulary=len(pair.tokenizer), token_gate=gate if self.gated else None, risk=risk,
        )  # fmt: skip


def target_probe(probes: Probes, _value: float) -> Opinion:
    return Semantic(probes.target)


def both_probes(probes: Probes, _value: float) -> Opinion:
    return Semantic(probes.target, probes.draft)


def logprob(_probes: Probes, _value: float) -> Opinion:
    return MeanLogprob()


def at_rate(_probes: Probes, value: float) -> Opinion:
    return Constant(value)


GRID = (0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6)

METHODS = {
    "probe": Method(lambda value: SegmentRule(threshold=value), target_probe, GRID),
    "probe-gate": Method(lambda value: SegmentRule(threshold=value), target_probe, GRID, gated=True),
    "logprob": Method(lambda value: SegmentRule(threshold=value), logprob, GRID),
    "constant": Method(lambda _: SegmentDraw(), at_rate, (0.02, 0.05, 0.1, 0.2, 0.3)),
    "strict": Method(lambda _: SegmentRule(threshold=2.0), at_rate, (1.0,), certified=False),
    "ratio": Method(lambda _: SegmentDraw(), both_probes, (1.0,), certified=False),
    "ratio-top2": Method(lambda _: SegmentDraw(shortcut="top2"), both_probes, (1.0,), certified=False),
}
"""By name; the last two are the published rule, without and with its shortcut, but with partial acceptance."""
