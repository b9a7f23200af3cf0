"""What a drafter is: something cheap that proposes the next tokens of every row, as a chain or as
a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Acceptance, Block, Draft, Sampling
from gistgate.core.cache import NOTHING_READ, RowCache, Texts
from gistgate.core.reader import Layout, Reader
from gistgate.core.rule import Rule

Settle = Callable[[Block, int], tuple[Block, Acceptance]]
"""Judges a block with a number of paths for every row, those of one row together; returns the
block, with what was learned of it, and what of every path stays."""


@dataclass(frozen=True)
class Judged:
    """A block with its verdict."""

    block: Block  # the block that was judged [B, K]; of a tree the best path of every row
    acceptance: Acceptance
    paths: list[list[int]] | None = None  # the accepted nodes of each row's tree; None for chains


class Chains:
    """What the loop has to know about drafts whose tokens follow each other."""

    def check(self, models: Sequence[PreTrainedModel], rule: Rule) -> None:
        """Refuse models that cannot read such drafts, and rules that cannot judge them."""

    def check_sampled(self, rule: Rule) -> None:
        """Refuse rules that cannot judge such drafts of a sampled request."""

    def places(self, draft: Draft) -> Tensor:
        """How many drafted tokens stand in front of each one, [K] or [B, K]."""
        return torch.arange(draft.width, device=draft.ids.device)

    def layout(self, draft: Draft) -> Layout | None:
        """How the target reads the draft; None in order."""
        return None

    def judge(self, block: Block, draft: Draft, rule: Rule, settle: Settle) -> Judged:
        """What of the draft stays."""
        return Judged(*settle(block, 1))

    def keep(self, reader: Reader, drafter: Drafter, draft: Draft, judged: Judged) -> None:
        """Take back what both models read of the refused tokens."""
        lengths = judged.acceptance.length.tolist()
        reader.keep(draft.width, lengths, draft.valid.sum(-1).tolist())
        drafter.keep(lengths)


class Request(TypedDict):
    """What a drafter is told of a request besides its texts."""

    vocabulary: int  # number of ids that count; no other id may be proposed
    sampling: Sampling  # how the request wants its tokens drawn
    # Numbers in (0, 1) to draw with [B, K], of a tree [B, nodes]; None when nothing is drawn.
    uniforms: Tensor | None
    want_q: bool  # whether draft probabilities are asked for although the request is greedy


class Drafter:
    """Proposes tokens, and is told afterwards how many of them stayed.

    A drafter serves one batch at a time: `start` forgets the batch before, `admit` adds rows and
    `select` drops some. The defaults are those of a drafter that reads its proposals off the texts:
    it names no probabilities and remembers nothing of a batch.
    """

    model: PreTrainedModel | None = None  # the draft model, if there is one
    form: type[Chains] = Chains  # what its drafts look like
    nodes: int = 0  # most nodes of a draft that is a tree; 0 for chains
    gives_q: bool = False  # it can name draft probabilities
    # Hidden states of the target that blocks given to `observe` have to carry.
    layers: frozenset[str] = frozenset()
    asks_room: bool = False
    """True when a shorter proposal is the beginning of a longer one and costs less. It is then
    asked for no more tokens than the longest row has room for. All others are asked for K, or
    proposals would depend on neighbours."""
    stopping: Any = None  # `gistgate.drafters.stopping`: when its drafts end; None: at K tokens

    @property
    def binding(self) -> dict[str, Any]:
        """What decides the proposals besides texts, models and data files, as plain JSON.

        Certificates bind it.
        """
        return {}

    def start(self, batch: int) -> None:
        """Begin a new batch of that many rows."""

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        """Propose up to `num_draft` tokens (of a tree: the deepest path) behind each text.

        The draft is as wide as the longest proposal.
        """
        raise NotImplementedError

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Learn from a verified block, of a tree from its best path.

        It is called before `keep`, for empty drafts as well.
        """

    def keep(self, accepted: Sequence[int]) -> None:
        """Take back what was drafted of row b beyond its first `accepted[b]` tokens."""

    def keep_paths(self, paths: Texts) -> None:
        """Take back what was drafted of row b beside the nodes `paths[b]` of its tree."""
        self.keep([len(path) for path in paths])

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""

    def admit(self, texts: Texts, caches: Sequence[RowCache]) -> None:
        """Take texts into the batch, behind its rows; `caches` are what is remembered of them, up
        to any token before the last one.
        """

    def read(self, texts: Texts) -> list[RowCache]:
        """Read texts and return what is remembered of them; the present batch stays as it is."""
        return [NOTHING_READ] * len(texts)

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        """Return what is remembered of these rows, to `admit` their texts later."""
        return [NOTHING_READ] * len(rows)
