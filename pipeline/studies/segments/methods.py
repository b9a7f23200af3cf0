"""The ways of judging a segment that the study compares: the probes, and controls without probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from transformers import AutoModelForSequenceClassification

from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.forward.context import num_ids
from gistgate.gates.gate import Gate
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.optional.segments.building import segment_decoder
from gistgate.optional.segments.files import Probes
from gistgate.optional.segments.judges import Constant, MeanLogprob, Opinion, Semantic
from gistgate.optional.segments.rule import SegmentDraw, SegmentRule
from gistgate.optional.segments.steps import Pair as OwnStep
from gistgate.optional.segments.steps import Reward, Score, same_numbers
from gistgate.optional.segments.writing import SegmentWriter
from gistgate.request.stopping import eos_ids
from pipeline.pairs.pair import Pair
from pipeline.studies.segments.judges import load
from pipeline.studies.segments.params import SegmentParams

GRID = (0.99, 0.97, 0.95, 0.85)
COSTLY = 32
"""Prompts for opinions that read the whole text again for each segment."""


@dataclass(frozen=True)
class OpinionParts:
    """What opinions are made of."""

    pair: Pair
    probes: Probes
    gate: Gate
    own: SegmentParams


@dataclass(frozen=True)
class Method:
    """An opinion on segments and the rule that uses it, with one value to set."""

    opinion: Callable[[OpinionParts, float], Opinion]
    rule: Callable[[float], SegmentRule] = field(default=lambda value: SegmentRule(threshold=value))
    grid: tuple[float, ...] = GRID
    """Values from strict to loose; a single one where nothing is calibrated."""
    certified: bool = True
    """False for a point that is measured as it is."""
    gated: bool = False
    """Whether the token gate speaks inside refused segments."""
    replacement: str = "token"
    """What follows a refused segment."""
    prompts: int = 150
    """Development prompts on which a point is measured that nobody certifies."""
    like: tuple[str, str] | None = None
    """Method and entry of its compared point that is the value here, such as its share of passed segments; None: the
    grid's."""

    def decoder(self, parts: OpinionParts, value: float) -> Decoder:
        """The decoder at this value."""
        pair, probes, own = parts.pair, parts.probes, parts.own
        return segment_decoder(
            pair.target, pair.draft_model, pair.tokenizer, self.opinion(parts, value), self.rule(value),
            style=probes.style, limit=probes.limit, replacement=self.replacement, vocabulary=num_ids(pair.tokenizer),
            token_gate=parts.gate if self.gated else None, risk=own.risk,
        )  # fmt: skip


def target_probe(parts: OpinionParts, _value: float) -> Opinion:
    return Semantic(parts.probes.target)


def both_probes(parts: OpinionParts, _value: float) -> Opinion:
    return Semantic(parts.probes.target, parts.probes.draft)


def logprob(_parts: OpinionParts, _value: float) -> Opinion:
    return MeanLogprob()


def at_rate(_parts: OpinionParts, value: float) -> Opinion:
    return Constant(value)


def score(parts: OpinionParts, _value: float) -> Opinion:
    return Score(parts.pair.target, parts.pair.tokenizer)


def own_step(parts: OpinionParts, _value: float) -> Opinion:
    """The judge of the embedded pair's steps are their numbers: it knows more than a model asked yes or no."""
    pair, ends = parts.pair, eos_ids(parts.pair.target, parts.pair.tokenizer)
    boundaries = Boundaries(pair.tokenizer, parts.probes.style, ends)
    writer = SegmentWriter(pair.target, pair.tokenizer, boundaries, parts.probes.limit, eos_ids=ends)
    return OwnStep(writer, same_numbers)


def reward(parts: OpinionParts, _value: float) -> Opinion:
    if parts.own.reward_model is None:
        raise UserError(
            "The control prm needs a reward model. Name one as reward_model in pipeline/studies/segments/params.yaml."
        )
    tokenizer, model = load(AutoModelForSequenceClassification, parts.own.reward_model)
    return Reward(model, tokenizer, parts.pair.tokenizer)


def drawn(_value: float) -> SegmentRule:
    return SegmentDraw()


def published(_value: float) -> SegmentRule:
    return SegmentDraw(partial=False, shortcut="top2")


METHODS = {
    "probe-gate": Method(target_probe, gated=True),
    "probe": Method(target_probe),
    "logprob": Method(logprob, grid=(0.7,)),
    "gate-only": Method(at_rate, lambda _: SegmentRule(threshold=1.0), (0.0,), certified=False, gated=True),
    "strict": Method(at_rate, lambda _: SegmentRule(threshold=2.0), (1.0,), certified=False),
    "ratio": Method(both_probes, drawn, (1.0,), certified=False),
    "ratio-top2": Method(both_probes, lambda _: SegmentDraw(shortcut="top2"), (1.0,), certified=False),
    "published": Method(both_probes, published, (1.0,), certified=False, replacement="segment"),
    "score": Method(score, grid=(7 / 9,), certified=False, prompts=COSTLY),
    "pair": Method(own_step, grid=(0.5,), certified=False, prompts=COSTLY),
    "prm": Method(reward, grid=(0.7,), certified=False),
    "constant": Method(at_rate, drawn, (), certified=False, like=("probe", "passed")),
    "probe-whole": Method(
        target_probe,
        lambda value: SegmentRule(threshold=value, partial=False),
        (),
        certified=False,
        like=("probe", "value"),
    ),
    "probe-replaced": Method(target_probe, grid=(), certified=False, replacement="segment", like=("probe", "value")),
}
"""By name. `gate-only` and `strict` refuse every segment, so that only the boundaries differ from the token rules;
`score` and `prm` run at the published thresholds; `published` is SemanticSpec as released: ratio, shortcut, nothing of
a refused segment kept, then the target's own. `constant` passes as many segments as the probe does."""


def methods_of(own: SegmentParams) -> dict[str, Method]:
    """Those that can run here: prm only with a reward model."""
    return {name: method for name, method in METHODS.items() if name != "prm" or own.reward_model}
