"""The decoder that accepts segments, put together from loaded parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.decoding.decoder import Decoder
from gistgate.decoding.parts import GateLike
from gistgate.errors import UserError
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.optional.segments.counting import Counting
from gistgate.optional.segments.drafter import SegmentDrafter
from gistgate.optional.segments.files import Probes
from gistgate.optional.segments.judges import MeanLogprob, Opinion, SegmentJudge, Semantic
from gistgate.optional.segments.rewriting import RewritingDrafter
from gistgate.optional.segments.rule import SegmentDraw, SegmentRule
from gistgate.optional.segments.steps import Score
from gistgate.request.stopping import eos_ids

SEGMENT_RULES: dict[str, type[SegmentRule]] = {rule.id: rule for rule in (SegmentRule, SegmentDraw)}
"""Segment rules by id."""
OPINIONS: dict[str, Callable[[Probes, PreTrainedModel, PreTrainedTokenizerBase], Opinion]] = {
    "probe": lambda probes, _target, _tokenizer: Semantic(probes.target),
    "ratio": lambda probes, _target, _tokenizer: Semantic(probes.target, probes.draft),
    "logprob": lambda _probes, _target, _tokenizer: MeanLogprob(),
    "score": lambda _probes, target, tokenizer: Score(target, tokenizer),
}
"""Opinions by the name that a setting gives them. `segment_decoder` takes opinions that need a further model."""
DRAFTERS: dict[str, type[SegmentDrafter]] = {"token": SegmentDrafter, "segment": RewritingDrafter}
"""Drafters by what the target writes in place of a refused segment before it judges the next one: one token, or its own
segment to the end."""
SETTINGS = ("opinion", "risk", "replacement", *(item.name for item in fields(SegmentRule)))
"""The settings of segments, those of the rule included."""
GATE = "gate"
"""Folder of the token gate inside an exported folder of probes."""


def segment_decoder(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    opinion: Opinion,
    rule: SegmentRule,
    *,
    style: str,
    limit: int,
    replacement: str = "token",
    token_gate: GateLike | None = None,
    risk: float = 0.1,
    **parts: Any,
) -> Decoder:
    """A decoder whose draft is one segment of at most `limit` tokens, judged by `opinion`.

    Everything else is the ordinary loop: keys and values are kept by ids, and nothing is tokenised again. Where a
    `token_gate` is given, tokens of refused segments pass while P(harm) <= `risk`. `replacement`: see DRAFTERS.

    Raises:
        UserError: an unknown style or replacement, a limit that leaves no room for a segment, or a token gate beside a
            rule that drops refused segments.
    """
    if limit < 2:
        raise UserError(f"A segment of at most {limit} tokens is none. Set the limit to 2 or more.")
    if replacement not in DRAFTERS:
        raise UserError(f"There is no replacement '{replacement}' of a refused segment. Use token or segment.")
    if token_gate is not None and not rule.partial:
        raise UserError("A token gate speaks inside refused segments, and partial=False drops these. Leave one away.")
    drafter = DRAFTERS[replacement](draft, Boundaries(tokenizer, style, eos_ids(target, tokenizer)))
    judge = SegmentJudge(opinion, drafter, token_gate, risk)
    observer = Counting(rule, judge, parts.pop("observer", None))
    return Decoder(target, drafter, rule, limit, gate=judge, tokenizer=tokenizer, observer=observer, **parts)
