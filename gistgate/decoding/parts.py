"""What a decoder is made of, checked to fit together: its sessions need no more than this.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Acceptance, Block
from gistgate.decoding.form import Chains
from gistgate.decoding.guarding import Unguarded
from gistgate.drafters.base import Drafter
from gistgate.request.rows import Row
from gistgate.rules.base import Context, Rule
from gistgate.rules.exact import Exact


class GateLike(Protocol):
    """What the decoder asks of a gate."""

    layers: frozenset[str]
    wants_q: bool

    def __call__(self, block: Block) -> Tensor: ...


class Observer(Protocol):
    """Sees every block with its acceptance, before anything is committed."""

    layers: Collection[str]
    """Hidden states that the block shall carry."""
    wants_q: bool
    """Whether it shall carry draft probabilities, where the drafter has them."""

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None: ...


@dataclass(frozen=True)
class Parts:
    """Everything that all sessions of a decoder share."""

    target: PreTrainedModel
    drafter: Drafter | None
    rule: Rule
    block: int
    """K, drafted tokens per round; 0 is plain decoding."""
    vocabulary: int
    """Number of token ids that count, where output layers are padded."""
    gate: GateLike | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    protocol_ids: tuple[int, ...] = ()
    """Tokens that are never accepted loosely, besides eos."""
    observer: Observer | None = None
    context: Context = field(default_factory=Context)
    """What the rule knows about tokenizer and requests."""
    form: Chains = field(default_factory=Chains)
    """What the drafts look like."""
    guards: Unguarded = field(default_factory=Unguarded)
    """Who watches every request and may make it stricter."""

    def plain(self) -> Parts:
        """The same without speculation: the target's own tokens, one per forward."""
        return replace(self, drafter=None, rule=Exact(), block=0, gate=None, context=Context(), form=Chains())

    @property
    def most_drafted(self) -> int:
        """Most tokens of one round's draft: K, or the nodes of a tree."""
        return max(self.block, self.drafter.nodes) if self.block and self.drafter else 0

    @property
    def layers(self) -> frozenset[str]:
        """Hidden states that a block has to carry."""
        asked = self.guards.layers
        for part in (self.observer, self.drafter, self.gate if self.judged else None):
            asked |= frozenset(part.layers) if part is not None else frozenset()
        return asked

    @property
    def judged(self) -> bool:
        """True when the rule asks the gate."""
        return "gate" in self.rule.needs and self.gate is not None

    @property
    def random(self) -> bool:
        """True when the rule needs random numbers for greedy requests, too."""
        return "uniforms" in self.rule.needs

    @property
    def wants_q(self) -> bool:
        """True when the drafter shall name its probabilities also for greedy requests."""
        asked = self.gate.wants_q if self.judged and self.gate else False
        return asked or "q" in self.rule.needs or (self.observer is not None and self.observer.wants_q)
