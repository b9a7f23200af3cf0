"""What a decoder is made of, checked to fit together: its session needs no more than this.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Acceptance, Block
from gistgate.drafters.base import Drafter
from gistgate.optional.guards.base import Guard
from gistgate.request.rows import Row
from gistgate.rules.base import Rule
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
    gate: GateLike | None
    tokenizer: PreTrainedTokenizerBase | None
    protocol_ids: tuple[int, ...]
    """Tokens that are never accepted loosely, besides eos."""
    observer: Observer | None
    vocabulary: int
    """Ids that count, where output layers are padded."""
    think_ids: tuple[int, int] | None = None
    """The think markers, begin and end, where the rule asks for them."""
    reflection_ids: tuple[int, ...] = ()
    """The prompt between two readings of a draft, where the rule asks for a second one."""
    guards: tuple[Guard, ...] = ()
    """What watches every request and may make it stricter."""

    def plain(self) -> Parts:
        """The same without speculation: the target's own tokens, one per forward."""
        return replace(self, drafter=None, rule=Exact(), block=0, gate=None, think_ids=None, reflection_ids=())

    @property
    def most_drafted(self) -> int:
        """Most tokens of one round's draft: K, or the nodes of a tree."""
        return max(self.block, getattr(self.drafter, "nodes", 0)) if self.block else 0

    @property
    def layers(self) -> frozenset[str]:
        """Hidden states that a block has to carry."""
        watched = frozenset(self.observer.layers) if self.observer else frozenset()
        watched |= getattr(self.drafter, "layers", frozenset())
        watched = watched.union(*(guard.layers for guard in self.guards))
        return watched | (self.gate.layers if self.judged and self.gate else frozenset())

    @property
    def judged(self) -> bool:
        """True when the rule asks the gate."""
        return "gate" in self.rule.needs and self.gate is not None

    @property
    def wants_q(self) -> bool:
        """True when the drafter shall name its probabilities also for greedy requests."""
        asked = self.gate.wants_q if self.judged and self.gate else False
        return asked or "q" in self.rule.needs or (self.observer is not None and self.observer.wants_q)

    @property
    def rereads(self) -> bool:
        """True when the target reads every draft a second time."""
        return "second" in self.rule.needs

    @property
    def rereading(self) -> int:
        """Most tokens of context that a second reading takes beyond the text."""
        if not self.rereads:
            return 0
        tail: int = self.rule.tail  # type: ignore[attr-defined]
        return len(self.reflection_ids) + tail + 2 * self.block
