"""Shadow mode: decode strictly, and count what the rule of a decoder would have accepted."""

from __future__ import annotations

from dataclasses import dataclass

from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.request.statistics import Statistics
from gistgate.rules.shadow import Shadow, Watcher


def shadow(decoder: Decoder, watcher: Watcher | None = None) -> Decoder:
    """A decoder that verifies strictly and counts what the rule of `decoder` would have accepted.

    Raises:
        UserError: without drafts there is nothing to accept; of a tree the rule would see the strict path alone.
    """
    if decoder.drafter is None:
        raise UserError("Shadow mode watches what a rule would do with drafts, and nothing drafts. Name a draft model.")
    if decoder.drafter.nodes:
        raise UserError(
            "Shadow mode is exact for chains only: of a tree the rule would see no path but the strict one. "
            "Use a drafter of chains, such as 'model'."
        )
    return decoder.having(rule=Shadow(decoder.rule, watcher))


@dataclass(frozen=True)
class WouldBe:
    """What a rule would have done, from the counters of a shadow run."""

    strict: float
    """tau of the strict text that was emitted."""
    tau: float
    """Estimate of the rule's tau, from blocks that follow each other."""
    first_step: float
    """The same from every strict block for itself, wherever it begins."""
    loose_per_100: float
    """Estimate of loosely accepted tokens per hundred."""
    differing: float
    """Share of the strict blocks of which the rule would have kept another number of tokens."""


def would_be(counted: Statistics) -> WouldBe:
    """Read the counters of a shadow run.

    Raises:
        UserError: there are none.
    """
    extra = counted.extra
    if not extra.get("shadow_judged"):
        raise UserError("These statistics come from no shadow run. Decode with shadow mode on.")
    return WouldBe(
        counted.mean_accepted_length,
        extra["shadow_tokens"] / extra["shadow_judged"],
        extra["shadow_first"] / extra["shadow_blocks"],
        100 * extra["shadow_loose"] / extra["shadow_tokens"],
        extra["shadow_differing"] / extra["shadow_blocks"],
    )


def summary(counted: Statistics) -> str:
    """One line about a shadow run."""
    found = would_be(counted)
    return (
        f"shadow: tau {found.tau:.2f} estimated for the rule instead of {found.strict:.2f}, "
        f"{found.loose_per_100:.1f} loose tokens per hundred, {100 * found.differing:.0f} % of the blocks differ"
    )
