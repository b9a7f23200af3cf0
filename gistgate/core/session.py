"""One request in the loop: draft, verify, accept, commit. Queued rows take the slots of finished
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.block import Acceptance, Block, Draft, Reason, Sampling
from gistgate.core.drafter import Drafter
from gistgate.core.features import tap
from gistgate.core.reader import Layout, Reader, RowCache, left_padded
from gistgate.core.request import Generation, PrefixState, Row, Slots, Stop, count_notes, spend
from gistgate.core.rule import Context, Exact, Rule, State, settle

if TYPE_CHECKING:
    from gistgate.core.guards import Guards

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
    """What the loop has to know about drafts whose tokens follow each other; `Drafter.form` names
    another class.
    """

    def check(self, models: Sequence[PreTrainedModel], rule: Rule) -> None:
        """Refuse models that cannot read such drafts, and rules that cannot judge them."""

    def check_sampled(self, rule: Rule) -> None:
        """Refuse rules that cannot judge such drafts of a sampled request."""

    def places(self, draft: Draft) -> Tensor:
        """How many drafted tokens stand in front of each one, [K] or [B, K]."""
        return torch.arange(draft.ids.shape[1], device=draft.ids.device)

    def layout(self, draft: Draft) -> Layout | None:
        """How the target reads the draft; None in order."""
        return None

    def judge(self, block: Block, draft: Draft, rule: Rule, settle: Settle) -> Judged:
        """What of the draft stays."""
        return Judged(*settle(block, 1))

    def keep(self, reader: Reader, drafter: Drafter, draft: Draft, judged: Judged) -> None:
        """Take back what both models read of the refused tokens."""
        lengths = judged.acceptance.length.tolist()
        reader.keep(draft.ids.shape[1], lengths, draft.valid.sum(-1).tolist())
        drafter.keep(lengths)


class Observer(Protocol):
    """Sees every block with its acceptance, before anything is committed."""

    layers: Collection[str] = frozenset()  # hidden states that the block shall carry
    wants_q: bool = False  # whether it shall carry draft probabilities, where the drafter has them

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None: ...


@dataclass(frozen=True)
class DecoderParts:
    """What all sessions of a decoder share, checked to fit together."""

    target: PreTrainedModel
    drafter: Drafter | None
    rule: Rule
    block: int  # K, drafted tokens per round; 0 is plain decoding
    vocabulary: int  # number of token ids that count, where output layers are padded
    gate: Any = None  # gives a block its probabilities; `layers` and `wants_q` say what it reads
    tokenizer: PreTrainedTokenizerBase | None = None
    protocol_ids: tuple[int, ...] = ()  # tokens that are never accepted loosely, besides eos
    observer: Observer | None = None
    context: Context = field(
        default_factory=Context
    )  # what the rule knows about tokenizer and requests
    form: Chains = field(default_factory=Chains)  # what the drafts look like
    guards: Guards | None = None  # who watches every request and may make it stricter
    reader: type[Reader] = Reader  # reads texts with the target

    def plain(self) -> DecoderParts:
        """The same without speculation: the target's own tokens, one per forward."""
        return replace(
            self, drafter=None, rule=Exact(), block=0, gate=None, context=Context(), form=Chains()
        )

    @property
    def models(self) -> list[PreTrainedModel]:
        """The target and, where there is one, the draft model."""
        return models_of(self.target, self.drafter)

    @property
    def most_drafted(self) -> int:
        """Most tokens of one round's draft: K, or the nodes of a tree."""
        return max(self.block, self.drafter.nodes) if self.block and self.drafter else 0

    @property
    def layers(self) -> frozenset[str]:
        """Hidden states that a block has to carry."""
        askers = (self.guards, self.observer, self.drafter, self.gate if self.judged else None)
        return frozenset().union(*(part.layers for part in askers if part is not None))

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
        asked = (self.judged and self.gate.wants_q) or "q" in self.rule.needs
        return asked or (self.observer is not None and self.observer.wants_q)


def models_of(target: PreTrainedModel, drafter: Drafter | None) -> list[PreTrainedModel]:
    """The target and, where there is one, the draft model."""
    return [target] if drafter is None or drafter.model is None else [target, drafter.model]


class Verifier:
    """Reads the draft behind each text in one forward; a rule whose drafts are read otherwise names
    a subclass.
    """

    def __init__(self, parts: DecoderParts, sampling: Sampling, stop: Stop) -> None:
        self.parts = parts
        self.sampling = sampling
        self.reader = parts.reader(parts.target, 0)
        self.ends = torch.tensor([*stop.eos_ids], dtype=torch.long, device=parts.target.device)
        self.protocol = torch.tensor(
            [*stop.eos_ids, *parts.protocol_ids], device=parts.target.device
        )
        self.states: dict[
            str, Tensor
        ] = {}  # hidden states of the last forward, filled while the session runs

    @classmethod
    def extra_tokens(cls, parts: DecoderParts) -> int:
        """Most tokens of context that are read beyond text and draft."""
        return 0

    def verify(self, rows: Sequence[Row], draft: Draft, uniforms: Tensor | None) -> Block:
        """The draft and what the target says about it; `uniforms [B, K + 1]` are for accepting
        it.
        """
        ids, valid = left_padded(
            self.reader.unread([row.text for row in rows]), self.parts.target.device
        )
        num = draft.ids.shape[1]
        if valid is not None or not bool(draft.valid.all()):
            pending = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            valid = torch.cat([pending, draft.valid], dim=1)
        z = self.read(torch.cat([ids, draft.ids], dim=1), valid, draft, rows)
        return Block(
            draft.ids,
            draft.valid,
            self.sampling.logits(z),
            q=draft.q,
            hidden={layer: state[:, -num - 1 :] for layer, state in self.states.items()},
            uniforms=uniforms,
            greedy=self.sampling.greedy,
            protocol=self.protocol,
            ends=self.ends,
        )

    def read(self, ids: Tensor, valid: Tensor | None, draft: Draft, rows: Sequence[Row]) -> Tensor:
        """The target's rows for the draft [B, K + 1, V], which stands at the end of `ids [B,
        N]`.
        """
        layout = self.parts.form.layout(draft)
        return self.reader.read(ids, valid, draft.ids.shape[1] + 1, layout)[
            ..., : self.parts.vocabulary
        ]


# rows come in when one in so many slots is free: every admission costs a forward and a copy of the
# caches
FEWEST = 8
NOTHING = PrefixState([], RowCache([]), RowCache([]))


@dataclass(frozen=True)
class QueuedRow:
    """A row that waits, and what is known of its text."""

    row: Row
    prefix: PrefixState = NOTHING
    kept: int = 0  # tokens of the prefix that the row's text begins with

    def known(self, cache: RowCache) -> int:
        """Tokens that need no reading; the last one is read again, because its row predicts the
        next one.
        """
        return min(self.kept, len(self.row.text) - 1, cache.length)


class Queue:
    """The rows of a request that have no slot yet, in the order in which they get one."""

    def __init__(self, rows: Iterable[QueuedRow], slots: int) -> None:
        """`rows` is asked for a row only when there is a slot for it."""
        self._rows = iter(rows)
        self.slots = slots

    def next(self, live: int) -> list[QueuedRow]:
        """The rows that come in beside `live` others; none while too few slots are free."""
        free = self.slots - live
        if not free or (live and free * FEWEST < self.slots):
            return []
        return list(islice(self._rows, free))


def commit(
    row: Row,
    accepted: Sequence[int],
    reasons: Sequence[int],
    own: int,
    stop: Stop,
    draft_forwards: int,
) -> None:
    """Append the accepted tokens and the target's own one to the row, as far as its stop allows,
    and count them.
    """
    new = [*accepted, own]
    why = [*reasons, int(Reason.OWN)]
    kept, row.finish = stop.cut(row.answer, new, row.text[: row.prompt_length])
    row.text += new[:kept]
    row.reasons += why[:kept]
    counts = row.statistics
    counts.forwards += 1
    counts.draft_forwards += draft_forwards
    counts.strict += why[:kept].count(Reason.STRICT)
    counts.loose += why[:kept].count(Reason.LOOSE)
    counts.carried += why[:kept].count(Reason.CARRIED)
    counts.own += why[:kept].count(Reason.OWN)
    length = min(kept, len(accepted))
    counts.histogram[length] = counts.histogram.get(length, 0) + 1


class Session:
    """The batch of one request."""

    def __init__(
        self,
        parts: DecoderParts,
        queue: Queue,
        stop: Stop,
        sampling: Sampling,
        slots: Slots,
        is_decided: Callable[[Row], str | None] | None = None,
        remember: bool = False,
    ) -> None:
        """Begin with an empty batch; `is_decided` and `remember` as in `Decoder.resume`."""
        self.parts = parts
        self.queue = queue
        self.stop = stop
        self.sampling = sampling
        self.slots = slots
        self.is_decided = is_decided
        self.remember = remember
        self.device = parts.target.device
        self.verifier: Verifier = (parts.rule.verifier or Verifier)(parts, sampling, stop)
        self.rows: list[Row] = []
        self.state: State = {}
        self.results: dict[int, tuple[Generation, PrefixState | None]] = {}

    def run(self) -> list[tuple[Generation, PrefixState | None]]:
        """Decode round after round until every row has ended; answers in the order of the rows'
        indices.
        """
        try:
            with tap(self.parts.target, self.parts.layers) as self.verifier.states:
                while self._admit():
                    self._round()
        finally:
            if self.parts.drafter is not None:  # it outlives the request, and its cache need not
                self.parts.drafter.start(0)
        return [self.results[index] for index in sorted(self.results)]

    def _admit(self) -> bool:
        """Fill free slots with rows that wait; False when no row is left."""
        while queued := self.queue.next(len(self.rows)):
            fresh = [one.row for one in queued]
            self._read_beforehand(queued)
            self.rows = [*self.rows, *fresh]
            self.state = {
                name: torch.cat([value, value.new_zeros(len(fresh), *value.shape[1:])])
                for name, value in self.state.items()
            }
            self._retire([row for row in fresh if self._has_ended(row)])
        return bool(self.rows)

    def _read_beforehand(self, queued: Sequence[QueuedRow]) -> None:
        """Make room in both models for rows; beside `live` ones, all but their last token is read
        at their cost.
        """
        begun = perf_counter()
        live = len(self.rows)
        drafter = self.parts.drafter
        texts = [one.row.text for one in queued]
        targets = [one.prefix.target for one in queued]
        drafts = [one.prefix.draft for one in queued]
        known = [one.known(cache) for one, cache in zip(queued, targets, strict=True)]
        if live:
            self.verifier.reader.admit(texts, targets, known)
        else:
            self.verifier.reader = self.parts.reader(self.parts.target, len(queued))
            self.verifier.reader.restore(targets, known)
        between = perf_counter()
        if drafter is not None:
            known = [one.known(cache) for one, cache in zip(queued, drafts, strict=True)]
            if live:
                drafter.admit(live, texts, drafts, known)
            else:
                drafter.restore(drafts, known)
        ended = perf_counter()
        spend(
            [one.row for one in queued],
            verify=between - begun,
            draft=ended - between,
            total=ended - begun,
        )

    def _has_ended(self, row: Row) -> bool:
        """Whether a row that comes in needs no round: a continued text may end where it was cut."""
        if row.answer and row.finish is None:
            _, row.finish = self.stop.cut(
                row.answer[:-1], row.answer[-1:], row.text[: row.prompt_length]
            )
        return row.finish is not None or self.stop.max_new_tokens <= len(row.answer)

    def _round(self) -> None:
        started = perf_counter()
        self.slots.usage.count(len(self.rows), self.slots.number or self.queue.slots)
        uniforms = self._uniforms()
        draft = self._draft(uniforms)  # 1. draft    x_1 .. x_K
        drafted = perf_counter()
        first = self.parts.most_drafted
        num = draft.ids.shape[1]
        if (
            uniforms is not None
        ):  # of these K are for accepting the draft, and one for drawing the own token
            uniforms = torch.cat([uniforms[:, first : first + num], uniforms[:, -1:]], dim=1).to(
                self.device
            )
        block = self.verifier.verify(self.rows, draft, uniforms)  # 2. verify   one forward
        verified = perf_counter()
        judged = self._accept(block, draft)  # 3. accept   strict OR rule, longest prefix
        accepted = perf_counter()
        self._commit(judged, draft)  # 4. commit   cut at the stop, count, roll back
        spend(
            self.rows,
            draft=drafted - started,
            verify=verified - drafted,
            accept=accepted - verified,
        )
        spend(self.rows, total=perf_counter() - started)
        self._retire([row for row in self.rows if row.finish is not None])

    def _uniforms(self) -> Tensor | None:
        """Fresh numbers [B, 2K + 1]: K (for a tree: N) for drafting, as many for accepting, one for
        the own token.
        """
        if self.sampling.greedy and not self.parts.random:
            return None
        return torch.stack([row.uniforms(2 * self.parts.most_drafted + 1) for row in self.rows])

    def _draft(self, uniforms: Tensor | None) -> Draft:
        parts = self.parts
        drafter = self.parts.drafter
        room_B = torch.tensor([row.room(self.stop.max_new_tokens) for row in self.rows])
        most = min(parts.block, int(room_B.max()))
        if drafter is None or most < 1:
            return Draft.empty(len(self.rows), self.device)
        num_draft = most if drafter.asks_room else parts.block
        draft = drafter.propose(
            [row.text for row in self.rows],
            num_draft,
            vocabulary=parts.vocabulary,
            sampling=self.sampling,
            # The numbers behind these decide about acceptance: a drafter that drew with them would
            # bias it.
            uniforms=None if uniforms is None else uniforms[:, : parts.most_drafted],
            want_q=parts.wants_q,
        )
        count_notes(self.rows, draft.notes, self.stop.max_new_tokens)
        draft = draft.to(self.device)
        fits = parts.form.places(draft) < room_B.clamp_max(num_draft).to(self.device)[:, None]
        return replace(draft, valid=draft.valid & fits)

    def _accept(self, block: Block, draft: Draft) -> Judged:
        judged = self.parts.form.judge(block, draft, self.parts.rule, self._settle)
        block = judged.block
        acceptance = judged.acceptance
        self.state = self.parts.rule.advance(block, acceptance, self.state)
        if self.parts.observer is not None:
            self.parts.observer(block, acceptance, self.rows)
        if self.parts.drafter is not None:
            self.parts.drafter.observe(block, acceptance)
        return judged

    def _settle(self, block: Block, times: int) -> tuple[Block, Acceptance]:
        """The verdict on a block of `times` paths for every row, with what rule and gate know of it
        filled in.
        """
        parts = self.parts
        rows = self.rows
        state = self.state
        if times > 1:
            rows = [row for row in rows for _ in range(times)]
            state = {name: value.repeat_interleave(times, 0) for name, value in state.items()}
        fields = parts.context.fields(block, rows)
        begins = [not row.answer for row in rows]
        if any(begins):
            fields = {**fields, "begins": torch.tensor(begins, device=self.device)}
        if fields:
            block = block.having(**fields)
        if parts.judged:
            block = block.with_gate(parts.gate)
        if parts.guards is None:
            return block, settle(parts.rule, block, state)
        return block, parts.guards.settle(parts.rule, block, state, rows)

    def _commit(self, judged: Judged, draft: Draft) -> None:
        kept = judged.acceptance
        ids = judged.block.draft_ids.tolist()
        columns = (
            self.rows,
            ids,
            kept.length.tolist(),
            kept.own_ids.tolist(),
            kept.reasons.tolist(),
        )
        for row, x, length, own, why in zip(*columns, strict=True):
            commit(row, x[:length], why[:length], own, self.stop, draft.forwards)
            if row.finish is None and self.is_decided is not None:
                row.finish = self.is_decided(row)
        if self.parts.guards is not None:
            self.parts.guards.committed(self.rows)
        # Refused tokens were read by both models; what a stop cut off needs no forgetting, its row
        # leaves.
        if self.parts.drafter is not None and draft.ids.shape[1]:
            self.parts.form.keep(self.verifier.reader, self.parts.drafter, draft, judged)

    def _retire(self, leaving: list[Row]) -> None:
        """Hand out the rows that ended; the others go on without them."""
        if not leaving:
            return
        gone = {row.index for row in leaving}
        places = [place for place, row in enumerate(self.rows) if row.index in gone]
        states = self._prefix_states(places) if self.remember else [None] * len(places)
        for place, state in zip(places, states, strict=True):
            row = self.rows[place]
            counted = [name for name in self.parts.rule.counters if name in self.state]
            row.statistics.extra |= {name: float(self.state[name][place]) for name in counted}
            row.finish = row.finish or "length"
            self.results[row.index] = (row.generation(), state)
            self.slots.progress(1)
        stay = [place for place, row in enumerate(self.rows) if row.index not in gone]
        self.rows = [self.rows[place] for place in stay]
        self.state = {name: value[stay] for name, value in self.state.items()}
        if self.rows:
            self.verifier.reader.select(stay)
            if self.parts.drafter is not None:
                self.parts.drafter.select(stay)

    def _prefix_states(self, places: list[int]) -> list[PrefixState]:
        drafter = self.parts.drafter
        targets = self.verifier.reader.snapshot(places)
        drafts = drafter.snapshot(places) if drafter is not None else [RowCache([]) for _ in places]
        texts = [list(self.rows[place].text) for place in places]
        return [PrefixState(*one) for one in zip(texts, targets, drafts, strict=True)]
