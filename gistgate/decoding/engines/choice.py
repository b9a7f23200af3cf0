"""Which engine runs a request: the one that was asked for, or the eager one with a sentence that says why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from gistgate.block import Sampling
from gistgate.decoding.admission import Start, Waiting
from gistgate.decoding.checks import models_of
from gistgate.decoding.guarding import Unguarded
from gistgate.decoding.parts import Parts
from gistgate.decoding.session import Session
from gistgate.drafters.base import Drafter
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError, is_out_of_memory
from gistgate.forward.reader import counts_slots, has_window
from gistgate.request.rows import Generation, Row
from gistgate.request.slots import Slots
from gistgate.request.stopping import Stop

if TYPE_CHECKING:
    from gistgate.decoding.engines.compiled import CompiledSession

ENGINES = ("eager", "compiled")

MOST_ROWS = 32
"""Largest batch that gets programs of its own; larger ones keep the device busy without."""


class Engine:
    """Runs the requests of one decoder."""

    def __init__(self, name: str) -> None:
        if name not in ENGINES:
            raise UserError(f"There is no engine '{name}'. Known: {', '.join(ENGINES)}.")
        self.name = name
        self.fell_back: set[str] = set()
        """Why requests ran on the eager engine although the compiled one was asked for."""
        self._failed: dict[tuple[object, ...], str] = {}

    def run(self, parts: Parts, rows: list[Row], stop: Stop, sampling: Sampling, slots: Slots) -> list[Generation]:
        """The answers of these rows, in their order.

        The eager engine gives the slots of finished rows to others. A program has a fixed batch whose rows begin
        together, so the compiled engine decodes each batch to its end before the next.
        """
        most, answers = slots.most(len(rows)), list[Generation]()
        while len(answers) < len(rows):
            batch = rows[len(answers) : len(answers) + most]
            session = self.programs(parts, batch, stop, sampling, slots) if self.name == "compiled" else None
            if session is None:
                waiting = Waiting(map(Start, rows[len(answers) :]), most)
                answers += [answer for answer, _ in Session(parts, waiting, stop, sampling, slots).run()]
            else:
                answers += session.run()
        return answers

    def programs(
        self, parts: Parts, rows: list[Row], stop: Stop, sampling: Sampling, slots: Slots
    ) -> CompiledSession | None:
        """A session of programs, or None where the eager engine has to run.

        The first session of a new shape builds them, which takes seconds or minutes.
        """
        from gistgate.decoding.engines.compiled import CompiledSession
        from gistgate.decoding.engines.program import UnsupportedError
        from gistgate.decoding.engines.store import forget

        shape = (len(rows), sampling, *parts.rule.known_by)
        why = self._failed.get(shape) or reason_against(parts, rows)
        if why is None:
            try:
                with torch.inference_mode(False), torch.no_grad():
                    return CompiledSession(parts, rows, stop, sampling, slots)
            except UnsupportedError as error:
                why = self._failed[shape] = str(error)  # trying again would cost as much and end alike
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                # The next request may find more.
                why = "there is not enough memory for it"
                forget(models_of(parts.target, parts.drafter))
        self._explain(why)
        return None

    def _explain(self, why: str) -> None:
        if why not in self.fell_back:
            self.fell_back.add(why)
            warnings.warn(f"This runs on the eager engine instead of the compiled one: {why}.", stacklevel=6)


def reason_against(parts: Parts, rows: Sequence[Row]) -> str | None:
    """Why these parts or this batch need the eager engine; None where nothing is known against the compiled one."""
    drafter = parts.drafter
    if len(rows) > MOST_ROWS:
        return f"{len(rows)} rows are more than the {MOST_ROWS} for which programs are built"
    if drafter is not None and (why := reason_against_drafter(drafter)) is not None:
        return f"the drafter {type(drafter).__name__} {why}"
    if parts.observer is not None:
        return "an observer looks at every block"
    if type(parts.guards) is not Unguarded:
        return "guards look at every block"
    if parts.context.needs_eager:
        return f"the rule '{parts.rule.id}' {parts.context.needs_eager}"
    models = models_of(parts.target, drafter)
    if len({model.device for model in models}) > 1:
        return "target and draft model are on different devices"
    return next((why for model in models if (why := reason_against_model(model)) is not None), None)


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
    from gistgate.decoding.engines.program import missing_compiler

    missing = missing_compiler(model.device)
    if missing is not None and model.device.type != "cuda":  # a CUDA graph helps without a compiler, too
        return missing
    return None
