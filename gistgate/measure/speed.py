"""Something that continues prompts, with a clock on both sides: our decoder, and transformers' own.

Needs torch and transformers alone, so that it runs where the pipeline is not installed.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol
from zlib import crc32

import torch
import transformers
from tqdm import tqdm
from transformers import (
    CompileConfig,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StaticCache,
    StoppingCriteriaList,
    StopStringCriteria,
)

from gistgate.core.decoder import Decoder
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Generation, Statistics
from gistgate.core.utils import UserError

# ---- Seconds of plain, strict and chosen decoding on the same prompts, one row at a time, interleaved.


BATCHES = (1, 4, 16, 32)
"""Batch sizes that are tried, in rows."""
MEASURED = 64
"""Longest answer of a measurement, in tokens."""
Lap = dict[str, tuple[float, Generation]]
"""Seconds and answer of one prompt, by the name of the clock."""


@dataclass
class Clock:
    """Time and counters of one way of decoding."""

    name: str
    decoder: Decoder
    seconds: float = 0.0
    """Summed over the prompts, prefill included."""
    statistics: Statistics = field(default_factory=Statistics)
    loops: int = 0
    """Prompts that any of the three ways answered with a loop; they are left out unless every prompt loops."""

    def run(self, ids: Sequence[int], **request: Any) -> tuple[float, Generation]:
        """Decode one prompt; return seconds and answer."""
        synchronise_race(self.decoder.target.device)
        started = perf_counter()
        answer = self.decoder.generate([ids], **request)[0]
        synchronise_race(self.decoder.target.device)
        return perf_counter() - started, answer

    def add(self, seconds: float, answer: Generation) -> None:
        """Add one answer to the sums."""
        self.seconds += seconds
        self.statistics += answer.statistics


def side_by_side(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> list[Clock]:
    """Plain, strict and `decoder` on every prompt, in an order that rotates; the first prompt warms up.

    Loops are easy to draft. If any way of decoding loops on a prompt, the prompt is dropped for all of them; if every
    prompt loops, all are kept.

    Raises:
        UserError: there is no prompt.
    """
    if not prompts:
        raise UserError("There is no prompt to time. Put at least one line of text into the file.")
    clocks = [Clock("plain", decoder.plain()), Clock("strict", decoder.strict())]
    clocks.append(Clock(decoder.rule.id, decoder))
    rounds = interleaved(clocks, prompts, **request)
    sound = without_loops(rounds)
    for clock in clocks:
        clock.loops = len(rounds) - len(sound)
        for ran in sound or rounds:
            clock.add(*ran[clock.name])
    return clocks


def interleaved(clocks: Sequence[Clock], prompts: Sequence[Sequence[int]], **request: Any) -> list[Lap]:
    """Every prompt decoded by every clock, in an order that rotates.

    The first prompt warms up; the compiled engine, which builds other programs for longer prompts, decodes all of them.
    """
    for clock in clocks:
        for ids in prompts if clock.decoder.engine.name == "compiled" else prompts[:1]:
            clock.decoder.generate([ids], **request)
    rounds = []
    for place, ids in enumerate(prompts):
        turn = place % len(clocks)
        rounds.append({clock.name: clock.run(ids, **request) for clock in [*clocks[turn:], *clocks[:turn]]})
    return rounds


def without_loops(rounds: Sequence[Lap]) -> list[Lap]:
    """The prompts that no clock answered with a loop."""
    return [ran for ran in rounds if not any(LoopGuard().is_loop(answer.ids) for _, answer in ran.values())]


def pays_up_to(
    decoder: Decoder, prompts: Sequence[Sequence[int]], sizes: Sequence[int] = BATCHES, **request: Any
) -> int:
    """Largest batch of `sizes` up to which speculation is faster than plain decoding; 0: it never is.

    For `Decoder(speculate_up_to=...)`, measured once before serving: chosen while serving, texts of loose rules would
    depend on how busy the machine is. Prompts repeat where there are too few for a batch; the better of two runs
    counts.

    Raises:
        UserError: there is no prompt.
    """
    if not prompts:
        raise UserError("There is no prompt to time. Pass at least one.")
    plain, most = decoder.plain(), 0
    for size in sorted(sizes):
        batch = [prompts[place % len(prompts)] for place in range(size)]
        clocks = [rate(one, batch, request) for one in (plain, decoder)]
        if clocks[1] <= clocks[0]:
            break
        most = size
    return most


def settle_batches(decoder: Decoder, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **request: Any) -> int:
    """Measure on the first batch up to how many of its rows speculation pays, and let the decoder keep to it."""
    sizes = [*(size for size in BATCHES if size < len(prompts)), len(prompts)]
    most = pays_up_to(decoder, prompts, sizes, max_new_tokens=min(max_new_tokens, MEASURED), **request)
    decoder.speculate_up_to = most
    return most


def rate(decoder: Decoder, batch: Sequence[Sequence[int]], request: dict[str, Any]) -> float:
    """New tokens per second, the better of two runs behind one that warms up."""
    decoder.generate(batch, **request)
    rates = []
    for _ in range(2):
        synchronise_race(decoder.target.device)
        started = perf_counter()
        answers = decoder.generate(batch, **request)
        synchronise_race(decoder.target.device)
        rates.append(sum(len(answer.ids) for answer in answers) / (perf_counter() - started))
    return max(rates)


def synchronise_race(device: torch.device) -> None:
    """Wait until a GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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


# ---- Contenders timed side by side: every batch is decoded by all of them before the next batch begins.


Times = dict[str, dict[str, Any]]
"""By name: `block`; `seconds` (of every repeat), `tokens` and `target_forwards` of each batch; how many had `loops`."""


def race(
    field: Sequence[Contender],
    batches: Sequence[Prompts],
    repeats: int = 1,
    title: str | None = None,
    goes_on: Callable[[Times], bool] = lambda _times: True,
) -> Times:
    """Time every contender on every batch, in an order that rotates, so that a slower machine slows all of them.

    The first batch warms up, because the first call of everything pays for what later calls find done. A batch that
    any contender answers with a loop is dropped for all, since loops are easy to draft; all are kept if every batch
    loops.
    `title` shows a progress bar; `goes_on` hears after every batch of the times so far, and the race ends where it says
    no.
    """
    for contender in field:
        contender.decode(batches[0])
    times: Times = {c.name: {"block": c.block, "seconds": [], "tokens": [], "target_forwards": []} for c in field}
    loops = []
    for place, batch in enumerate(tqdm(batches, desc=title, unit="prompt", disable=title is None)):
        runs = lap(field, batch, [place + repeat for repeat in range(repeats)])
        loops.append(any(run.loops for timed in runs.values() for run in timed))
        for name, timed in runs.items():
            times[name]["seconds"].append([run.seconds for run in timed])
            times[name]["tokens"].append(timed[0].tokens)
            times[name]["target_forwards"].append(timed[0].forwards)
        if not goes_on(without_loops_race(times, loops)):
            break
    return without_loops_race(times, loops)


def working(field: Sequence[Contender], batch: Prompts) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that decode this batch, and the reason of each that cannot: that is a result, and not the end."""
    able, failed = [], {}
    for contender in field:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                contender.decode(batch)
        except Exception as error:  # libraries fail in many ways
            failed[contender.name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
        else:
            able.append(contender)
    return able, failed


def lap(field: Sequence[Contender], batch: Prompts, turns: Sequence[int]) -> dict[str, list[Timed]]:
    """One batch decoded by all contenders, once for each turn; a turn says who begins.

    Who builds programs decodes the batch before the clock runs, since its shape may need new ones.
    """
    for contender in field:
        if contender.builds:
            contender.decode(batch)
    runs: dict[str, list[Timed]] = {contender.name: [] for contender in field}
    for turn in turns:
        first = turn % len(field)
        for contender in [*field[first:], *field[:first]]:
            runs[contender.name].append(contender.timed(batch))
    return runs


def without_loops_race(times: Times, loops: Sequence[bool]) -> Times:
    """The times of batches that no contender answered with a loop, or of all batches where every batch loops."""
    kept = [place for place, looped in enumerate(loops) if not looped] or range(len(loops))
    return {
        name: {
            key: [value[place] for place in kept] if isinstance(value, list) else value for key, value in entry.items()
        }
        | {"loops": sum(loops)}
        for name, entry in times.items()
    }


def by_kind(field: Sequence[Contender], times: Times) -> dict[str, Times]:
    """Times of baselines and of methods; a method that decodes exactly like a contender shares its times."""
    methods = {name: times[c.name] for c in field for name in (*([] if c.is_baseline else [c.name]), *c.also)}
    return {"baselines": {c.name: times[c.name] for c in field if c.is_baseline}, "methods": methods}


# ---- transformers' own speculation at its best: the K, or its defaults, that is fastest on prompts that nobody times.


KS = (2, 3, 4, 6, 8, 10)
"""Block lengths that are tried; prompt lookup of transformers proposes 10 tokens where it is told nothing."""
LOST = 1.25
"""A variant that takes so many times the least time is not tried any further: prompts decide less than K does."""
ASSISTED, LOOKUP = "assisted", "prompt-lookup"

Choice = dict[str, Any]
"""`block`, the fastest K."""
Keep = Callable[[str, Callable[[], Choice]], Choice]
"""(name, how to choose) -> the choice of this start or of an earlier one."""


def assisted(pair: Models, request: dict[str, Any]) -> list[Contender]:
    """Assisted generation at every K with full blocks, and with transformers' own length and confidence threshold."""
    return [Contender(ASSISTED, theirs(pair, request, k), k) for k in (*KS, DEFAULTS)]


def prompt_lookup(pair: Models, request: dict[str, Any]) -> list[Contender]:
    """Prompt lookup at every K."""
    return [Contender(LOOKUP, theirs(pair, request, prompt_lookup_num_tokens=k), k) for k in KS]


def fastest(variants: Sequence[Contender], development: Sequence[list[int]]) -> Contender:
    """The variant that decodes these development prompts in the least time, all of them side by side.

    One that has taken LOST times the least so far does not decode the prompts that remain.

    Raises:
        UserError: none of them decodes the first prompt; the sentence has the reason of the first.
    """
    numbered = [replace(one, name=str(place)) for place, one in enumerate(variants)]
    # The first call of everything pays for what later calls find done.
    left, failed = working(numbered, development[:1])
    if not left:
        reason = next(iter(failed.values()))
        raise UserError(f"'{variants[0].name}' does not run with this pair ({reason}). Mend that, or leave it out.")
    spent = {one.name: 0.0 for one in left}
    for turn, ids in enumerate(development):
        for name, (run,) in lap(left, [ids], [turn]).items():
            spent[name] += run.seconds
        least = min(spent[one.name] for one in left)
        left = [one for one in left if spent[one.name] <= LOST * least]
    return variants[int(min(left, key=lambda one: spent[one.name]).name)]


def choice(variants: Sequence[Contender], development: Sequence[list[int]]) -> Choice:
    """The K of the fastest variant."""
    return {"block": fastest(variants, development).block}


def made_now(_name: str, choose: Callable[[], Choice]) -> Choice:
    """A choice that nobody made before."""
    return choose()


def chosen(
    pair: Models, request: dict[str, Any], development: Sequence[list[int]], keep: Keep = made_now
) -> tuple[dict[str, int], dict[str, str]]:
    """By name the K of transformers' speculation that is fastest on these development prompts, and what does not run.

    A pair without a draft model has prompt lookup alone. Assisted generation refuses, for instance, a draft whose
    vocabulary is padded to another size than the target's.
    """
    every = {ASSISTED: assisted, LOOKUP: prompt_lookup}
    if pair.draft is None:
        del every[ASSISTED]
    blocks, failed = {}, {}
    for name, of in every.items():
        try:
            blocks[name] = keep(name, partial(choice, of(pair, request), development))["block"]
        except UserError as error:  # a result as well, and the others can still be timed
            failed[name] = str(error)
    return blocks, failed


def at(pair: Models, request: dict[str, Any], blocks: Mapping[str, int]) -> list[Contender]:
    """Both at these K, by name."""
    every = [*assisted(pair, request), *prompt_lookup(pair, request)]
    return [one for one in every if blocks.get(one.name) == one.block]
