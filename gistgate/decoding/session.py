"""One request on its way through the loop: draft, verify, accept, commit.

Rows that wait take the slots of finished ones (`gistgate.decoding.admission`).

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block, Draft, Sampling
from gistgate.decoding.admission import Waiting, admit
from gistgate.decoding.commit import commit
from gistgate.decoding.extensions import VERIFIERS
from gistgate.decoding.form import Judged
from gistgate.decoding.parts import Parts
from gistgate.forward.cache import RowCache
from gistgate.request.rows import Generation, Memory, Row, count_notes, finished, spend, texts_of
from gistgate.request.slots import Slots
from gistgate.request.stopping import Stop
from gistgate.rules.base import State


class Session:
    """One request on its way through the loop."""

    def __init__(
        self,
        parts: Parts,
        waiting: Waiting,
        stop: Stop,
        sampling: Sampling,
        slots: Slots,
        is_decided: Callable[[Row], str | None] | None = None,
        remember: bool = False,
    ) -> None:
        """Begin with an empty batch; `is_decided` and `remember` as in `Decoder.resume`."""
        self.parts, self.waiting, self.stop, self.sampling, self.slots = parts, waiting, stop, sampling, slots
        self.is_decided, self.remember = is_decided, remember
        self.device = parts.target.device
        self.verifier = VERIFIERS[parts.rule.verifier](parts, sampling, stop)
        self.rows: list[Row] = []
        self.state: State = {}
        self.results: dict[int, tuple[Generation, Memory | None]] = {}

    def run(self) -> list[tuple[Generation, Memory | None]]:
        """Decode round after round until every row has ended; answers in the order of the rows' indices."""
        try:
            with self.verifier.listening():
                while self._admit():
                    self._round()
        finally:
            if self.parts.drafter is not None:  # it outlives the request, and its cache need not
                self.parts.drafter.start(0)
        return [self.results[index] for index in sorted(self.results)]

    def _admit(self) -> bool:
        """Fill free slots with rows that wait; False when no row is left."""
        while starts := self.waiting.next(len(self.rows)):
            admit(starts, len(self.rows), self.verifier, self.parts.drafter)
            fresh = [start.row for start in starts]
            self.rows = [*self.rows, *fresh]
            self.state = {
                name: torch.cat([value, value.new_zeros(len(fresh), *value.shape[1:])])
                for name, value in self.state.items()
            }
            self._retire([row for row in fresh if self._over(row)])
        return bool(self.rows)

    def _over(self, row: Row) -> bool:
        if row.answer and row.finish is None:
            _, row.finish = self.stop.cut(row.answer[:-1], row.answer[-1:])
        return row.finish is not None or self.stop.max_new_tokens <= len(row.answer)

    def _round(self) -> None:
        started = perf_counter()
        self.slots.usage.count(len(self.rows), self.slots.number or self.waiting.slots)
        uniforms = self._uniforms()
        draft = self._draft(uniforms)  # 1. draft    x_1 .. x_K
        drafted = perf_counter()
        block = self.verifier.verify(self.rows, draft, self._to_accept(uniforms, draft))  # 2. verify   one forward
        verified = perf_counter()
        judged = self._accept(block, draft)  # 3. accept   strict OR rule, longest prefix
        accepted = perf_counter()
        self._commit(judged, draft)  # 4. commit   cut at the stop, count, roll back
        spend(self.rows, draft=drafted - started, verify=verified - drafted, accept=accepted - verified)
        spend(self.rows, total=perf_counter() - started)
        self._retire([row for row in self.rows if row.finish is not None])

    def _uniforms(self) -> Tensor | None:
        """Fresh numbers [B, 2K + 1]: K (for a tree: N) for drafting, as many for accepting, one for the own token."""
        if self.sampling.greedy and not self.parts.random:
            return None
        return torch.stack([row.uniforms(2 * self.parts.most_drafted + 1) for row in self.rows])

    def _to_accept(self, uniforms: Tensor | None, draft: Draft) -> Tensor | None:
        """Those of the numbers [B, K + 1] that are for accepting the draft and drawing the own token."""
        if uniforms is None:
            return None
        first, num = self.parts.most_drafted, draft.ids.shape[1]
        return torch.cat([uniforms[:, first : first + num], uniforms[:, -1:]], dim=1).to(self.device)

    def _draft(self, uniforms: Tensor | None) -> Draft:
        room_B = torch.tensor([self.stop.max_new_tokens - len(row.answer) - 1 for row in self.rows])
        most = min(self.parts.block, int(room_B.max()))
        if self.parts.drafter is None or most < 1:
            return Draft.empty(len(self.rows), self.device)
        num_draft = most if self.parts.drafter.asks_room else self.parts.block
        draft = self.parts.drafter.propose(
            texts_of(self.rows),
            num_draft,
            vocabulary=self.parts.vocabulary,
            sampling=self.sampling,
            # The numbers behind these decide about acceptance: a drafter that drew with them would bias it.
            uniforms=None if uniforms is None else uniforms[:, : self.parts.most_drafted],
            want_q=self.parts.wants_q,
        )
        # A row without room drafts nothing, whatever its neighbours do, so nothing is counted for it.
        count_notes(self.rows, [note if room > 0 else "" for note, room in zip(draft.notes, room_B, strict=False)])
        draft = draft.to(self.device)
        fits = self.parts.form.places(draft) < room_B.clamp_max(num_draft).to(self.device)[:, None]
        return draft.only(fits)

    def _accept(self, block: Block, draft: Draft) -> Judged:
        judged = self.parts.form.judge(block, draft, self.parts.rule, self._settle)
        block, acceptance = judged.block, judged.acceptance
        self.state = self.parts.rule.advance(block, acceptance, self.state)
        if self.parts.observer is not None:
            self.parts.observer(block, acceptance, self.rows)
        if self.parts.drafter is not None:
            self.parts.drafter.observe(block, acceptance)
        return judged

    def _settle(self, block: Block, times: int) -> tuple[Block, Acceptance]:
        """The verdict on a block of `times` paths for every row, with what rule and gate know of it filled in."""
        rows = self.rows if times == 1 else [row for row in self.rows for _ in range(times)]
        state = self.state if times == 1 else {k: v.repeat_interleave(times, 0) for k, v in self.state.items()}
        fields = self.parts.context.fields(block, rows)
        begins = [not row.answer for row in rows]
        if any(begins):
            fields = {**fields, "begins": torch.tensor(begins, device=self.device)}
        if fields:
            block = block.having(**fields)
        if self.parts.judged:
            assert self.parts.gate is not None
            block = block.with_gate(self.parts.gate)
        return block, self.parts.guards.settle(self.parts.rule, block, state, rows)

    def _commit(self, judged: Judged, draft: Draft) -> None:
        kept, ids = judged.acceptance, judged.block.draft_ids.tolist()
        told = zip(self.rows, ids, kept.length.tolist(), kept.own_ids.tolist(), kept.reasons.tolist(), strict=True)
        for row, x, length, own, why in told:
            commit(row, x[:length], why[:length], own, self.stop, draft.forwards)
            if row.finish is None and self.is_decided is not None:
                row.finish = self.is_decided(row)
        self.parts.guards.committed(self.rows)
        # Refused tokens were read by both models; what a stop cut off needs no forgetting, its row leaves.
        if self.parts.drafter is not None and draft.ids.shape[1]:
            self.parts.form.keep(self.verifier.reader, self.parts.drafter, draft, judged)

    def _retire(self, leaving: list[Row]) -> None:
        """Hand out the rows that ended; the others go on without them."""
        if not leaving:
            return
        gone = {row.index for row in leaving}
        places = [place for place, row in enumerate(self.rows) if row.index in gone]
        memories = self._memories(places) if self.remember else [None] * len(places)
        for place, memory in zip(places, memories, strict=True):
            row = self.rows[place]
            counted = [name for name in self.parts.rule.counters if name in self.state]
            row.statistics.extra |= {name: float(self.state[name][place]) for name in counted}
            row.finish = row.finish or "length"
            self.results[row.index] = (finished(row), memory)
            self.slots.usage.finish(row.statistics.tokens, row.statistics.forwards)
            self.slots.progress(1)
        stay = [place for place, row in enumerate(self.rows) if row.index not in gone]
        self.rows = [self.rows[place] for place in stay]
        self.state = {name: value[stay] for name, value in self.state.items()}
        if self.rows:
            self.verifier.reader.select(stay)
            if self.parts.drafter is not None:
                self.parts.drafter.select(stay)

    def _memories(self, places: list[int]) -> list[Memory]:
        drafter = self.parts.drafter
        targets = self.verifier.reader.snapshot(places)
        drafts = drafter.snapshot(places) if drafter is not None else [RowCache([]) for _ in places]
        texts = [list(self.rows[place].text) for place in places]
        return [Memory(*one) for one in zip(texts, targets, drafts, strict=True)]
