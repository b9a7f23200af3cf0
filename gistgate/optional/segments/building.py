"""The decoder that accepts segments, built from its parts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.decoding.decoder import Decoder
from gistgate.decoding.parts import GateLike
from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.optional.segments.counting import Counting
from gistgate.optional.segments.drafter import SegmentDrafter
from gistgate.optional.segments.files import Probes, load_probes
from gistgate.optional.segments.judges import Opinion, SegmentJudge
from gistgate.optional.segments.rewriting import RewritingDrafter
from gistgate.optional.segments.rule import SegmentRule
from gistgate.optional.segments.serving import OPINIONS, SegmentChoice, choose_segments
from gistgate.request.stopping import eos_ids

DRAFTERS: dict[str, type[SegmentDrafter]] = {"token": SegmentDrafter, "segment": RewritingDrafter}
"""By what the target writes in place of a refused segment before the next one is judged: one token, or its own segment
to the end."""
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
        UserError: an unknown style or replacement, a limit that leaves no room for a segment, a token gate beside a
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


def chosen_decoder(
    probes: Probes,
    choice: SegmentChoice,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    gate: GateLike | None,
    **parts: Any,
) -> Decoder:
    """The decoder of loaded probes.

    Raises:
        UserError: a risk without a token gate; and as `segment_decoder`.
    """
    if choice.risk is not None and gate is None:
        raise UserError("A risk is kept by a token gate, and none was given. Pass gate=<folder>, or leave risk away.")
    return segment_decoder(
        target,
        draft,
        tokenizer,
        OPINIONS[choice.opinion](probes, target, tokenizer),
        choice.rule,
        style=probes.style,
        limit=probes.limit,
        replacement=choice.replacement,
        token_gate=None if choice.risk is None else gate,
        risk=choice.risk or 0.0,
        **parts,
    )


def own_gate(
    folder: str | Path, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Gate | None:
    """The token gate that a folder of probes brings along, checked against its partners."""
    place = Path(folder) / GATE
    return Gate.load(place, target=target, draft=draft, tokenizer=tokenizer) if place.is_dir() else None


def speaking_gate(choice: SegmentChoice, given: Gate | None, own: Gate | None) -> tuple[Gate | None, SegmentChoice]:
    """The token gate for refused segments, the caller's or the folder's own, and the choice with the doubt it brings.

    A certificate holds for the folder's own gate, which another folder may hold as well.
    """
    if given is None or choice.risk is None or (own is not None and gate_hash(given) == gate_hash(own)):
        return given or own, choice
    return given, replace(choice, doubts=(*choice.doubts, "the token gate is not the folder's own"))


def served_decoder(
    folder: str | Path,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    gate: Gate | None,
    rule: str | None,
    settings: dict[str, Any],
    **parts: Any,
) -> Decoder:
    """The decoder of a folder of probes, with the folder's own token gate where no other is given.

    It warns where no certificate covers what was asked for.

    Raises:
        UserError: no draft model, a folder for other models, or settings that do not exist.
    """
    if draft is None:
        raise UserError("Segments are written by a draft model, and there is none. Name it as draft=<name or folder>.")
    probes = load_probes(folder, target, draft)
    own = own_gate(folder, target, draft, tokenizer)
    gate, choice = speaking_gate(choose_segments(probes, rule, settings), gate, own)
    if choice.doubts:
        warnings.warn(f"No certificate covers this: {'; '.join(choice.doubts)}.", stacklevel=2)
    return chosen_decoder(probes, choice, target, draft, tokenizer, gate, **parts)
