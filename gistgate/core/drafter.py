"""What a drafter is: something cheap that proposes the next tokens of every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Acceptance, Block, Draft, Sampling
from gistgate.core.reader import RowCache

if TYPE_CHECKING:
    from gistgate.drafters.stopping import Stopping

Texts = Sequence[Sequence[int]]  # prompt and answer of each row, as token ids


class Request(TypedDict):
    """What a drafter is told of a request besides its texts."""

    vocabulary: int  # number of ids that count; no other id may be proposed
    sampling: Sampling  # how the request wants its tokens drawn
    uniforms: (
        Tensor | None
    )  # numbers in (0, 1) to draw with [B, K], of a tree [B, nodes]; None when nothing is drawn
    want_q: bool  # whether draft probabilities are asked for although the request is greedy


class Drafter:
    """Proposes tokens, and is told afterwards how many of them stayed.

    A drafter serves one batch at a time: `start` forgets the batch before. The defaults are those
        of a drafter that
    reads its proposals off the texts: it names no probabilities and remembers nothing of a batch.
    """

    gives_q: bool = False  # it can name draft probabilities
    # subclass of `gistgate.core.session.Chains` that knows what its drafts look like; None: chains
    form: Any = None
    nodes: int = 0  # most nodes of a draft that is a tree; 0 for chains
    layers: frozenset[str] = (
        frozenset()
    )  # hidden states of the target that blocks given to `observe` have to carry
    learns: bool = (
        False  # it learns from the target's rows, that is, it has an `observe` of its own
    )
    asks_room: bool = False
    """True when a shorter proposal is the beginning of a longer one and costs less. It is then
    asked for no more tokens than the longest row has room for. All others are asked for K, or
    proposals would depend on neighbours."""
    stops_early: bool = False  # its draft model's steps end at a token that is not known beforehand
    stopping: Stopping | None = (
        None  # when drafts of its model end; None: at K tokens, or at an end of its own
    )
    model: PreTrainedModel | None = None  # the draft model, if there is one

    @property
    def binding(self) -> dict[str, Any]:
        """What decides the proposals besides texts, models and data files, as plain JSON:
        certificates bind it.
        """
        return {}

    def start(self, batch: int) -> None:
        """Begin a new batch of that many rows."""

    def propose(self, texts: Texts, num_draft: int, **request: Unpack[Request]) -> Draft:
        """Propose up to `num_draft` tokens (of a tree: the deepest path) behind each text, a draft
        as wide as the longest proposal."""
        raise NotImplementedError

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Learn from a verified block, of a tree from its best path; called before `keep`, for
        empty drafts as well.
        """

    def keep(self, accepted: Sequence[int]) -> None:
        """Take back what was drafted of row b beyond its first `accepted[b]` tokens."""

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        """Take back what was drafted of row b beside the nodes `paths[b]` of its tree."""
        self.keep([len(path) for path in paths])

    def select(self, rows: Sequence[int]) -> None:
        """Go on with these rows alone."""

    def admit(
        self, present: int, texts: Texts, caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        """Take texts into the batch, behind its `present` rows; `lengths[b]` tokens are remembered
        in `caches[b]`.

        This default begins the batch anew. A drafter that knows more of its rows than `snapshot`
        returns has to keep that, or proposals would depend on the company that a row has.
        """
        kept = self.snapshot(range(present))
        self.restore([*kept, *caches], [*(cache.length for cache in kept), *lengths])

    def read(self, texts: Texts) -> list[RowCache]:
        """Read texts and return what is remembered of them; the present batch stays as it is."""
        return [RowCache([]) for _ in texts]

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        """Return what is remembered of these rows, to `restore` it later."""
        return [RowCache([]) for _ in rows]

    def restore(self, caches: list[RowCache], lengths: Sequence[int]) -> None:
        """Begin a batch whose row b has already read `lengths[b]` tokens of `caches[b]`."""
        self.start(len(lengths))
