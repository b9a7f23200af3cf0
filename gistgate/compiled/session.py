"""A session whose rounds are replays: the host says where each row stands, and hears in one message what came of it.

Axis letters: B rows of the memory, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.compiled.memory import attending_to_slots, forget, rounded, store_of
from gistgate.compiled.program import Program, UnsupportedError, missing_compiler
from gistgate.compiled.rounds import FEED, DraftToken, PromptReader, VerifyRound, draft_program, rounded_up, stretch_of
from gistgate.core.block import Sampling
from gistgate.core.drafter import Drafter
from gistgate.core.reader import counts_slots, has_window
from gistgate.core.request import Generation, Row, Slots, Stop, count_notes, spend
from gistgate.core.session import DecoderParts, commit
from gistgate.core.utils import is_out_of_memory
from gistgate.drafters.model import ModelDrafter

MOST_ROWS = 32
"""Largest batch that gets programs of its own; larger ones keep the device busy without."""


def session_or_reason(
    parts: DecoderParts,
    rows: list[Row],
    stop: Stop,
    sampling: Sampling,
    slots: Slots,
    failed: dict[tuple[object, ...], str],
) -> CompiledSession | str:
    """A session of programs, or why the eager engine has to run; `failed` remembers what cannot be a program.

    The first session of a new shape builds them, which takes seconds or minutes.
    """
    shape = (len(rows), sampling, *parts.rule.known_by)
    if (why := failed.get(shape) or reason_against(parts, len(rows))) is not None:
        return why
    try:
        with torch.inference_mode(False), torch.no_grad():
            return CompiledSession(parts, rows, stop, sampling, slots)
    except UnsupportedError as error:
        failed[shape] = str(error)  # trying again would cost as much and end alike
        return failed[shape]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        forget(parts.models)
        return "there is not enough memory for it"  # the next request may find more


def reason_against(parts: DecoderParts, num_rows: int) -> str | None:
    """Why these parts or this batch need the eager engine; None where nothing is known against the compiled one."""
    drafter = parts.drafter
    if num_rows > MOST_ROWS:
        return f"{num_rows} rows are more than the {MOST_ROWS} for which programs are built"
    if drafter is not None and (why := reason_against_drafter(drafter)) is not None:
        return f"the drafter {type(drafter).__name__} {why}"
    if parts.observer is not None:
        return "an observer looks at every block"
    if parts.guards is not None:
        return "guards look at every block"
    if parts.context.needs_eager:
        return f"the rule '{parts.rule.id}' {parts.context.needs_eager}"
    if len({model.device for model in parts.models}) > 1:
        return "target and draft model are on different devices"
    return next((why for model in parts.models if (why := reason_against_model(model)) is not None), None)


def reason_against_drafter(drafter: Drafter) -> str | None:
    """Why a drafter needs the eager engine, as the end of a sentence about it."""
    if drafter.stops_early:
        return "ends its drafts at a length that is not known beforehand"
    if drafter.nodes:
        return "returns trees"
    if drafter.model is not None and getattr(type(drafter), "propose", None) is not ModelDrafter.propose:
        return "asks its model in a way of its own"
    if drafter.learns or (drafter.gives_q and drafter.model is None):
        return "looks at every block"
    return None


def reason_against_model(model: PreTrainedModel) -> str | None:
    """Why a model needs the eager engine."""
    name = type(model).__name__
    if has_window(model):
        return f"{name} attends to a sliding window"
    if counts_slots(model):
        return f"{name} measures distances in slots of its cache"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{name} does not let its attention be exchanged"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return f"{name} is spread over several devices"
    # A CUDA graph helps without a compiler, too.
    return None if model.device.type == "cuda" else missing_compiler(model.device)


class CompiledSession:
    """One batch through programs of fixed shape; rows that end keep their place until all have ended."""

    def __init__(self, parts: DecoderParts, rows: list[Row], stop: Stop, sampling: Sampling, slots: Slots) -> None:
        self.parts, self.rows, self.stop, self.sampling, self.told = parts, rows, stop, sampling, slots
        self.places = {row.index: place for place, row in enumerate(rows)}
        self.num = parts.block
        self.device = parts.target.device
        self.batch = 1 << (len(rows) - 1).bit_length()
        longest = rounded_up(max(len(row.text) for row in rows), stretch_of(parts.target))
        # Room for the prompt in whole stretches, the answer, a block that runs over its end, and the last slot.
        self.slots = rounded(longest + stop.max_new_tokens + self.num + 3)
        self.draft_model = None if parts.drafter is None or not parts.block else parts.drafter.model
        self.results: dict[int, Generation] = {}
        for part in (parts.gate, parts.rule):
            if (move := getattr(part, "to", None)) is not None:  # tracing must not be what moves it
                move(self.device)
        self._memory = self._cleared(parts.target)
        self._round_program = self._verify_round()  # first: what cannot be a program is mostly found here
        self._readers = [PromptReader(parts.target, self._memory)]
        if self.draft_model is not None:
            self._draft_memory = self._cleared(self.draft_model)
            self._readers.append(PromptReader(self.draft_model, self._draft_memory))
            self._steps = self._draft_steps(self.draft_model)

    @property
    def _random(self) -> bool:
        return not self.sampling.greedy or self.parts.random

    def _cleared(self, model: PreTrainedModel) -> list[Tensor]:
        memory = store_of(model).memory(model, self.batch, self.slots)
        for kept in memory:  # what an earlier request left weighs nothing, but nothing times NaN is NaN
            kept.zero_()
        return memory

    def _draft_steps(self, model: PreTrainedModel) -> Program:
        gives_q = self.parts.wants_q or not self.sampling.greedy
        token = DraftToken(model, self.parts.vocabulary, self.sampling, gives_q)
        return draft_program(token, self.num, self._draft_memory, self.num if self._random else 0)

    def _verify_round(self) -> Program:
        parts, ids = self.parts, (*sorted(self.stop.eos_ids), *self.parts.protocol_ids)
        protocol = torch.tensor(ids, dtype=torch.long, device=self.device)
        function = VerifyRound(parts, self.num, self.sampling, protocol)
        gate = parts.gate if parts.judged else None
        width = parts.vocabulary if self._has_q else 0
        key = (self.batch, self.slots, "verify", self.num, parts.vocabulary, self.sampling, width)
        q = torch.zeros(self.batch, self.num, width, device=self.device)
        valid = torch.ones(self.batch, self.num, dtype=torch.bool, device=self.device)
        inputs = [self._ints(FEED), self._ints(self.num), valid, q, self._uniforms(self.num + 1)]
        with attending_to_slots(parts.target):
            return store_of(parts.target).program(
                (*key, *parts.rule.known_by, gate, ids), function, self._memory, inputs
            )

    @property
    def _has_q(self) -> bool:
        return self.draft_model is not None and (self.parts.wants_q or not self.sampling.greedy)

    def _ints(self, width: int) -> Tensor:
        return torch.zeros(self.batch, width, dtype=torch.long, device=self.device)

    def _uniforms(self, width: int) -> Tensor:
        width = width if self._random else 0
        return torch.zeros(self.batch, width, dtype=torch.float64, device=self.device)

    def run(self) -> list[Generation]:
        """Round after round until every row has ended."""
        try:
            return self._run()
        finally:
            if self.parts.drafter is not None and self.draft_model is None:
                self.parts.drafter.start(0)  # it lives longer than its batch, which it need not keep

    def _run(self) -> list[Generation]:
        live = [row for row in self.rows if self.stop.max_new_tokens > 0]
        for row in self.rows:
            if self.stop.max_new_tokens <= 0:
                self._end(row)
        if live:
            if any(len(row.text) > 1 for row in self.rows):
                self._read_prompts(live)
            if self.parts.drafter is not None and self.draft_model is None:
                self.parts.drafter.start(len(live))
        while live:
            self._round(live)
            live = self._retired(live)
        return [self.results[row.index] for row in self.rows]

    def _read_prompts(self, live: list[Row]) -> None:
        """Read all of every prompt but its last token, which the first round reads."""
        started = [perf_counter()]
        for reader in self._readers:
            reader.read([row.text[:-1] for row in self.rows])
            started.append(perf_counter())
        spend(live, draft=started[-1] - started[1], verify=started[1] - started[0], total=started[-1] - started[0])

    def _round(self, live: list[Row]) -> None:
        started = perf_counter()
        self.told.usage.count(len(live), self.told.number or len(self.rows))
        feed = self._feed(live)
        uniforms = self._drawn(live)
        drafted = self._draft(live, feed, uniforms)  # 1. draft    x_1 .. x_K
        between = perf_counter()
        ids, valid, q, forwards = drafted
        accept = torch.cat([uniforms[:, self.num : 2 * self.num], uniforms[:, -1:]], dim=1)
        (told,) = self._round_program(*self._memory, feed, ids, valid, q, accept)  # 2. verify, 3. accept
        answers = told.tolist()  # the one time per round that the host waits for the device
        verified = perf_counter()
        lengths = self._commit(live, answers, forwards)  # 4. commit   cut at the stop, count
        if self.parts.drafter is not None and self.draft_model is None:
            self.parts.drafter.keep(lengths)
        spend(live, draft=between - started, verify=verified - between, total=perf_counter() - started)

    def _feed(self, live: Sequence[Row]) -> Tensor:
        """Where every row stands [B, 5]; a row that has ended goes on writing into its own memory's beginning."""
        feed = [[0] * FEED for _ in range(self.batch)]
        for row in live:
            text, written = row.text, len(row.text) - row.prompt_length
            previous = text[-2] if len(text) > 1 else 0
            room = row.room(self.stop.max_new_tokens)
            feed[self.places[row.index]] = [previous, text[-1], len(text) - 1, room, int(not written)]
        return torch.tensor(feed, device=self.device)

    def _drawn(self, live: Sequence[Row]) -> Tensor:
        """Fresh numbers [B, 2K + 1]: K for drafting, K for accepting, one for the own token; [B, 0] without need."""
        if not self._random:
            return self._uniforms(0)
        drawn = torch.full((self.batch, 2 * self.num + 1), 0.5, dtype=torch.float64)
        for row in live:
            drawn[self.places[row.index]] = row.uniforms(2 * self.num + 1)
        return drawn.to(self.device)

    def _draft(self, live: Sequence[Row], feed: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        valid = torch.ones(self.batch, self.num, dtype=torch.bool, device=self.device)
        none = torch.zeros(self.batch, self.num, 0, device=self.device)
        room = max(row.room(self.stop.max_new_tokens) for row in live)
        if self.num and room > 0 and self.draft_model is not None:
            ids, q = self._steps(*self._draft_memory, feed, uniforms[:, : self.num])
            return ids, valid, q, self.num
        if self._has_q:
            none = torch.ones(self.batch, self.num, self.parts.vocabulary, device=self.device)
        if not self.num or room < 1 or self.parts.drafter is None:
            return self._ints(self.num), valid & False, none, 0
        num = min(self.num, room) if self.parts.drafter.asks_room else self.num
        return self._proposed(live, num, uniforms, none)

    def _proposed(
        self, live: Sequence[Row], num: int, uniforms: Tensor, none: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """What a drafter without a model proposes, in the fixed shape."""
        assert self.parts.drafter is not None
        draft = self.parts.drafter.propose(
            [row.text for row in live],
            num,
            vocabulary=self.parts.vocabulary,
            sampling=self.sampling,
            uniforms=uniforms[[self.places[row.index] for row in live], : self.num] if self._random else None,
            want_q=False,
        )
        count_notes(live, draft.notes, self.stop.max_new_tokens)
        ids, valid = self._ints(self.num), torch.zeros(self.batch, self.num, dtype=torch.bool, device=self.device)
        for place, row in enumerate(live):
            ids[self.places[row.index], : draft.ids.shape[1]] = draft.ids[place]
            valid[self.places[row.index], : draft.ids.shape[1]] = draft.valid[place]
        return ids, valid, none, draft.forwards

    def _commit(self, live: Sequence[Row], answers: Sequence[Sequence[int]], forwards: int) -> list[int]:
        lengths = []
        for row in live:
            told = answers[self.places[row.index]]
            length, own = told[-2], told[-1]
            commit(row, told[:length], told[self.num : self.num + length], own, self.stop, forwards)
            lengths.append(length)
        return lengths

    def _retired(self, live: list[Row]) -> list[Row]:
        stay = [place for place, row in enumerate(live) if row.finish is None]
        if len(stay) == len(live):
            return live
        for row in live:
            if row.finish is not None:
                self._end(row)
        if stay and self.parts.drafter is not None and self.draft_model is None:
            self.parts.drafter.select(stay)
        return [live[place] for place in stay]

    def _end(self, row: Row) -> None:
        row.finish = row.finish or "length"
        self.results[row.index] = row.generation()
        self.told.usage.finish(row.statistics.tokens, row.statistics.forwards)
        self.told.progress(1)
