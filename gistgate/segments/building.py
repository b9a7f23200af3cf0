"""The decoder that accepts segments, built from its parts."""

from __future__ import annotations

from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.decoding.decoder import Decoder
from gistgate.decoding.parts import GateLike
from gistgate.decoding.stopping import eos_ids
from gistgate.errors import UserError
from gistgate.segments.boundaries import Boundaries
from gistgate.segments.drafter import SegmentDrafter
from gistgate.segments.judges import Opinion, SegmentJudge
from gistgate.segments.rewriting import RewritingDrafter
from gistgate.segments.rule import SegmentRule


def segment_decoder(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    opinion: Opinion,
    rule: SegmentRule,
    *,
    style: str,
    limit: int,
    replacement: Literal["token", "segment"] = "token",
    token_gate: GateLike | None = None,
    risk: float = 0.1,
    **parts: Any,
) -> Decoder:
    """A decoder whose draft is one segment of at most `limit` tokens, judged by `opinion`.

    Everything else is the ordinary loop: keys and values are kept by ids, and nothing is tokenised again. Where a
    `token_gate` is given, tokens of refused segments pass while P(harm) <= `risk`.

    `replacement` is what the target writes in place of a refused segment before the next one is judged: one token, or
    its own segment to the end.

    Raises:
        UserError: an unknown style or replacement, a limit that leaves no room for a segment.
    """
    if limit < 2:
        raise UserError(f"A segment of at most {limit} tokens is none. Set the limit to 2 or more.")
    kinds = {"token": SegmentDrafter, "segment": RewritingDrafter}
    if replacement not in kinds:
        raise UserError(f"There is no replacement '{replacement}' of a refused segment. Use token or segment.")
    drafter = kinds[replacement](draft, Boundaries(tokenizer, style, eos_ids(target, tokenizer)))
    gate = SegmentJudge(opinion, drafter, token_gate, risk)
    return Decoder(target, drafter, rule, limit, gate=gate, tokenizer=tokenizer, **parts)
