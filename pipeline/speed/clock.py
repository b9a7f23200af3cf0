"""Something that continues prompts, with a clock on both sides: our decoder, and transformers' own.

Needs torch and transformers alone, so that it runs where the pipeline is not installed.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol
from zlib import crc32

import torch
import transformers
from transformers import (
    CompileConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StaticCache,
    StoppingCriteriaList,
    StopStringCriteria,
)

from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.optional.guards.loop import LoopGuard

Prompts = Sequence[list[int]]
Decode = Callable[[Prompts], tuple[list[list[int]], int | None]]
"""Prompt ids of every row -> (new ids of every row, target forwards; None where the library does not count them)."""
DEFAULTS = 0
"""In place of a K: assisted generation with the length, schedule and confidence threshold of transformers itself."""
Flexible = Callable[..., tuple[list[list[int]], int | None]]
"""The same, with further arguments for `generate`."""


class Models(Protocol):
    """What is needed of a pair."""

    @property
    def target(self) -> PreTrainedModel: ...

    @property
    def draft(self) -> PreTrainedModel: ...

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None: ...


@dataclass(frozen=True)
class Timed:
    """One decoded batch."""

    seconds: float
    """Wall-clock time, prefill included."""
    tokens: int
    """New tokens."""
    forwards: int | None
    """Target forwards; None where the library does not count them."""
    loops: bool = False
    """Whether an answer ends in a loop: loops are easy to draft, so their speed says nothing."""

    @classmethod
    def of(cls, seconds: float, answers: Sequence[list[int]], forwards: int | None) -> Timed:
        """What was decoded in so many seconds."""
        return cls(seconds, sum(map(len, answers)), forwards, any(map(LoopGuard().is_loop, answers)))


@dataclass(frozen=True)
class Contender:
    """Something that continues prompts."""

    name: str
    decode: Decode
    block: int
    """K; 0 without a draft."""
    is_baseline: bool = False
    builds: bool = False
    """Whether it builds programs for the shape of each batch, which has to be done before anything is timed."""
    also: tuple[str, ...] = ()
    """Methods that decode exactly like this and share its times."""

    def timed(self, prompts: Prompts) -> Timed:
        """Decode with a clock on both sides, the device idle at either end."""
        synchronise()
        started = perf_counter()
        answers, forwards = self.decode(prompts)
        synchronise()
        return Timed.of(perf_counter() - started, answers, forwards)


def ours(decoder: Decoder, request: dict[str, Any]) -> Decode:
    """Our decoder; a request that falls back to another engine is an error (`check_engine`)."""

    def decode(prompts: Prompts) -> tuple[list[list[int]], int | None]:
        # What draws numbers draws others for every prompt, and the same ones at every repeat.
        seeds = [crc32(repr(ids).encode()) for ids in prompts]
        answers = decoder.generate(prompts, **{"seeds": seeds, **request})
        check_engine(decoder)
        return [answer.ids for answer in answers], sum(answer.statistics.forwards for answer in answers)

    return decode


def check_engine(decoder: Decoder) -> None:
    """Seconds are those of the engine that was asked for.

    Raises:
        UserError: a request of this decoder ran on the eager engine instead.
    """
    if why := sorted(decoder.engine.fell_back):
        raise UserError(
            f"This cannot be timed on the {decoder.engine.name} engine: {why[0]}. Time it on the eager one."
        )


def theirs(pair: Models, request: dict[str, Any], block: int | None = None, **generation: Any) -> Flexible:
    """transformers' `generate` with left padding; assisted at K = `block` (or `DEFAULTS`) where one is given.

    `generation` goes to `generate`, such as `prompt_lookup_num_tokens`. What a model's own `generation_config` asks
    for, such as a repetition penalty, is left out: our decoder does not read it, and other texts have another speed.
    """
    ends = list(request.get("eos_ids", ()))
    pad = 0 if pair.tokenizer is None else pair.tokenizer.pad_token_id
    if request.get("stops"):  # as a criterion: `stop_strings` would reach the draft without its tokenizer
        stop = StopStringCriteria(pair.tokenizer, list(request["stops"]))
        generation["stopping_criteria"] = StoppingCriteriaList([stop])

    def decode(prompts: Prompts, **cache: Any) -> tuple[list[list[int]], int | None]:
        assistant = {} if block is None else {"assistant_model": drafting(pair.draft, block)}
        width = max(map(len, prompts))
        rows = [[pad] * (width - len(ids)) + ids for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        device = pair.target.device
        with torch.inference_mode(), neutral(pair.target):
            out = pair.target.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                do_sample=False,
                max_new_tokens=request["max_new_tokens"],
                eos_token_id=ends or None,
                pad_token_id=pad,
                **assistant,
                **generation,
                **cache,
            )
        return [row[: written(row, ends, pad)] for row in out[:, width:].tolist()], None

    return decode


@contextmanager
def neutral(model: PreTrainedModel) -> Iterator[None]:
    """Without the model's own defaults for `generate`."""
    usual = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = usual


def written(answer: list[int], ends: Collection[int], pad: int) -> int:
    """Tokens of an answer up to its end, without the padding behind it."""
    for place, token in enumerate(answer):
        if token in ends or token == pad:
            return place + (token in ends)
    return len(answer)


def compiled(decode: Flexible, pair: Models, slots: int) -> Decode:
    """transformers' compiled step on a static cache of one size, on a CPU as well."""
    everywhere = CompileConfig()
    everywhere._compile_all_devices = True
    caches: dict[int, StaticCache] = {}

    def run(prompts: Prompts) -> tuple[list[list[int]], int | None]:
        cache = caches.setdefault(len(prompts), StaticCache(pair.target.config, max_cache_len=slots))
        with torch.inference_mode():
            cache.reset()
        return decode(prompts, past_key_values=cache, compile_config=everywhere)

    return run


def drafting(draft: PreTrainedModel, block: int) -> PreTrainedModel:
    """The draft, told to propose `block` tokens every time, or left to the defaults of transformers (`DEFAULTS`)."""
    # These three are read from the draft's own configuration; left alone they stop drafts early.
    names = ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
    own = GenerationConfig()
    if block != DEFAULTS:
        for name, value in zip(names, (block, "constant", 0.0), strict=True):
            setattr(own, name, value)
    draft.generation_config = own
    return draft


def synchronise() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def machine() -> dict[str, Any]:
    """Where the seconds were measured."""
    return {
        "processor": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
