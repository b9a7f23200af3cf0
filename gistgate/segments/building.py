"""The decoder that accepts segments, built from its parts."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.decoding.decoder import Decoder
from gistgate.decoding.stopping import eos_ids
from gistgate.errors import UserError
from gistgate.segments.boundaries import Boundaries
from gistgate.segments.drafter import SegmentDrafter
from gistgate.segments.judges import Opinion, SegmentJudge
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
    **parts: Any,
) -> Decoder:
    """A decoder whose draft is one segment of at most `limit` tokens, judged by `opinion`.

    Everything else is the ordinary loop: keys and values are kept by ids, and nothing is tokenised again.

    Raises:
        UserError: an unknown style, or a limit that leaves no room for a segment.
    """
    if limit < 2:
        raise UserError(f"A segment of at most {limit} tokens is none. Set the limit to 2 or more.")
    drafter = SegmentDrafter(draft, Boundaries(tokenizer, style, eos_ids(target, tokenizer)))
    gate = SegmentJudge(opinion, drafter)
    return Decoder(target, drafter, rule, limit, gate=gate, tokenizer=tokenizer, **parts)
