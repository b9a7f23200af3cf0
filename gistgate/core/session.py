"""One request in the loop: draft, verify, accept, commit. Queued rows take the slots of finished
ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from time import perf_counter

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block, Draft, Reason
from gistgate.core.cache import RowCache
from gistgate.core.drafter import Drafter, Judged
from gistgate.core.features import tap
from gistgate.core.parts import DecoderParts, Terms
from gistgate.core.reader import left_padded
from gistgate.core.request import Generation, PrefixState, Row, Stop, spend


class Verifier:
    """Reads the draft behind each text in one forward.

    A rule whose drafts are read otherwise names a subclass.
    """

    def __init__(self, terms: Terms) -> None:
        parts = terms.parts
        ends = terms.stop.eos_ids
        device = parts.target.device
        self.parts = parts
        self.sampling = terms.sampling
        self.reader = parts.reader(parts.target, 0)
        self.ends = torch.tensor([*ends], dtype=torch.long, device=device)
        self.protocol = torch.tensor([*ends, *parts.protocol_ids], device=device)
        # Hidden states of the last forward, filled while the session runs.
        self.states: dict[str, Tensor] = {}

    @classmethod
    def extra_tokens(cls, parts: DecoderParts) -> int:
        """Most tokens of context that are read beyond text and draft."""
        return 0

    def verify(self, rows: Sequence[Row], draft: Draft, uniforms: Tensor | None) -> Block:
        """The draft and what the target says about it; `uniforms [B, K + 1]` are for accepting
        it.
        """
        unread = self.reader.unread([row.text for row in rows])
        ids, valid = left_padded(unread, draft.ids.device)
        if valid is not None or not bool(draft.valid.all()):
            pending = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            valid = torch.cat([pending, draft.valid], dim=1)
        ids = torch.cat([ids, draft.ids], dim=1)
        z = self.read(ids, valid, draft, rows)
        first = -draft.width - 1
        return Block(
            draft.ids,
            draft.valid,
            self.sampling.logits(z),
            q=draft.q,
            hidden={layer: state[:, first:] for layer, state in self.states.items()},
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
        z = self.reader.read(ids, valid, draft.width + 1, layout)
        return z[..., : self.parts.vocabulary]


NOTHING = PrefixState([])


@dataclass(frozen=True)
class QueuedRow:
    """A row that waits, and what is known of its text."""

    row: Row
    prefix: PrefixState = NOTHING
    kept: int = 0  # tokens of the prefix that the row's text begins with

    def known(self, cache: RowCache) -> RowCache:
        """What of the text needs no reading; the last token is read again, because its row predicts
        the next one.
        """
        return cache.first(min(self.kept, len(self.row.text) - 1))


FEWEST = 8
"""Rows come in when one in so many slots is free: every admission costs a forward and a copy of the
caches."""


class Queue:
    """The rows of a request that have no slot yet, in the order in which they get one."""

    def __init__(self, rows: Iterable[QueuedRow], slots: int) -> None:
        """`rows` is asked for a row only when there is a slot for it."""
        self._rows = iter(rows)
        self.slots = slots

    def next(self, live: int) -> list[QueuedRow]:
        """The rows that come in beside `live` others; none while too few slots are free."""
        free = self.slots - live
        if live and free * FEWEST < self.slots:
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
    ids = [*accepted, own]
    num, row.finish = stop.cut(row.answer, ids, row.prompt)
    added = [*reasons, int(Reason.OWN)][:num]
    row.text += ids[:num]
    row.reasons += added
    counts = row.statistics
    counts.forwards += 1
    counts.draft_forwards += draft_forwards
    counts.strict += added.count(Reason.STRICT)
    counts.loose += added.count(Reason.LOOSE)
    counts.carried += added.count(Reason.CARRIED)
    counts.own += added.count(Reason.OWN)
    length = min(num, len(accepted))
    counts.histogram[length] = counts.histogram.get(length, 0) + 1


@dataclass
class Session:
    """The batch of one request."""

    terms: Terms
    queue: Queue
    is_decided: Callable[[Row], str | None] = lambda _row: None  # as in `Decoder.resume`
    remember: bool = False

    def __post_init__(self) -> None:
        self.parts = self.terms.parts
        self.stop = self.terms.stop
        self.sampling = self.terms.sampling
        self.slots = self.terms.slots
        verifier = self.parts.rule.verifier or Verifier
        self.verifier: Verifier = verifier(self.terms)
        self.drafter = self.parts.drafter or Drafter()
        self.device = self.parts.target.device
        self.rows: list[Row] = []
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
            self.drafter.start(0)  # it outlives the request, and its cache need not
        return [self.results[index] for index in sorted(self.results)]

    def _admit(self) -> bool:
        """Fill free slots with rows that wait; False when no row is left."""
        while queued := self.queue.next(len(self.rows)):
            self._read_beforehand(queued)
            self.rows = [*self.rows, *(entry.row for entry in queued)]
            for entry in queued:
                self._check_end(entry.row)
            self._retire()
        return bool(self.rows)

    def _read_beforehand(self, queued: Sequence[QueuedRow]) -> None:
        """Make room in both models for rows; beside live ones, all but their last token is read at
        their cost.
        """
        started = perf_counter()
        rows = [entry.row for entry in queued]
        texts = [row.text for row in rows]
        if not self.rows:
            self.verifier.reader = self.parts.reader(self.parts.target, 0)
            self.drafter.start(0)
        self.verifier.reader.admit(texts, [entry.known(entry.prefix.target) for entry in queued])
        between = perf_counter()
        self.drafter.admit(texts, [entry.known(entry.prefix.draft) for entry in queued])
        ended = perf_counter()
        spend(rows, verify=between - started, draft=ended - between, total=ended - started)

    def _check_end(self, row: Row) -> None:
        """End a row that needs no round: a continued text may end where it was cut."""
        answer = row.answer
        if answer:
            _, row.finish = self.stop.cut(answer[:-1], answer[-1:], row.prompt)
        if row.finish is None and self.stop.max_new_tokens <= len(answer):
            row.finish = "length"

    def _round(self) -> None:
        started = perf_counter()
        self.slots.usage.count(len(self.rows), self.slots.number or self.queue.slots)
        uniforms = self._uniforms()
        draft = self._draft(uniforms)  # 1. draft    x_1 .. x_K
        drafted = perf_counter()
        if uniforms is not None:
            first = self.parts.most_drafted  # those before were for drafting
            for_draft = uniforms[:, first : first + draft.width]
            uniforms = torch.cat([for_draft, uniforms[:, -1:]], dim=1)
            uniforms = uniforms.to(self.device)
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
            total=perf_counter() - started,
        )
        self._retire()

    def _uniforms(self) -> Tensor | None:
        """Fresh numbers [B, 2K + 1]: K (for a tree: N) for drafting, as many for accepting, one for
        the own token.
        """
        if self.sampling.greedy and not self.parts.random:
            return None
        num = 2 * self.parts.most_drafted + 1
        return torch.stack([row.uniforms(num) for row in self.rows])

    def _draft(self, uniforms: Tensor | None) -> Draft:
        parts = self.parts
        room_B = torch.tensor([row.room(self.stop.max_new_tokens) for row in self.rows])
        num_draft = min(parts.block, int(room_B.max()))
        if num_draft < 1:
            return Draft.empty(len(self.rows), self.device)
        if not self.drafter.asks_room:
            num_draft = parts.block
        draft = self.drafter.propose(
            [row.text for row in self.rows],
            num_draft,
            vocabulary=parts.vocabulary,
            sampling=self.sampling,
            # The numbers behind these decide about acceptance: a drafter that drew with them would
            # bias it.
            uniforms=None if uniforms is None else uniforms[:, : parts.most_drafted],
            want_q=parts.wants_q,
        ).to(self.device)
        room_B = room_B.clamp_max(num_draft).to(self.device)
        fits = parts.form.places(draft) < room_B[:, None]
        return replace(draft, valid=draft.valid & fits)

    def _accept(self, block: Block, draft: Draft) -> Judged:
        parts = self.parts
        judged = parts.form.judge(block, draft, parts.rule, self._settle)
        parts.rule.advance(judged.block, judged.acceptance, self.rows)
        for observer in parts.observers:
            observer(judged.block, judged.acceptance, self.rows)
        self.drafter.observe(judged.block, judged.acceptance)
        return judged

    def _settle(self, block: Block, times: int) -> tuple[Block, Acceptance]:
        """The verdict on a block of `times` paths for every row, with what rule and gate know of it
        filled in.
        """
        parts = self.parts
        rows = [row for row in self.rows for _ in range(times)]
        fields = parts.context.fields(block, rows)
        begins = [not row.answer for row in rows]
        if any(begins):
            fields["begins"] = torch.tensor(begins, device=self.device)
        block = block.having(**fields)
        if parts.judged:
            block = block.with_gate(parts.gate)
        return block, parts.guards.settle(parts.rule, block, rows)

    def _commit(self, judged: Judged, draft: Draft) -> None:
        acceptance = judged.acceptance
        ids = judged.block.draft_ids.tolist()
        reasons = acceptance.reasons.tolist()
        own_ids = acceptance.own_ids.tolist()
        for place, length in enumerate(acceptance.length.tolist()):
            row = self.rows[place]
            commit(
                row,
                ids[place][:length],
                reasons[place][:length],
                own_ids[place],
                self.stop,
                draft.forwards,
            )
            row.finish = row.finish or self.is_decided(row)
        self.parts.guards.committed(self.rows)
        # Refused tokens were read by both models; what a stop cut off needs no forgetting, its row
        # leaves.
        if draft.width:
            self.parts.form.keep(self.verifier.reader, self.drafter, draft, judged)

    def _retire(self) -> None:
        """Hand out the rows that ended; the others go on without them."""
        leaving = [place for place, row in enumerate(self.rows) if row.finish is not None]
        if not leaving:
            return
        memories = self._prefix_states(leaving) if self.remember else [None] * len(leaving)
        for place, memory in zip(leaving, memories):
            row = self.rows[place]
            self.results[row.index] = (row.generation(), memory)
            self.slots.progress(1)
        staying = [place for place, row in enumerate(self.rows) if row.finish is None]
        self.rows = [self.rows[place] for place in staying]
        if staying:
            self._select(staying)

    def _select(self, staying: Sequence[int]) -> None:
        """Let both models go on with these rows alone."""
        self.verifier.reader.select(staying)
        self.drafter.select(staying)

    def _prefix_states(self, places: list[int]) -> list[PrefixState]:
        texts = [list(self.rows[place].text) for place in places]
        targets = self.verifier.reader.snapshot(places)
        drafts = self.drafter.snapshot(places)
        return [PrefixState(*entry) for entry in zip(texts, targets, drafts)]
