"""Shadow mode: verify strictly and count what a rule would have accepted, so that no id changes.
Inside one block of a chain the count is exact, across blocks an estimate: a loose text would have
gone on differently.

Axis letters: B rows, K drafted tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block, Reason
from gistgate.core.decoder import Decoder
from gistgate.core.request import Statistics
from gistgate.core.rule import Context, Rule, State, leading, settle
from gistgate.core.utils import UserError

INNER = "rule."
"""Prefix of what the watched rule remembers."""


@dataclass(frozen=True)
class Shadow(Rule, id="shadow", knob=None, looser="up"):
    """The strict rule, which counts what `rule` would have accepted.

    It judges again once the strict text has come as far as a loose one would: tokens over judged
    blocks estimate tau.
    """

    rule: Rule  # what would have been accepted
    counters: ClassVar[tuple[str, ...]] = (
        "shadow_blocks",  # strict blocks
        "shadow_first",  # tokens that the rule would have made of these, each for itself
        "shadow_differing",  # blocks of which it would have kept more or less
        "shadow_judged",  # blocks behind each other, as a loose decoder would have them
        "shadow_tokens",  # tokens of these, the target's own included
        "shadow_loose",  # of these the loosely accepted ones
        "shadow_carried",  # and strict accepts behind them
    )

    needs = property(lambda self: self.rule.needs)
    verifier = property(lambda self: self.rule.verifier)
    temperatures = property(lambda self: self.rule.temperatures)
    alternative = property(lambda self: self.rule.alternative)

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        return self.rule.context(tokenizer, think_markers)

    def accept(self, block: Block, state: State) -> Tensor:
        return block.strict

    def advance(self, block: Block, acceptance: Acceptance, state: State) -> State:
        inner = {
            name.removeprefix(INNER): value
            for name, value in state.items()
            if name.startswith(INNER)
        }
        would = settle(self.rule, block, inner)
        zero_B = torch.zeros_like(acceptance.length)
        at_B = state.get("shadow_at", zero_B)
        next_B = state.get("shadow_next", zero_B)
        judged_B = at_B >= next_B
        length_B = until_end(block, would.length)
        kept_BK = torch.arange(block.draft_ids.shape[1], device=length_B.device) < length_B[:, None]
        counted = {
            "shadow_blocks": torch.ones_like(zero_B),
            "shadow_first": length_B + 1,
            "shadow_differing": (length_B != until_end(block, acceptance.length)).long(),
            "shadow_judged": judged_B.long(),
            "shadow_tokens": judged_B * (length_B + 1),
            "shadow_loose": judged_B * (kept_BK & (would.reasons == Reason.LOOSE)).sum(-1),
            "shadow_carried": judged_B * (kept_BK & (would.reasons == Reason.CARRIED)).sum(-1),
        }
        after = {name: state.get(name, zero_B) + count for name, count in counted.items()}
        after["shadow_at"] = at_B + acceptance.length + 1
        after["shadow_next"] = torch.where(judged_B, at_B + length_B + 1, next_B)
        # A loose decoder never meets the blocks within a loose span, so that the rule may not
        # remember them either.
        met = replace(block, valid=block.valid & judged_B[:, None])
        for name, new in self.rule.advance(met, would, inner).items():
            old = inner.get(name, torch.zeros_like(new))
            is_new = judged_B.view(-1, *[1] * (new.ndim - 1))
            after[INNER + name] = torch.where(is_new, new, old)
        return after


def until_end(block: Block, length_B: Tensor) -> Tensor:
    """Accepted lengths, ended in front of a token that ends the answer: it counts as the own token
    of its block.
    """
    if block.ends is None or not block.ends.numel() or not block.draft_ids.shape[1]:
        return length_B
    before_B = leading(~torch.isin(block.draft_ids, block.ends))
    return torch.minimum(length_B, before_B)


def shadow(decoder: Decoder) -> Decoder:
    """A decoder that verifies strictly and counts what the rule of `decoder` would have
    accepted.
    """
    if decoder.drafter is None or decoder.drafter.nodes:
        raise UserError(
            "Shadow mode watches what a rule does with chains of drafts. Name a draft, or another"
            " drafter."
        )
    return decoder.having(rule=Shadow(decoder.rule))


def summary(counted: Statistics) -> str:
    """One line about a shadow run; the rule's tau is estimated from blocks that follow each
    other.
    """
    extra = counted.extra
    return (
        f"shadow: tau {extra['shadow_tokens'] / extra['shadow_judged']:.2f} estimated for the rule"
        f" instead of {counted.mean_accepted_length:.2f},"
        f" {100 * extra['shadow_loose'] / extra['shadow_tokens']:.1f} loose tokens per hundred,"
        f" {100 * extra['shadow_differing'] / extra['shadow_blocks']:.0f} % of the blocks differ"
    )
