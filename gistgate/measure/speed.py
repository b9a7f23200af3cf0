"""Decoding with a clock on both sides: ours and transformers' own, batch by batch and in an order
that rotates, so that a machine that slows down slows all of them. Loops are easy to draft: a batch
that any contender answers with a loop is dropped for all of them, unless every batch loops."""

import platform
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any
from zlib import crc32

import torch
import transformers
from tqdm import tqdm
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    StaticCache,
    StoppingCriteriaList,
    StopStringCriteria,
)

from gistgate.core.decoder import Decoder
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Statistics, total
from gistgate.core.utils import UserError, first_line, replaced

BATCHES = (1, 4, 16, 32)  # batch sizes at which `pays_up_to` measures, in rows
MEASURED = 64  # longest answer of such a measurement, in tokens
KS = (
    2,
    3,
    4,
    6,
    8,
    10,
)  # block lengths of transformers' speculation; its prompt lookup proposes 10 by itself
# in place of a K: assisted generation with the length, schedule and threshold of transformers
# itself
DEFAULTS = 0
# a K that takes so many times the least time is not tried any further: prompts decide less than K
# does
LOST = 1.25
ASSISTED = "transformers_assisted"
LOOKUP = "transformers_lookup"

Prompts = Sequence[Sequence[int]]
Answers = tuple[list[list[int]], Statistics | None]
"""New ids of every row, and what was counted about all rows; None where the library counts
nothing.
"""
Decode = Callable[..., Answers]
"""Prompt ids of every row -> answers; those of transformers take further arguments for
`generate`.
"""


@dataclass(frozen=True)
class Timed:
    """One decoded batch."""

    seconds: float  # wall-clock time, prefill included
    answers: list[list[int]]
    statistics: Statistics | None = None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))

    @property
    def loops(self) -> bool:
        """Whether an answer ends in a loop."""
        return any(map(LoopGuard().is_loop, self.answers))


@dataclass(frozen=True)
class Contender:
    """Something that continues prompts."""

    name: str
    decode: Decode
    block: int = 0  # K; 0 without a draft
    is_baseline: bool = False
    # whether it builds programs for the shape of each batch, which is done before the clock runs
    builds: bool = False
    also: tuple[str, ...] = ()  # methods that decode exactly like this and share its times

    def timed(self, prompts: Prompts) -> Timed:
        """Decode with a clock on both sides, the device idle at either end."""
        synchronise()
        started = perf_counter()
        answers, statistics = self.decode(prompts)
        synchronise()
        return Timed(perf_counter() - started, answers, statistics)


def synchronise() -> None:
    """Wait until a GPU has finished."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def contender(
    name: str, decoder: Decoder, request: dict[str, Any], *, any_engine: bool = False, **more: Any
) -> Contender:
    """Our decoder; without `any_engine` a request that falls back to another engine is an error."""

    def decode(prompts: Prompts) -> Answers:
        # What draws numbers draws others for every prompt, and the same ones at every repeat.
        seeds = [crc32(repr(list(ids)).encode()) for ids in prompts]
        answers = decoder.generate(prompts, **{"seeds": seeds, **request})
        if not any_engine:
            check_engine(decoder)
        return [answer.ids for answer in answers], total([answer.statistics for answer in answers])

    return Contender(name, decode, decoder.block, builds=decoder.engine.name == "compiled", **more)


def check_engine(decoder: Decoder) -> None:
    """Seconds are those of the engine that was asked for."""
    if why := sorted(decoder.engine.fell_back):
        raise UserError(
            f"This cannot be timed on the {decoder.engine.name} engine: {why[0]}. Take the eager"
            " one."
        )


def theirs(
    pair: Any, request: dict[str, Any], block: int | None = None, **generation: Any
) -> Decode:
    """transformers' `generate` with left padding; assisted at K = `block` (or `DEFAULTS`) where one
    is given.
    """
    ends = list(request.get("eos_ids", ()))
    pad = 0 if pair.tokenizer is None else pair.tokenizer.pad_token_id
    if request.get(
        "stops"
    ):  # as a criterion: `stop_strings` would reach the draft without its tokenizer
        stop = StopStringCriteria(pair.tokenizer, list(request["stops"]))
        generation["stopping_criteria"] = StoppingCriteriaList([stop])

    def decode(prompts: Prompts, **cache: Any) -> Answers:
        assistant = {} if block is None else {"assistant_model": drafting(pair.draft, block)}
        width = max(map(len, prompts))
        device = pair.target.device
        rows = [[pad] * (width - len(ids)) + list(ids) for ids in prompts]
        mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
        # Our decoder reads no configuration of a model (a repetition penalty), and other texts have
        # another speed.
        with torch.inference_mode(), replaced(pair.target, "generation_config", GenerationConfig()):
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


def written(answer: list[int], ends: Collection[int], pad: int) -> int:
    """Tokens of an answer up to its end, without the padding behind it."""
    for place, token in enumerate(answer):
        if token in ends or token == pad:
            return place + (token in ends)
    return len(answer)


def static(pair: Any, request: dict[str, Any], slots: int) -> Contender:
    """transformers' compiled step on a static cache of one size, on a CPU as well: not every
    machine can have it.
    """
    everywhere = transformers.CompileConfig()
    everywhere._compile_all_devices = True
    caches: dict[int, StaticCache] = {}
    decode = theirs(pair, request)

    def run(prompts: Prompts) -> Answers:
        cache = caches.setdefault(
            len(prompts), StaticCache(pair.target.config, max_cache_len=slots)
        )
        with torch.inference_mode():
            cache.reset()
        return decode(prompts, past_key_values=cache, compile_config=everywhere)

    return Contender("transformers_static", run, 0, True)


Lap = dict[str, list[Timed]]  # every run of one batch, by the name of the contender
Times = dict[str, dict[str, Any]]
"""By name: `block`; `seconds` (of every repeat), `tokens` and `target_forwards` of each batch; how
many had `loops`.
"""


def race(
    field: Sequence[Contender],
    batches: Sequence[Prompts],
    repeats: int = 1,
    title: str | None = None,
) -> list[Lap]:
    """Time every contender on every batch; the first batch warms up. `title` shows a progress
    bar.
    """
    for one in field:  # the first call of everything pays for what later calls find done
        one.decode(batches[0])
    shown = tqdm(batches, desc=title, unit="batch", disable=title is None)
    return [lap(field, batch, range(place, place + repeats)) for place, batch in enumerate(shown)]


def lap(field: Sequence[Contender], batch: Prompts, turns: Sequence[int]) -> Lap:
    """One batch decoded by all contenders, once for each turn; a turn says who begins."""
    for one in field:
        if one.builds:  # the batch's shape may need new programs
            one.decode(batch)
    runs: Lap = {one.name: [] for one in field}
    for turn in turns:
        first = turn % len(field)
        for one in [*field[first:], *field[:first]]:
            runs[one.name].append(one.timed(batch))
    return runs


def without_loops(laps: Sequence[Lap]) -> tuple[list[Lap], int]:
    """The laps without a loop, or all laps where every one loops; and how many loop."""
    sound = [one for one in laps if not any(run.loops for runs in one.values() for run in runs)]
    return sound or list(laps), len(laps) - len(sound)


def times_of(field: Sequence[Contender], laps: Sequence[Lap]) -> Times:
    """What a race measured, as plain JSON."""
    kept, loops = without_loops(laps)
    return {
        one.name: {
            "block": one.block,
            "seconds": [[run.seconds for run in each[one.name]] for each in kept],
            "tokens": [each[one.name][0].tokens for each in kept],
            "target_forwards": [
                None if (counted := each[one.name][0].statistics) is None else counted.forwards
                for each in kept
            ],
            "loops": loops,
        }
        for one in field
    }


def by_kind(field: Sequence[Contender], times: Times) -> dict[str, Times]:
    """Times of baselines and of methods; a method that decodes exactly like a contender shares its
    times.
    """
    methods = {
        name: times[c.name]
        for c in field
        for name in (*([] if c.is_baseline else [c.name]), *c.also)
    }
    return {
        "baselines": {c.name: times[c.name] for c in field if c.is_baseline},
        "methods": methods,
    }


def working(field: Sequence[Contender], batch: Prompts) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that decode this batch, and the reason of each that cannot: that is a result,
    and not the end.
    """
    able = []
    failed = {}
    for one in field:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                one.decode(batch)
        except Exception as error:  # libraries fail in many ways
            failed[one.name] = f"{type(error).__name__}: {first_line(error)}"
        else:
            able.append(one)
    return able, failed


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


def side_by_side(
    decoder: Decoder, prompts: Prompts, **request: Any
) -> tuple[dict[str, tuple[float, Statistics]], int]:
    """Seconds and counts of plain, strict and `decoder` on all prompts, row by row, and how many
    prompts loop.
    """
    ways = {"plain": decoder.plain(), "strict": decoder.strict(), decoder.rule.id: decoder}
    field = [contender(name, one, request, any_engine=True) for name, one in ways.items()]
    laps, loops = without_loops(race(field, [[ids] for ids in prompts]))
    runs = {name: [each[name][0] for each in laps] for name in ways}
    return {
        name: (
            sum(run.seconds for run in some),
            total([run.statistics or Statistics() for run in some]),
        )
        for name, some in runs.items()
    }, loops


def pays_up_to(
    decoder: Decoder, prompts: Prompts, sizes: Sequence[int] = BATCHES, **request: Any
) -> int:
    """Largest batch of `sizes` up to which speculation is faster than plain decoding; 0: it never
    is.

    For `Decoder(speculate_up_to=...)`; measured before serving, because texts must not depend on a
    busy machine.
    """
    plain = decoder.plain()
    most = 0
    for size in sorted(sizes):
        batch = [prompts[place % len(prompts)] for place in range(size)]
        if rate(decoder, batch, request) <= rate(plain, batch, request):
            break
        most = size
    return most


def settle_batches(
    decoder: Decoder, prompts: Prompts, *, max_new_tokens: int, **request: Any
) -> int:
    """Measure on the first batch up to how many of its rows speculation pays, and let the decoder
    keep to it.
    """
    sizes = [*(size for size in BATCHES if size < len(prompts)), len(prompts)]
    most = pays_up_to(
        decoder, prompts, sizes, max_new_tokens=min(max_new_tokens, MEASURED), **request
    )
    decoder.speculate_up_to = most
    return most


def rate(decoder: Decoder, batch: Prompts, request: dict[str, Any]) -> float:
    """New tokens per second, the better of two runs behind one that warms up."""
    one = contender("", decoder, request, any_engine=True)
    one.decode(batch)
    return max(run.tokens / run.seconds for run in (one.timed(batch), one.timed(batch)))


def drafting(draft: PreTrainedModel, block: int) -> PreTrainedModel:
    """The draft, told to propose `block` tokens every time, or left to the defaults of transformers
    (`DEFAULTS`).
    """
    # These three are read from the draft's own configuration; left alone they stop drafts early.
    names = (
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "assistant_confidence_threshold",
    )
    draft.generation_config = GenerationConfig()
    if block != DEFAULTS:
        for name, value in zip(names, (block, "constant", 0.0), strict=True):
            setattr(draft.generation_config, name, value)
    return draft


def speculation(pair: Any, request: dict[str, Any]) -> dict[str, list[Contender]]:
    """Assisted generation (with a draft model) and prompt lookup of transformers, each at every
    K.
    """
    found = {
        LOOKUP: [
            Contender(LOOKUP, theirs(pair, request, prompt_lookup_num_tokens=k), k, True)
            for k in KS
        ]
    }
    if pair.draft is not None:
        found[ASSISTED] = [
            Contender(ASSISTED, theirs(pair, request, k), k, True) for k in (*KS, DEFAULTS)
        ]
    return found


def chosen(
    pair: Any, request: dict[str, Any], development: Sequence[Sequence[int]]
) -> tuple[list[Contender], dict[str, str]]:
    """transformers' speculation, each at the K that is fastest on development prompts, and by name
    what cannot run.
    """
    able = []
    failed = {}
    for name, variants in speculation(pair, request).items():
        try:
            able.append(fastest(variants, development))
        # a draft whose vocabulary is padded otherwise, for instance; others can be timed
        except UserError as error:
            failed[name] = str(error)
    return able, failed


def fastest(variants: Sequence[Contender], development: Sequence[Sequence[int]]) -> Contender:
    """The variant that decodes these development prompts in the least time, all of them side by
    side.
    """
    numbered = [replace(one, name=str(place)) for place, one in enumerate(variants)]
    left, failed = working(numbered, development[:1])  # warms up as well
    if not left:
        reason = next(iter(failed.values()))
        raise UserError(
            f"'{variants[0].name}' does not run with this pair ({reason}). Mend that, or leave it"
            " out."
        )
    spent = {one.name: 0.0 for one in left}
    for turn, ids in enumerate(development):
        for name, (run,) in lap(left, [ids], [turn]).items():
            spent[name] += run.seconds
        least = min(spent[one.name] for one in left)
        left = [one for one in left if spent[one.name] <= LOST * least]
    return variants[int(min(left, key=lambda one: spent[one.name]).name)]
