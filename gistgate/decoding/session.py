"""One batch on its way through the loop: draft, verify, accept, commit.

Axis letters: B rows, K drafted tokens, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block, Sampling
from gistgate.decoding.commit import commit
from gistgate.decoding.parts import Parts
from gistgate.drafters.base import Draft
from gistgate.forward.cache import RowCache
from gistgate.forward.reader import Reader, left_padded
from gistgate.forward.states import tap
from gistgate.optional.guards.base import settle_guarded
from gistgate.optional.rereading import appendix, forget, rows_of_copy
from gistgate.optional.trees.judging import Judged, judge, walked
from gistgate.optional.trees.shape import depths, lineage
from gistgate.optional.trees.walks import walk_of
from gistgate.request.rows import Generation, Memory, Row, count_notes, finished, texts_of
from gistgate.request.stopping import Stop
from gistgate.rules.base import State


class Session:
    """One batch on its way through the loop."""

    def __init__(
        self,
        parts: Parts,
        rows: list[Row],
        stop: Stop,
        sampling: Sampling,
        is_decided: Callable[[Row], str | None] | None = None,
        remember: bool = False,
    ) -> None:
        self.parts, self.rows, self.stop, self.sampling = parts, rows, stop, sampling
        self.is_decided, self.remember = is_decided, remember
        self.reader = Reader(parts.target, len(rows))
        self.state: State = {}
        self.protocol = torch.tensor([*stop.eos_ids, *parts.protocol_ids], device=parts.target.device)
        self.states: dict[str, Tensor] = {}
        self.results: dict[int, tuple[Generation, Memory | None]] = {}

    def begin(self) -> None:
        """Start with nothing read."""
        if self.parts.drafter is not None:
            self.parts.drafter.start(len(self.rows))

    def restore(self, memories: Sequence[Memory], lengths: Sequence[int]) -> None:
        """Start with the first `lengths[b]` tokens of each text read, as far as they are remembered."""
        # The last token has to be read again: its row predicts the next one.
        most = [len(row.text) - 1 for row in self.rows]
        known = [min(n, memory.target.length, top) for n, memory, top in zip(lengths, memories, most, strict=True)]
        self.reader.restore([memory.target for memory in memories], known)
        if self.parts.drafter is not None:
            known = [min(n, memory.draft.length, top) for n, memory, top in zip(lengths, memories, most, strict=True)]
            self.parts.drafter.restore([memory.draft for memory in memories], known)

    def run(self) -> list[tuple[Generation, Memory | None]]:
        """Round after round until every row has ended."""
        num_rows = len(self.rows)
        self._retire([row for row in self.rows if self._over(row)])
        with tap(self.parts.target, self.parts.layers) as self.states:
            while self.rows:
                self._round()
        return [self.results[index] for index in range(num_rows)]

    def _over(self, row: Row) -> bool:
        if row.answer and row.finish is None:
            _, row.finish = self.stop.cut(row.answer[:-1], row.answer[-1:])
        return row.finish is not None or self.stop.max_new_tokens <= len(row.answer)

    def _round(self) -> None:
        started = perf_counter()
        room = torch.tensor([self.stop.max_new_tokens - len(row.answer) - 1 for row in self.rows])
        uniforms = self._uniforms()
        draft = self._draft(room, uniforms)  # 1. draft    x_1 .. x_K
        drafted = perf_counter()
        block = self._verify(draft, uniforms)  # 2. verify   one target forward
        verified = perf_counter()
        block, acceptance, paths = self._accept(block, draft)  # 3. accept   strict OR rule, longest prefix
        accepted = perf_counter()
        self._commit(acceptance, block, draft, paths)  # 4. commit   cut at the stop, roll back, count
        parts = {"draft": drafted - started, "verify": verified - drafted, "accept": accepted - verified}
        self._spend({**parts, "total": perf_counter() - started})
        self._retire([row for row in self.rows if row.finish is not None])

    def _uniforms(self) -> Tensor | None:
        """Fresh numbers [B, 2K + 1]: K (for a tree: N) for drafting, as many for accepting, one for the own token."""
        if self.sampling.greedy and "uniforms" not in self.parts.rule.needs:
            return None
        return torch.stack([row.uniforms(2 * self.parts.most_drafted + 1) for row in self.rows])

    def _draft(self, room: Tensor, uniforms: Tensor | None) -> Draft | None:
        num_draft = min(self.parts.block, int(room.max()))
        if self.parts.drafter is None or num_draft < 1:
            return None
        draft = self.parts.drafter.propose(
            texts_of(self.rows),
            num_draft,
            vocabulary=self.parts.vocabulary,
            sampling=self.sampling,
            uniforms=uniforms,
            want_q=self.parts.wants_q,
        )
        count_notes(self.rows, draft.notes)
        device = self.parts.target.device
        parents = None if draft.parents is None else draft.parents.to(device)
        place = torch.arange(draft.ids.shape[1], device=device) if parents is None else depths(parents) - 1
        valid = draft.valid.to(device) & (place < room.clamp_max(num_draft).to(device)[:, None])
        q = None if draft.q is None else draft.q.to(device)
        return Draft(draft.ids.to(device), valid, q, draft.forwards, parents)

    def _verify(self, draft: Draft | None, uniforms: Tensor | None) -> Block:
        device = self.parts.target.device
        ids, valid = left_padded(self.reader.unread(texts_of(self.rows)), device)
        if draft is None:
            draft = Draft(ids[:, :0], ids[:, :0].bool())
        num = draft.ids.shape[1]
        if valid is not None or not bool(draft.valid.all()):
            pending = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
            valid = torch.cat([pending, draft.valid], dim=1)
        z, second = self._read(torch.cat([ids, draft.ids], dim=1), valid, draft)
        block = Block(
            draft.ids,
            draft.valid,
            self.sampling.logits(z),
            q=draft.q,
            hidden={layer: state[:, -num - 1 :] for layer, state in self.states.items()},
            uniforms=None if uniforms is None else self._to_accept(uniforms, num).to(device),
            greedy=self.sampling.greedy,
            protocol=self.protocol,
            thinking=self._thinking(draft),
            cost=self._costs(device),
        )
        return block if not self.parts.rereads else replace(block, second=self._second(block, second, draft))

    def _read(self, ids: Tensor, valid: Tensor | None, draft: Draft) -> tuple[Tensor, Tensor | None]:
        """The rows [B, K + 1, V] of the draft, and those of its second copy where both are read in one forward."""
        num, vocabulary = draft.ids.shape[1], self.parts.vocabulary
        if not num or not self.parts.rereads or self.parts.rule.mode != "joint":  # type: ignore[attr-defined]
            return self.reader.read(ids, valid, num + 1, draft.parents)[..., :vocabulary], None
        more, counts = self._appendix(draft)
        known = torch.ones_like(ids, dtype=torch.bool) if valid is None else valid
        keep = num + 1 + more.shape[1]
        z = self.reader.read(torch.cat([ids, more], dim=1), torch.cat([known, counts], dim=1), keep)[..., :vocabulary]
        for layer, state in self.states.items():
            self.states[layer] = state[:, : state.shape[1] - more.shape[1]]
        forget(self.reader, counts)
        return z[:, : num + 1], rows_of_copy(z, num)

    def _second(self, block: Block, second: Tensor | None, draft: Draft) -> Tensor:
        """The rows of the second copy [B, K, V]; where nothing differs, the first reading stands."""
        num = draft.ids.shape[1]
        differs = [] if second is not None else (block.valid & ~block.strict).any(-1).tolist()
        if any(differs):
            ids, counts = self._appendix(draft)
            second = rows_of_copy(self.reader.read(ids, counts, keep=num + 1)[..., : self.parts.vocabulary], num)
            forget(self.reader, counts)
            for row, again in zip(self.rows, differs, strict=True):
                row.statistics.forwards += again
        return block.logits[:, :-1] if second is None else self.sampling.logits(second)

    def _appendix(self, draft: Draft) -> tuple[Tensor, Tensor]:
        tail: int = self.parts.rule.tail  # type: ignore[attr-defined]
        return appendix(texts_of(self.rows), self.parts.reflection_ids, tail, draft)

    def _thinking(self, draft: Draft) -> Tensor | None:
        """Positions between the think markers [B, K]; an end marker in the draft makes what follows an answer."""
        if self.parts.think_ids is None:
            return None
        now = torch.tensor([row.is_thinking(self.parts.think_ids) for row in self.rows], device=draft.ids.device)
        ends = (draft.ids == self.parts.think_ids[1]).long()
        if draft.parents is not None:
            above = lineage(draft.parents).float() @ (ends * draft.valid)[..., None].float()
            return now[:, None] & (above.squeeze(-1) - ends <= 0)
        return now[:, None] & (ends.cumsum(-1) - ends == 0)

    def _costs(self, device: torch.device) -> Tensor | None:
        """What a round costs each row [B]; a row that says nothing costs nothing."""
        if all(row.cost is None for row in self.rows):
            return None
        return torch.tensor([row.cost or 0.0 for row in self.rows], device=device)

    def _accept(self, block: Block, draft: Draft | None) -> tuple[Block, Acceptance, list[list[int]] | None]:
        """What stays; of a tree the best path as the block that was judged, and the numbers of its accepted nodes."""
        paths = None
        if draft is None or draft.parents is None:
            block, acceptance = self._settle(block)
        else:
            judged = self._judge(block, draft.parents)
            block, acceptance, paths = judged.block, judged.acceptance, judged.paths
        self.state = self.parts.rule.advance(block, acceptance, self.state)
        if self.parts.observer is not None:
            self.parts.observer(block, acceptance, self.rows)
        if (watch := getattr(self.parts.drafter, "observe", None)) is not None:
            watch(block, acceptance)
        return block, acceptance, paths

    def _settle(self, block: Block, times: int = 1) -> tuple[Block, Acceptance]:
        """The verdict on a block of `times` paths for every row, with what the gate says filled in."""
        if self.parts.judged:
            assert self.parts.gate is not None
            block = block.with_gate(self.parts.gate)
        rows = [row for row in self.rows for _ in range(times)]
        state = {name: value.repeat_interleave(times, 0) for name, value in self.state.items()}
        return block, settle_guarded(self.parts.guards, self.parts.rule, block, state, rows)

    def _judge(self, nodes: Block, parents: Tensor) -> Judged:
        if self.sampling.greedy:
            return judge(nodes, parents, self._settle)
        return walked(nodes, parents, walk_of(self.parts.rule))

    def _to_accept(self, uniforms: Tensor, num: int) -> Tensor:
        """The numbers [B, num + 1] for accepting `num` tokens and drawing the own one."""
        block = self.parts.most_drafted
        return torch.cat([uniforms[:, block : block + num], uniforms[:, -1:]], dim=1)

    def _commit(self, acceptance: Acceptance, block: Block, draft: Draft | None, paths: list[list[int]] | None) -> None:
        lengths: list[int] = acceptance.length.tolist()
        ids, reasons = block.draft_ids.tolist(), acceptance.reasons.tolist()
        for row, length, own, x, why in zip(self.rows, lengths, acceptance.own_ids.tolist(), ids, reasons, strict=True):
            commit(row, x[:length], why[:length], own, self.stop, 0 if draft is None else draft.forwards)
            if row.finish is None and self.is_decided is not None:
                row.finish = self.is_decided(row)
        for guard in self.parts.guards:
            guard.committed(self.rows)
        # Refused tokens were read by both models; what a stop cut off needs no forgetting, its row leaves.
        if draft is not None and draft.ids.shape[1]:
            self._forget(draft, lengths, paths)

    def _forget(self, draft: Draft, lengths: list[int], paths: list[list[int]] | None) -> None:
        num, valid = draft.ids.shape[1], draft.valid.sum(-1).tolist()
        drafter = self.parts.drafter
        assert drafter is not None
        if paths is None:
            self.reader.settle(num, lengths, valid)
            drafter.settle(lengths)
            return
        self.reader.settle_paths(num, paths, valid)
        if (settle_path := getattr(drafter, "settle_path", None)) is not None:
            settle_path(paths)
        else:
            drafter.settle(lengths)

    def _spend(self, parts: dict[str, float]) -> None:
        for row in self.rows:
            for part, seconds in parts.items():
                row.statistics.spend(part, seconds / len(self.rows))

    def _retire(self, leaving: list[Row]) -> None:
        """Hand out the rows that ended; the others go on without them."""
        if not leaving:
            return
        gone = {row.index for row in leaving}
        places = [place for place, row in enumerate(self.rows) if row.index in gone]
        memories = self._memories(places) if self.remember else [None] * len(places)
        for place, memory in zip(places, memories, strict=True):
            row = self.rows[place]
            row.statistics.extra |= {name: float(self.state[name][place]) for name in self._counters()}
            row.finish = row.finish or "length"
            self.results[row.index] = (finished(row), memory)
        stay = [place for place, row in enumerate(self.rows) if row.index not in gone]
        self.rows = [self.rows[place] for place in stay]
        if self.rows:
            self.reader.select(stay)
            self.state = {name: value[stay] for name, value in self.state.items()}
            if self.parts.drafter is not None:
                self.parts.drafter.select(stay)

    def _counters(self) -> list[str]:
        return [name for name in self.parts.rule.counters if name in self.state]

    def _memories(self, places: list[int]) -> list[Any]:
        drafter = self.parts.drafter
        targets = self.reader.snapshot(places)
        drafts = drafter.snapshot(places) if drafter is not None else [RowCache([])] * len(places)
        return [
            Memory(list(self.rows[place].text), target, draft)
            for place, target, draft in zip(places, targets, drafts, strict=True)
        ]
