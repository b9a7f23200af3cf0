"""The parts of a round alone: one forward of some new tokens, K steps of a draft, on either engine.

Axis letters: B rows (one), N new tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.engines.drafting import draft_program
from gistgate.decoding.engines.program import Program
from gistgate.decoding.engines.rounds import DraftToken
from gistgate.decoding.engines.slots import attending_to_slots, forward
from gistgate.decoding.engines.store import rounded, store_of
from gistgate.errors import UserError
from gistgate.request.rows import Row
from gistgate.request.slots import Slots
from gistgate.request.stopping import Stop
from pipeline.speed.clock import synchronise

CONTEXT = 128
"""Tokens that have been read before, in every measurement of a part."""


@dataclass(frozen=True)
class Forward:
    """One forward of `tokens` new tokens, and the argmax of each row."""

    model: PreTrainedModel
    tokens: int

    def eager(self, room: int) -> Callable[[], object]:
        """A call that leaves the cache as it found it."""
        cache = read(self.model, room)
        ids = torch.ones(1, self.tokens, dtype=torch.long, device=self.model.device)

        def call() -> Tensor:
            z = self.model(ids, past_key_values=cache, use_cache=True).logits
            cache.crop(room - cache.get_seq_length())
            chosen: Tensor = z.argmax(-1)
            return chosen

        return call

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory M, ids [B, N], number of the first [B, 1] -> argmax [B, N]."""
        *memory, ids, first = tensors
        positions = first + torch.arange(self.tokens, device=ids.device)
        z = forward(self.model, memory, ids, positions, self.tokens)
        return (z.argmax(-1),)

    def compiled(self, room: int) -> Callable[[], object]:
        """A replay of the program."""
        inputs = [ints(self.model, self.tokens), ints(self.model, 1, room)]
        program, memory = built(self.model, ("part", self.tokens), self, room, inputs)
        return lambda: program(*memory, *inputs)


@dataclass(frozen=True)
class DraftStep:
    """`num` greedy steps of a draft, one after the other."""

    model: PreTrainedModel
    num: int

    def eager(self, room: int) -> Callable[[], object]:
        """A call that leaves the cache as it found it."""
        cache = read(self.model, room)

        def call() -> Tensor:
            ids = ints(self.model, 1)
            for _ in range(self.num):
                ids = self.model(ids, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            cache.crop(room - cache.get_seq_length())
            return ids

        return call

    def compiled(self, room: int) -> Callable[[], object]:
        """A replay of the program."""
        token = DraftToken(self.model, self.model.config.vocab_size, Sampling(), False)
        memory = memory_of(self.model, room)
        with torch.inference_mode(False), torch.no_grad():
            program = draft_program(token, self.num, memory, 0)
        feed = torch.tensor([[1, 1, room, self.num, 0]], device=self.model.device)
        none = torch.zeros(1, 0, dtype=torch.float64, device=self.model.device)
        return lambda: program(*memory, feed, none)


@dataclass(frozen=True)
class Verification:
    """A decoder's whole verification: forward, gate, rule, the own token."""

    decoder: Decoder
    request: dict[str, Any]

    def compiled(self, room: int) -> Callable[[], object]:
        """A replay of the decoder's own program."""
        row, num = Row(0, [1] * (room + 1), room + 1, 0), self.decoder.block
        stop = Stop(self.request["max_new_tokens"], frozenset(self.request["eos_ids"]), (), None)
        session = self.decoder.engine.programs(self.decoder.parts, [row], stop, Sampling(), Slots())
        if session is None:
            raise UserError(f"The rule '{self.decoder.rule.id}' runs on the eager engine. Leave it out.")
        device = self.decoder.target.device
        feed = session._feed([row])
        valid = torch.ones(1, num, dtype=torch.bool, device=device)
        width = self.decoder.vocabulary if session._has_q else 0
        q = torch.full((1, num, width), 1 / max(width, 1), device=device)
        inputs = [feed, ints(self.decoder.target, num), valid, q, session._uniforms(num + 1)]
        return lambda: session._round_program(*session._memory, *inputs)


class Part(Protocol):
    """Something whose seconds are measured."""

    def compiled(self, room: int) -> Callable[[], object]:
        """A call behind `room` tokens, as a program."""
        ...


@torch.inference_mode()
def seconds_of(part: Part, engine: str, times: int, room: int = CONTEXT) -> float:
    """Median seconds of a part behind `room` tokens, the device idle on both sides of each call."""
    call = warm(part, engine, room)
    return median(once(call) for _ in range(times))


@torch.inference_mode()
def warm(part: Part, engine: str, room: int = CONTEXT) -> Callable[[], object]:
    """The call of a part, ready to be timed."""
    call: Callable[[], object] = part.compiled(room) if engine == "compiled" else part.eager(room)  # type: ignore[attr-defined]
    for _ in range(5):
        call()
    return call


@torch.inference_mode()
def once(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    synchronise()
    started = perf_counter()
    call()
    synchronise()
    return perf_counter() - started


def read(model: PreTrainedModel, room: int) -> DynamicCache:
    """A cache with `room` tokens."""
    cache = DynamicCache(config=model.config)
    model(ints(model, room, 1), past_key_values=cache, use_cache=True)
    return cache


def ints(model: PreTrainedModel, width: int, value: int = 1) -> Tensor:
    """[1, width] ids on the model's device."""
    return torch.full((1, width), value, dtype=torch.long, device=model.device)


def built(
    model: PreTrainedModel,
    name: tuple[object, ...],
    function: Callable[..., tuple[Tensor, ...]],
    room: int,
    inputs: list[Tensor],
) -> tuple[Program, list[Tensor]]:
    """A program for one row with room for twice as many tokens, and its memory."""
    memory = memory_of(model, room)
    with torch.inference_mode(False), torch.no_grad():
        fresh = [tensor.clone() for tensor in inputs]
        with attending_to_slots(model):
            return store_of(model).program((1, rounded(2 * room), *name), function, memory, fresh), memory


def memory_of(model: PreTrainedModel, room: int) -> list[Tensor]:
    """Memory for one row with room for twice as many tokens."""
    with torch.inference_mode(False), torch.no_grad():
        return store_of(model).memory(model, 1, rounded(2 * room))


def bandwidth(model: PreTrainedModel, step: float) -> dict[str, float]:
    """On a GPU: the share of its measured memory bandwidth that reading all weights once per step would use."""
    if not torch.cuda.is_available():
        return {}
    weights = read_per_step(model)
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    sink = torch.empty_like(source)
    copied = seconds_of(Copy(source, sink), "compiled", 20)
    peak = 2 * source.numel() * 4 / copied
    return {"weights_gb": weights / 1e9, "copy_gb_per_s": peak / 1e9, "bandwidth_share": weights / step / peak}


def read_per_step(model: PreTrainedModel) -> int:
    """Bytes of weights that a step reads: all but the input embedding, of which it looks up one row.

    Where the output layer shares that embedding's weight, a step reads all of it.
    """
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    table, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    tied = output is not None and output.weight.data_ptr() == table.data_ptr()
    return weights if tied else weights - table.numel() * table.element_size()


@dataclass(frozen=True)
class Copy:
    """A copy in the device's memory."""

    source: Tensor
    sink: Tensor

    def compiled(self, room: int) -> Callable[[], object]:
        """The copy; `room` means nothing to it."""
        return lambda: self.sink.copy_(self.source)
