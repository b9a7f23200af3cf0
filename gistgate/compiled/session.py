"""A session whose rounds are replays: the host says where each row stands, and hears in one message
what came of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.compiled.memory import forget, program_of, rounded, store_of
from gistgate.compiled.program import Program, UnsupportedError, missing_compiler
from gistgate.compiled.rounds import (
    FEED,
    DraftSteps,
    PromptReader,
    rounded_up,
    stretch_of,
    verify_round,
)
from gistgate.core.architecture import counts_slots, has_window
from gistgate.core.decoder import Engine
from gistgate.core.drafter import Drafter
from gistgate.core.parts import DecoderParts, Terms
from gistgate.core.reader import Reader
from gistgate.core.request import Generation, Row, spend
from gistgate.core.session import Queue, QueuedRow, Session, commit
from gistgate.core.utils import is_out_of_memory
from gistgate.drafters.model import ModelDrafter

MOST_ROWS = 32
"""Largest batch that gets programs of its own; larger ones keep the device busy without."""


class CompiledEngine(Engine):
    """Decodes each batch to its end with programs; the eager engine where that cannot be."""

    name = "compiled"

    def __init__(self) -> None:
        super().__init__()
        self._failed: dict[tuple[object, ...], str] = {}  # shapes that cannot be programs, and why

    def run(self, terms: Terms, rows: list[Row]) -> list[Generation]:
        answers = list[Generation]()
        while len(answers) < len(rows):
            waiting = rows[len(answers) :]
            session = self._session_or_reason(terms, waiting[: terms.slots.most(len(rows))])
            if isinstance(session, str):
                if session not in self.fell_back:  # it is said once
                    self.fell_back.add(session)
                    warnings.warn(
                        f"This runs on the eager engine instead of the compiled one: {session}.",
                        stacklevel=4,
                    )
                return answers + super().run(terms, waiting)
            answers += [answer for answer, _ in session.run()]
        return answers

    def _session_or_reason(self, terms: Terms, rows: list[Row]) -> CompiledSession | str:
        """A session of programs, or why the eager engine has to run."""
        parts = terms.parts
        shape = (len(rows), terms.sampling, *parts.rule.known_by)
        reason = self._failed.get(shape) or next(reasons_against(parts, len(rows)), None)
        if reason is not None:
            return reason
        try:
            with torch.inference_mode(False), torch.no_grad():
                return CompiledSession(terms, rows)
        except UnsupportedError as error:
            self._failed[shape] = str(error)  # trying again would cost as much and end alike
            return str(error)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            forget(parts.models)
            return "there is not enough memory for it"  # the next request may find more


def reasons_against(parts: DecoderParts, num_rows: int) -> Iterator[str]:
    """Why these parts or this batch need the eager engine; each reason is looked for when it is
    asked for.
    """
    if num_rows > MOST_ROWS:
        yield f"{num_rows} rows are more than the {MOST_ROWS} for which programs are built"
    if parts.drafter is not None:
        yield from reasons_against_drafter(parts.drafter)
    if parts.reader is not Reader:
        yield "the target keeps states besides keys and values"
    if parts.observers:
        yield "an observer looks at every block"
    if parts.guards.guards:
        yield "guards look at every block"
    if parts.context.needs_eager:
        yield f"the rule '{parts.rule.id}' {parts.context.needs_eager}"
    if len({model.device for model in parts.models}) > 1:
        yield "target and draft model are on different devices"
    for model in parts.models:
        yield from reasons_against_model(model)


def reasons_against_drafter(drafter: Drafter) -> Iterator[str]:
    """Why a drafter needs the eager engine."""
    name = f"the drafter {type(drafter).__name__}"
    has_model = drafter.model is not None
    if drafter.stopping is not None:
        yield f"{name} ends its drafts at a length that is not known beforehand"
    if drafter.nodes:
        yield f"{name} returns trees"
    if has_model and type(drafter).propose is not ModelDrafter.propose:
        yield f"{name} asks its model in a way of its own"
    if type(drafter).observe is not Drafter.observe or (drafter.gives_q and not has_model):
        yield f"{name} looks at every block"


def reasons_against_model(model: PreTrainedModel) -> Iterator[str]:
    """Why a model needs the eager engine."""
    name = type(model).__name__
    if has_window(model):
        yield f"{name} attends to a sliding window"
    if counts_slots(model):
        yield f"{name} measures distances in slots of its cache"
    if not getattr(model, "_supports_attention_backend", False):
        yield f"{name} does not let its attention be exchanged"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        yield f"{name} is spread over several devices"
    compiler = missing_compiler(model.device)
    if compiler is not None and model.device.type != "cuda":  # a CUDA graph helps without one
        yield compiler


class CompiledSession(Session):
    """One batch through programs of fixed shape; rows that end keep their place until all have
    ended.
    """

    def __init__(self, terms: Terms, rows: list[Row]) -> None:
        super().__init__(terms, Queue(map(QueuedRow, rows), len(rows)))
        parts = self.parts
        sampling = self.sampling
        self.places = {row.index: place for place, row in enumerate(rows)}
        self.num = parts.block
        self.batch = 1 << (len(rows) - 1).bit_length()
        longest = rounded_up(max(len(row.text) for row in rows), stretch_of(parts.target))
        # Room for the prompt in whole stretches, the answer, a block that runs over its end, and
        # the last slot.
        self.size = rounded(longest + self.stop.max_new_tokens + self.num + 3)
        draft_model = None if parts.drafter is None or not self.num else parts.drafter.model
        if draft_model is not None:
            self.drafter = Drafter()  # programs draft in place of the one with the model
        self.random = not sampling.greedy or parts.random
        gives_q = draft_model is not None and (parts.wants_q or not sampling.greedy)
        self.q_width = parts.vocabulary if gives_q else 0
        for part in (parts.gate, parts.rule):
            if hasattr(part, "to"):  # tracing must not be what moves it
                part.to(self.device)
        self._memory = self._cleared(parts.target)
        self._round_program = self._verify_round()  # what cannot be a program is found here mostly
        self._readers = {"verify": PromptReader(parts.target, self._memory)}
        self._steps: Program | None = None
        if draft_model is not None:
            self._draft_memory = self._cleared(draft_model)
            self._readers["draft"] = PromptReader(draft_model, self._draft_memory)
            steps = DraftSteps(draft_model, parts.vocabulary, sampling, gives_q, self.random)
            self._steps = steps.program(self.num, self._draft_memory)

    def _cleared(self, model: PreTrainedModel) -> list[Tensor]:
        memory = store_of(model).memory(model, self.batch, self.size)
        # What an earlier request left weighs nothing, but nothing times NaN is NaN.
        for half in memory:
            half.zero_()
        return memory

    def _verify_round(self) -> Program:
        parts = self.parts
        ids = (*sorted(self.stop.eos_ids), *parts.protocol_ids)
        protocol = torch.tensor(ids, dtype=torch.long, device=self.device)
        function = partial(verify_round, parts, self.sampling, protocol)
        gate = parts.gate if parts.judged else None
        about = (parts.vocabulary, self.sampling, self.q_width, *parts.rule.known_by, gate, ids)
        inputs = [self._feed(), *self._undrafted(), self._accepting(self._drawn())]
        return program_of(
            parts.target, ("verify", self.num, *about), function, self._memory, inputs
        )

    def _read_beforehand(self, queued: Sequence[QueuedRow]) -> None:
        """Read all of every prompt but its last token, which the first round reads."""
        rows = [entry.row for entry in queued]
        self.drafter.start(len(rows))
        texts = [row.text[:-1] for row in rows]
        for part, reader in self._readers.items() if any(texts) else ():
            started = perf_counter()
            reader.read(texts)
            seconds = perf_counter() - started
            spend(rows, **{part: seconds, "total": seconds})

    def _select(self, staying: Sequence[int]) -> None:
        self.drafter.select(staying)

    def _round(self) -> None:
        started = perf_counter()
        self.slots.usage.count(len(self.rows), self.slots.number or self.queue.slots)
        feed = self._feed()
        uniforms = self._drawn()
        *drafted, forwards = self._drafted(feed, uniforms)  # 1. draft    x_1 .. x_K
        between = perf_counter()
        inputs = (feed, *drafted, self._accepting(uniforms))
        (columns,) = self._round_program(*self._memory, *inputs)  # 2. verify, 3. accept
        answers = columns.tolist()  # the one time per round that the host waits for the device
        verified = perf_counter()
        lengths = []
        for place, row in zip(self._live, self.rows):  # 4. commit   cut at the stop, count
            *answer, length, own_id = answers[place]
            reasons = answer[self.num : self.num + length]
            commit(row, answer[:length], reasons, own_id, self.stop, forwards)
            lengths.append(length)
        self.drafter.keep(lengths)
        ended = perf_counter()
        spend(self.rows, draft=between - started, verify=verified - between, total=ended - started)
        self._retire()

    @property
    def _live(self) -> list[int]:
        """The places of the rows that have not ended."""
        return [self.places[row.index] for row in self.rows]

    def _feed(self) -> Tensor:
        """Where every row stands [B, 5]; a row that has ended goes on writing into its own memory's
        beginning.
        """
        feed = [[0] * FEED for _ in range(self.batch)]
        for place, row in zip(self._live, self.rows):
            previous, last = [0, *row.text[-2:]][-2:]
            at = len(row.text) - 1
            begins = int(len(row.text) == row.prompt_length)
            room = row.room(self.stop.max_new_tokens)
            feed[place] = [previous, last, at, room, begins]
        return torch.tensor(feed, device=self.device)

    def _drawn(self) -> Tensor:
        """Fresh numbers [B, 2K + 1]: K for drafting, K for accepting, one for the own token; [B, 0]
        without need.
        """
        width = 2 * self.num + 1 if self.random else 0
        drawn = torch.full((self.batch, width), 0.5, dtype=torch.float64)
        uniforms = self._uniforms() if self.rows else None
        if uniforms is not None:
            drawn[self._live] = uniforms
        return drawn.to(self.device)

    def _accepting(self, uniforms: Tensor) -> Tensor:
        """Those for accepting and for the own token [B, K + 1]."""
        return torch.cat([uniforms[:, self.num : 2 * self.num], uniforms[:, -1:]], 1)

    def _undrafted(self) -> tuple[Tensor, Tensor, Tensor]:
        """A draft of no token: ids [B, K], which of them count [B, K], and q [B, K, V or 0]."""
        ids = torch.zeros(self.batch, self.num, dtype=torch.long, device=self.device)
        return ids, ids.bool(), ids.new_ones(*ids.shape, self.q_width, dtype=torch.float32)

    def _drafted(self, feed: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """Drafted ids, which of them count, q, and the forwards that they took."""
        has_room = any(row.room(self.stop.max_new_tokens) > 0 for row in self.rows)
        if has_room and self._steps is not None:
            ids, q = self._steps(*self._draft_memory, feed, uniforms[:, : self.num])
            return ids, torch.ones_like(ids, dtype=torch.bool), q, self.num
        ids, valid, q = self._undrafted()
        places = self._live
        draft = self._draft(uniforms[places] if self.random else None)
        ids[places, : draft.width] = draft.ids
        valid[places, : draft.width] = draft.valid
        return ids, valid, q, draft.forwards
