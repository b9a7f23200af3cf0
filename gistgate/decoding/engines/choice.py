"""Which engine runs a request: the one that was asked for, or the eager one with a sentence that says why."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from gistgate.block import Sampling
from gistgate.decoding.checks import models_of
from gistgate.decoding.guarding import Unguarded
from gistgate.decoding.parts import Parts
from gistgate.decoding.session import Session
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.forward.reader import has_window
from gistgate.request.rows import Row
from gistgate.request.stopping import Stop

if TYPE_CHECKING:
    from gistgate.decoding.engines.compiled import CompiledSession

ENGINES = ("eager", "compiled")

MOST_ROWS = 32
"""Largest batch that gets programs of its own; larger ones keep the device busy without."""


class Engine:
    """Opens the sessions of one decoder."""

    def __init__(self, name: str) -> None:
        if name not in ENGINES:
            raise UserError(f"There is no engine '{name}'. Known: {', '.join(ENGINES)}.")
        self.name = name
        self._said: set[str] = set()
        self._failed: dict[tuple[int, Sampling], str] = {}

    def session(self, parts: Parts, rows: list[Row], stop: Stop, sampling: Sampling) -> Session | CompiledSession:
        """A session for these rows; the first of a new shape builds its programs, which takes seconds or minutes."""
        if self.name == "compiled" and rows:
            from gistgate.decoding.engines.compiled import CompiledSession
            from gistgate.decoding.engines.program import UnsupportedError

            shape = (len(rows), sampling)
            why = self._failed.get(shape) or reason_against(parts, rows)
            if why is None:
                try:
                    with torch.inference_mode(False), torch.no_grad():
                        return CompiledSession(parts, rows, stop, sampling)
                except UnsupportedError as error:
                    why = self._failed[shape] = str(error)  # trying again would cost as much and end alike
            self._explain(why)
        return Session(parts, rows, stop, sampling)

    def _explain(self, why: str) -> None:
        if why not in self._said:
            self._said.add(why)
            warnings.warn(f"This runs on the eager engine instead of the compiled one: {why}.", stacklevel=5)


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
    return next((why for model in models if (why := reason_against_model(model)) is not None), None)


def reason_against_drafter(drafter: Drafter) -> str | None:
    """Why a drafter needs the eager engine, as the end of a sentence about it."""
    if drafter.stops_early:
        return "ends its drafts at a length that is not known beforehand"
    if drafter.nodes:
        return "returns trees"
    if drafter.learns or (drafter.gives_q and drafter.model is None):
        return "looks at every block"
    return None


def reason_against_model(model: PreTrainedModel) -> str | None:
    """Why a model needs the eager engine."""
    name = type(model).__name__
    if has_window(model):
        return f"{name} attends to a sliding window"
    if not getattr(model, "_supports_attention_backend", False):
        return f"{name} does not let its attention be exchanged"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return f"{name} is spread over several devices"
    from gistgate.decoding.engines.program import missing_compiler

    missing = missing_compiler(model.device)
    if missing is not None and model.device.type != "cuda":  # a CUDA graph helps without a compiler, too
        return missing
    return None
