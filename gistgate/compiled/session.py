"""A session whose rounds are replays: the host says where each row stands, and hears in one message
what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.compiled.memory import forget, program_of, rounded, store_of
from gistgate.compiled.program import Program, UnsupportedError, missing_compiler
from gistgate.compiled.rounds import (
    FEED,
    PromptReader,
    draft_program,
    rounded_up,
    stretch_of,
    verify_round,
)
from gistgate.core.block import Sampling
from gistgate.core.reader import Reader, counts_slots, has_window
from gistgate.core.request import Generation, Row, Slots, Stop, count_notes, spend
from gistgate.core.session import DecoderParts, commit
from gistgate.core.utils import is_out_of_memory
from gistgate.drafters.model import ModelDrafter

MOST_ROWS = (
    32  # largest batch that gets programs of its own; larger ones keep the device busy without
)


def session_or_reason(
    parts: DecoderParts,
    rows: list[Row],
    stop: Stop,
    sampling: Sampling,
    slots: Slots,
    failed: dict[tuple[object, ...], str],
) -> CompiledSession | str:
    """A session of programs, or why the eager engine has to run; `failed` remembers what cannot be
    a program.
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
    """Why these parts or this batch need the eager engine; None where nothing is known against the
    compiled one.
    """
    if num_rows > MOST_ROWS:
        return f"{num_rows} rows are more than the {MOST_ROWS} for which programs are built"
    if (drafter := parts.drafter) is not None:
        named = f"the drafter {type(drafter).__name__}"
        if drafter.stops_early:
            return f"{named} ends its drafts at a length that is not known beforehand"
        if drafter.nodes:
            return f"{named} returns trees"
        if (
            drafter.model is not None
            and getattr(type(drafter), "propose", None) is not ModelDrafter.propose
        ):
            return f"{named} asks its model in a way of its own"
        if drafter.learns or (drafter.gives_q and drafter.model is None):
            return f"{named} looks at every block"
    if parts.reader is not Reader:
        return "the target keeps states besides keys and values"
    if parts.observer is not None:
        return "an observer looks at every block"
    if parts.guards is not None:
        return "guards look at every block"
    if parts.context.needs_eager:
        return f"the rule '{parts.rule.id}' {parts.context.needs_eager}"
    if len({model.device for model in parts.models}) > 1:
        return "target and draft model are on different devices"
    for model in parts.models:
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
        if model.device.type != "cuda" and (why := missing_compiler(model.device)) is not None:
            return why
    return None


class CompiledSession:
    """One batch through programs of fixed shape; rows that end keep their place until all have
    ended.
    """

    def __init__(
        self, parts: DecoderParts, rows: list[Row], stop: Stop, sampling: Sampling, slots: Slots
    ) -> None:
        self.parts = parts
        self.rows = rows
        self.stop = stop
        self.sampling = sampling
        self.told = slots
        self.places = {row.index: place for place, row in enumerate(rows)}
        self.num = parts.block
        self.device = parts.target.device
        self.batch = 1 << (len(rows) - 1).bit_length()
        longest = rounded_up(max(len(row.text) for row in rows), stretch_of(parts.target))
        # Room for the prompt in whole stretches, the answer, a block that runs over its end, and
        # the last slot.
        self.slots = rounded(longest + stop.max_new_tokens + self.num + 3)
        draft_model = None if parts.drafter is None or not parts.block else parts.drafter.model
        self.text_drafter = parts.drafter if draft_model is None else None  # proposes on the host
        self.random = not sampling.greedy or parts.random
        self.gives_q = draft_model is not None and (parts.wants_q or not sampling.greedy)
        for part in (parts.gate, parts.rule):
            if (move := getattr(part, "to", None)) is not None:  # tracing must not be what moves it
                move(self.device)
        self._memory = self._cleared(parts.target)
        self._round_program = (
            self._verify_round()
        )  # first: what cannot be a program is mostly found here
        self._readers = [PromptReader(parts.target, self._memory)]
        self._steps: Program | None = None
        if draft_model is not None:
            self._draft_memory = self._cleared(draft_model)
            self._readers.append(PromptReader(draft_model, self._draft_memory))
            about = (draft_model, parts.vocabulary, sampling, self.gives_q)
            self._steps = draft_program(
                *about, self.num, self._draft_memory, self.num if self.random else 0
            )

    def _cleared(self, model: PreTrainedModel) -> list[Tensor]:
        memory = store_of(model).memory(model, self.batch, self.slots)
        for (
            kept
        ) in memory:  # what an earlier request left weighs nothing, but nothing times NaN is NaN
            kept.zero_()
        return memory

    def _verify_round(self) -> Program:
        parts = self.parts
        ids = (*sorted(self.stop.eos_ids), *self.parts.protocol_ids)
        protocol = torch.tensor(ids, dtype=torch.long, device=self.device)
        function = partial(verify_round, parts, self.num, self.sampling, protocol)
        width = parts.vocabulary if self.gives_q else 0
        key = ("verify", self.num, parts.vocabulary, self.sampling, width, *parts.rule.known_by)
        key = (*key, parts.gate if parts.judged else None, ids)
        q = torch.zeros(self.batch, self.num, width, device=self.device)
        valid = torch.ones(self.batch, self.num, dtype=torch.bool, device=self.device)
        inputs = [self._ints(FEED), self._ints(self.num), valid, q, self._uniforms(self.num + 1)]
        return program_of(parts.target, key, function, self._memory, inputs)

    def _ints(self, width: int) -> Tensor:
        return torch.zeros(self.batch, width, dtype=torch.long, device=self.device)

    def _uniforms(self, width: int) -> Tensor:
        return torch.zeros(
            self.batch, width if self.random else 0, dtype=torch.float64, device=self.device
        )

    def run(self) -> list[Generation]:
        """Round after round until every row has ended."""
        live = self.rows
        if self.stop.max_new_tokens < 1:
            for row in live:
                row.finish = "length"
            live = self._retired(live)
        try:
            if any(len(row.text) > 1 for row in live):
                self._read_prompts(live)
            if live and self.text_drafter is not None:
                self.text_drafter.start(len(live))
            while live:
                self._round(live)
                live = self._retired(live)
        finally:
            if self.text_drafter is not None:
                self.text_drafter.start(0)  # it lives longer than its batch, which it need not keep
        return [row.generation() for row in self.rows]

    def _read_prompts(self, live: list[Row]) -> None:
        """Read all of every prompt but its last token, which the first round reads."""
        started = [perf_counter()]
        for reader in self._readers:
            reader.read([row.text[:-1] for row in self.rows])
            started.append(perf_counter())
        spend(
            live,
            draft=started[-1] - started[1],
            verify=started[1] - started[0],
            total=started[-1] - started[0],
        )

    def _round(self, live: list[Row]) -> None:
        started = perf_counter()
        self.told.usage.count(len(live), self.told.number or len(self.rows))
        feed = self._feed(live)
        uniforms = self._drawn(live)
        ids, valid, q, forwards = self._draft(live, feed, uniforms)  # 1. draft    x_1 .. x_K
        between = perf_counter()
        accept = torch.cat([uniforms[:, self.num : 2 * self.num], uniforms[:, -1:]], dim=1)
        (told,) = self._round_program(
            *self._memory, feed, ids, valid, q, accept
        )  # 2. verify, 3. accept
        answers = told.tolist()  # the one time per round that the host waits for the device
        verified = perf_counter()
        lengths = []
        for row in live:  # 4. commit   cut at the stop, count
            answer = answers[self.places[row.index]]
            length, own = answer[-2:]
            commit(
                row, answer[:length], answer[self.num : self.num + length], own, self.stop, forwards
            )
            lengths.append(length)
        if self.text_drafter is not None:
            self.text_drafter.keep(lengths)
        spend(
            live, draft=between - started, verify=verified - between, total=perf_counter() - started
        )

    def _feed(self, live: Sequence[Row]) -> Tensor:
        """Where every row stands [B, 5]; a row that has ended goes on writing into its own memory's
        beginning.
        """
        feed = [[0] * FEED for _ in range(self.batch)]
        for row in live:
            text = row.text
            begins = len(row.text) == row.prompt_length
            previous = text[-2] if len(text) > 1 else 0
            room = row.room(self.stop.max_new_tokens)
            feed[self.places[row.index]] = [previous, text[-1], len(text) - 1, room, int(begins)]
        return torch.tensor(feed, device=self.device)

    def _drawn(self, live: Sequence[Row]) -> Tensor:
        """Fresh numbers [B, 2K + 1]: K for drafting, K for accepting, one for the own token; [B, 0]
        without need.
        """
        if not self.random:
            return self._uniforms(0)
        drawn = torch.full((self.batch, 2 * self.num + 1), 0.5, dtype=torch.float64)
        for row in live:
            drawn[self.places[row.index]] = row.uniforms(2 * self.num + 1)
        return drawn.to(self.device)

    def _draft(
        self, live: Sequence[Row], feed: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        """Drafted ids [B, K], which of them count [B, K], q [B, K, V or 0], and the forwards that
        they took.
        """
        ids = self._ints(self.num)
        valid = torch.zeros(self.batch, self.num, dtype=torch.bool, device=self.device)
        room = max(row.room(self.stop.max_new_tokens) for row in live)
        if self.num and room > 0 and self._steps is not None:
            ids, q = self._steps(*self._draft_memory, feed, uniforms[:, : self.num])
            return ids, ~valid, q, self.num
        q = torch.ones(
            self.batch, self.num, self.parts.vocabulary if self.gives_q else 0, device=self.device
        )
        if not self.num or room < 1:
            return ids, valid, q, 0
        assert self.text_drafter is not None
        draft = self.text_drafter.propose(
            [row.text for row in live],
            min(self.num, room) if self.text_drafter.asks_room else self.num,
            vocabulary=self.parts.vocabulary,
            sampling=self.sampling,
            uniforms=uniforms[[self.places[row.index] for row in live], : self.num]
            if self.random
            else None,
            want_q=False,
        )
        count_notes(live, draft.notes, self.stop.max_new_tokens)
        for place, row in enumerate(live):
            ids[self.places[row.index], : draft.ids.shape[1]] = draft.ids[place]
            valid[self.places[row.index], : draft.ids.shape[1]] = draft.valid[place]
        return ids, valid, q, draft.forwards

    def _retired(self, live: list[Row]) -> list[Row]:
        """Say what has ended; the rows that go on."""
        stay = [place for place, row in enumerate(live) if row.finish is None]
        for _ in range(len(live) - len(stay)):
            self.told.progress(1)
        if 0 < len(stay) < len(live) and self.text_drafter is not None:
            self.text_drafter.select(stay)
        return [live[place] for place in stay]
