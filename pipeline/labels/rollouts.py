"""Rollouts: how a text goes on behind one forced token. Whoever wants some supplies them while others are made."""

from __future__ import annotations

import gc
import json
import sqlite3
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from gistgate.core.block import Sampling
from gistgate.core.config import opened
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, read_json, write_json
from gistgate.core.request import Generation, PrefixState, Row, Slots, Stop, Usage
from gistgate.core.session import Queue, QueuedRow, Session
from gistgate.measure.speed import synchronise_race as synchronise
from pipeline.decode import make_decoder, request_of
from pipeline.pair.pair import load_pair
from pipeline.params import MethodParams, Params
from pipeline.run import Shards, bar

REJOINED, ANSWERED = "rejoined", "answered"
"""Finish of a rollout that came back to the words of its reference, and of one whose answer nothing can change."""

Answered = Callable[["Rollout", list[int]], bool]
"""(rollout, answer so far as token ids) -> whether what the task finds in the answer cannot change any more."""
Decided = Callable[["Rollout", list[int]], str | None]
"""(rollout, answer so far as token ids) -> why it may end here; None: it has to go on."""
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, eq=False)
class Rollout:
    """One continuation to make."""

    problem: int
    """Index of its prompt."""
    prompt: list[int]
    """Prompt as token ids."""
    text: list[int]
    """The answer that the prefix is taken from, as token ids."""
    position: int
    """Tokens of the text to keep."""
    token: int
    """The token to force behind them."""
    reference: list[int]
    """The target's own answer; a rollout that rejoins it may stop early."""
    seed: int = 0


@dataclass(frozen=True)
class Ended:
    """A rollout that has come to its end, or as far as its outcome needs."""

    ids: list[int]
    """The whole answer, the kept prefix and the forced token included, as token ids."""
    finish: str
    """As of `gistgate.core.request.Generation`, or REJOINED, or ANSWERED, or a reason of the supply's own."""


class Supply(Protocol):
    """Asks for rollouts, also for such as depend on how others end."""

    def take(self, num: int) -> list[Rollout]:
        """At most `num` rollouts to make next; none: there is nothing to make before another one has ended."""

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Why a rollout may end here; None: it has to go on. `answer`: what there is of it, as token ids."""

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Take in one that has ended."""


class Serves(Protocol):
    """Makes rollouts, many at once."""

    def serve(self, supply: Supply, sampling: Sampling | None = None) -> None:
        """Make what `supply` asks for until it asks for nothing more; greedily by default."""


class Listed(Generic[Outcome]):
    """A supply of rollouts that are all known beforehand."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        decided: Decided,
        outcome: Callable[[Rollout, Ended], Outcome],
        first: Collection[Rollout] = (),
    ) -> None:
        """`outcome` is what is wanted of each of them; those of `first` are made before the others."""
        self.decided, self.outcome = decided, outcome
        self._asked, self._found = rollouts, dict[Rollout, Outcome]()
        self._shown: Any = bar(title=None, unit="rollout")
        # Rollouts that have about as much of the answer ahead of them end together.
        self._waiting = sorted(rollouts, key=lambda one: (one not in first, one.position - len(one.reference)))

    def take(self, num: int) -> list[Rollout]:
        """The next `num`."""
        taken, self._waiting = self._waiting[:num], self._waiting[num:]
        return taken

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Keep what is wanted of it."""
        self._found[rollout] = self.outcome(rollout, ended)
        self._shown.update(1)

    def made_by(self, roller: Serves, sampling: Sampling | None = None, title: str | None = None) -> list[Outcome]:
        """What is wanted of every rollout, in the order of the rollouts; `title` shows a progress bar."""
        with bar(title=title, unit="rollout", total=len(self._asked)) as self._shown:
            roller.serve(self, sampling)
        return [self._found[rollout] for rollout in self._asked]


def decided(rollout: Rollout, answer: list[int], rejoin: int | None, answered: Answered | None) -> str | None:
    """Whether a rollout's outcome is known: it came back to its reference's words, or its answer is given.

    Args:
        rollout: which one.
        answer: what there is of it, as token ids.
        rejoin: tokens in a row that have to equal the reference's; None: however many do, it goes on.
        answered: tells whether its answer is given, which ends it; None: never.
    """
    # All of it is looked at: an audit that was still going on may have passed over the place.
    if rejoin is not None and rejoined_at(rollout, answer, rejoin) is not None:
        return REJOINED
    return ANSWERED if answered is not None and answered(rollout, answer) else None


def rejoined_at(rollout: Rollout, answer: Sequence[int], num: int) -> int | None:
    """Where `num` tokens in a row, all behind the forced one, stand in the reference as well; None if nowhere."""
    reference = rollout.reference
    grams = {tuple(reference[at : at + num]) for at in range(len(reference) - num + 1)}
    starts = range(rollout.position + 1, len(answer) - num + 1)
    return next((at for at in starts if tuple(answer[at : at + num]) in grams), None)


def stop_of(
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    max_new_tokens: int,
    eos_ids: Collection[int] = (),
    stops: Sequence[str] = (),
) -> Stop:
    """What ends an answer, of the arguments that all prompts share."""
    return Stop(max_new_tokens, frozenset(eos_ids), tuple(stop for stop in stops if stop), tokenizer)


# ---- What both models remember of the texts that rollouts start from: each text is read once, whoever asks for it.


class Memories:
    """Remembered texts, those used last, up to a limit of memory."""

    def __init__(self, decoder: Decoder, batch_size: int, limit_mb: int = 1000) -> None:
        """`decoder` reads what is missing, at most `batch_size` texts at once; `limit_mb` may be exceeded by those of
        one call."""
        self.decoder, self.batch_size, self.limit = decoder, batch_size, limit_mb * 1_000_000
        self.read = 0
        """Texts that were read here; the others were taken in."""
        self._known: OrderedDict[tuple[int, ...], PrefixState] = OrderedDict()
        self._held = 0

    def of(self, texts: Sequence[tuple[int, ...]]) -> list[PrefixState]:
        """The memory of each text (prompt and answer as token ids)."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._known]
        # Texts of about the same length waste no padding.
        missing.sort(key=len)
        self.read += len(missing)
        for start in range(0, len(missing), self.batch_size):
            for memory in self.decoder.remember(missing[start : start + self.batch_size]):
                self.put(memory)
        found = [self._known[text] for text in texts]
        for text in texts:
            self._known.move_to_end(text)
        self._forget(keep=len(set(texts)))
        return found

    def put(self, memory: PrefixState) -> None:
        """Take in what was read elsewhere."""
        key = tuple(memory.text)
        if key not in self._known:
            self._held += memory.num_bytes
        self._known[key] = memory

    def _forget(self, keep: int) -> None:
        """Drop the texts that were used longest ago, but none of the last `keep`."""
        while self._held > self.limit and len(self._known) > keep:
            _, memory = self._known.popitem(last=False)
            self._held -= memory.num_bytes


# ---- What labels cost, counted while they are made: forwards, tokens read, rollout tokens, idle slots, seconds.


REPORTS = Path("reports/labels")
"""One file for each pass of the stages `collect` and `label`."""


@dataclass
class Cost:
    """Sums over the pieces of a stage. Everything but `seconds` is a function of the data and of the way of rolling.

    After an interruption they hold what was done twice as well; of slots the interrupted part is missing.
    """

    labels: int = 0
    """Mismatches whose outcome was found by a rollout and kept as a label."""
    rollouts: int = 0
    """Continuations made, greedy and sampled, those without a label of their own included."""
    rollout_tokens: int = 0
    """Tokens that rollouts added behind their forced token."""
    target_forwards: int = 0
    """Forwards of the target, a batch each."""
    draft_forwards: int = 0
    """Forwards of the draft model, a batch each."""
    target_tokens: int = 0
    """Tokens that the target read, padding included."""
    draft_tokens: int = 0
    """Tokens that the draft model read, padding included."""
    slots: int = 0
    """Rows that the rounds of rollouts, and those in which mismatches are met, had room for."""
    slots_used: int = 0
    """Rows of these that held a text."""
    seconds: float = 0.0
    """Wall-clock time, as measured; shards that run side by side add up."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    @contextmanager
    def counting(self, models: Sequence[nn.Module]) -> Iterator[None]:
        """Count the forwards of the target and the draft model, and the time, while the context is open."""

        def count(role: str) -> Any:
            def hook(_module: nn.Module, _args: Any, inputs: dict[str, Any]) -> None:
                setattr(self, f"{role}_forwards", getattr(self, f"{role}_forwards") + 1)
                setattr(self, f"{role}_tokens", getattr(self, f"{role}_tokens") + inputs["input_ids"].numel())

            return hook

        roles = zip(("target", "draft"), models, strict=False)
        handles = [model.register_forward_pre_hook(count(role), with_kwargs=True) for role, model in roles]
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - started
            for handle in handles:
                handle.remove()

    def rolled(self, tokens: int) -> None:
        """One rollout has ended that added `tokens`."""
        self.rollouts += 1
        self.rollout_tokens += max(tokens, 0)

    def use(self, usage: Usage) -> None:
        """Take in how the slots of a request were used."""
        self.slots += usage.available
        self.slots_used += usage.busy

    def as_json(self) -> dict[str, Any]:
        """The sums, and what they say of one label; None where nothing was counted."""
        return {
            **asdict(self),
            "labels_per_hour": ratio(3600 * self.labels, self.seconds),
            "rollouts_per_label": ratio(self.rollouts, self.labels),
            "rollout_tokens_per_label": ratio(self.rollout_tokens, self.labels),
            "forwards_per_label": ratio(self.target_forwards, self.labels),
            "tokens_read_per_label": ratio(self.target_tokens + self.draft_tokens, self.labels),
            "idle_share_of_slots": ratio(self.slots - self.slots_used, self.slots),
        }


def ratio(part: float, whole: float) -> float | None:
    """A quotient; None where the whole is nothing."""
    return part / whole if whole else None


class Costs:
    """The costs of a stage's shards, which wait beside these until the last one is finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, index: int, cost: Cost) -> None:
        """Keep the cost of one shard; called before the shard itself is written."""
        write_json(self.folder / f"cost-{index:05d}.json", asdict(cost))

    def report(self, name: str, count: int, way: dict[str, Any] | None) -> None:
        """Write the sum over all shards to reports/labels/<name>.json, with the way that greedy rollouts went."""
        parts = [Cost(**read_json(self.folder / f"cost-{index:05d}.json")) for index in range(count)]
        write_json(REPORTS / f"{name}.json", {**sum(parts, Cost()).as_json(), "greedy_rollouts": way})


# ---- Rollouts that have come to their end, kept the moment they do: a shard that was interrupted goes on behind them.


PARTS = (REJOINED, ANSWERED)
"""Finishes of rollouts that stopped early."""
ENDS = ("eos", "stop", "length", *PARTS)
"""Finishes that tell an outcome; others are a supply's own reasons, such as that nobody wants it any more."""
LOST = "its rollouts are then made again"
"""What a damaged file costs."""


def kept_file(shards: Shards, index: int) -> Path:
    """Where the rollouts of a shard wait, beside the finished shards."""
    return shards.folder / f"rollouts-{index:05d}.sqlite"


class KeptRollouts:
    """The rollouts of one shard, and what they have cost."""

    def __init__(self, path: Path, cost: Cost) -> None:
        """Open or create the file; what an earlier start has spent is added to `cost`.

        Raises:
            UserError: the file is damaged or cannot be written.
        """
        self.path, self.cost = path, cost
        with opened(path, LOST) as base, base:
            base.execute("create table if not exists kept (key text primary key, ids text, finish text)")
            base.execute("create table if not exists spent (only_one integer primary key, cost text)")
            self._known = {key: Ended(json.loads(ids), end) for key, ids, end in base.execute("select * from kept")}
            row = base.execute("select cost from spent").fetchone()
        spent = Cost() if row is None else Cost(**json.loads(row[0]))
        for one in fields(Cost):
            setattr(cost, one.name, getattr(cost, one.name) + getattr(spent, one.name))
        self._started = perf_counter() - spent.seconds

    def over(self, supply: Supply, sampling: Sampling | None) -> Supply:
        """A supply that asks for the same rollouts, without those that are known."""
        return Known(supply, self, asdict(sampling or Sampling()))

    def find(self, key: str) -> Ended | None:
        """The rollout with this key, if it was made before."""
        return self._known.get(key)

    def keep(self, key: str, ended: Ended) -> None:
        """Write one that has ended, with the cost so far.

        Raises:
            UserError: the file cannot be written.
        """
        # Labels are counted when all outcomes are known, and the shard's own clock runs until then.
        spent = replace(self.cost, labels=0, seconds=perf_counter() - self._started)
        with opened(self.path, LOST) as base, base:
            write(base, key, ended, spent)
        self._known[key] = ended


def write(base: sqlite3.Connection, key: str, ended: Ended, spent: Cost) -> None:
    """Write one rollout and the cost in one transaction."""
    base.execute("insert or replace into kept values (?, ?, ?)", (key, json.dumps(ended.ids), ended.finish))
    base.execute("insert or replace into spent values (1, ?)", (json.dumps(asdict(spent)),))


class Known:
    """Stands in front of a supply: it is told at once what was made before, and asked for the rest."""

    def __init__(self, supply: Supply, kept: KeptRollouts, sampling: dict[str, object]) -> None:
        self.supply, self.kept, self.sampling = supply, kept, sampling

    def take(self, num: int) -> list[Rollout]:
        """At most `num` rollouts that nobody has made."""
        while taken := self.supply.take(num):
            if fresh := [rollout for rollout in taken if not self._told(rollout)]:
                return fresh
        return []

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """As the supply says."""
        return self.supply.decided(rollout, answer)

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Keep it, and tell the supply."""
        if ended.finish in ENDS:
            self.kept.keep(self._key(rollout), ended)
        self.supply.end(rollout, ended)

    def _told(self, rollout: Rollout) -> bool:
        """Hand out the rollout if it is known; one that had stopped early only where it may stop there again."""
        ended = self.kept.find(self._key(rollout))
        if ended is None:
            return False
        reason = self.supply.decided(rollout, ended.ids)
        if reason is None and ended.finish in PARTS:
            return False
        # A whole one stays whole: where it could stop early now, it might have another outcome than it had.
        self.supply.end(rollout, ended if reason is None or reason in PARTS else Ended(ended.ids, reason))
        return True

    def _key(self, rollout: Rollout) -> str:
        text = rollout.text[: rollout.position]
        return fingerprint(rollout.problem, text, rollout.token, rollout.seed, self.sampling)


# ---- Rollouts by the decoder, in a batch that is kept full: where one ends, the next one comes in.


class Roller:
    """Makes rollouts from remembered keys and values; every text is read once."""

    kept: KeptRollouts | None = None
    """Keeps those that have ended; None: an interruption loses them."""

    def __init__(self, decoder: Decoder, memories: Memories, batch_size: int, cost: Cost, **request: Any) -> None:
        """`decoder` goes on from `memories`, `batch_size` rows at a time; `cost` counts what is spent."""
        # A supply may decode as well while rollouts wait, and the drafter holds what its draft model has read.
        self.decoder = decoder.having(drafter=copy(decoder.drafter))
        self.memories, self.batch_size, self.cost = memories, batch_size, cost
        self.stop = stop_of(decoder.tokenizer, **request)

    @torch.inference_mode()
    def serve(self, supply: Supply, sampling: Sampling | None = None) -> None:
        """Make what `supply` asks for until it asks for nothing more; greedily by default."""

        def retire(_num: int) -> None:
            index, (answer, _) = session.results.popitem()  # the one that ended last
            self.cost.rolled(len(answer.ids) - coming.rollouts[index].position - 1)
            coming.end(index, answer)

        supply = supply if self.kept is None else self.kept.over(supply, sampling)
        coming = Coming(supply, self.memories, self.batch_size)
        slots = Slots(self.batch_size, retire)
        waiting = Queue(coming, self.batch_size)
        session = Session(
            self.decoder.parts, waiting, self.stop, sampling or Sampling(), slots, is_decided=coming.is_decided
        )
        session.run()
        self.cost.use(slots.usage)


class Coming(Iterator[QueuedRow]):
    """The rows of a session that waits for a supply: it may be exhausted, and go on once a rollout has ended."""

    def __init__(self, supply: Supply, memories: Memories, ahead: int) -> None:
        """`memories` are asked for those of `ahead` rollouts at once."""
        self.supply, self.memories, self.ahead = supply, memories, ahead
        self.rollouts: list[Rollout] = []
        """Those that were taken, by the index of their row."""
        self._next: deque[QueuedRow] = deque()

    def __next__(self) -> QueuedRow:
        while self._next or self._taken():
            start = self._next.popleft()
            reason = self.is_decided(start.row)
            if reason is None:
                return start
            self.supply.end(self.rollouts[start.row.index], Ended(start.row.answer, reason))
        raise StopIteration

    def _taken(self) -> bool:
        """Take rollouts and what is remembered of their texts; False if there are none now."""
        taken = self.supply.take(self.ahead)
        memories = self.memories.of([(*one.prompt, *one.text) for one in taken])
        for rollout, memory in zip(taken, memories, strict=True):
            self._next.append(started(len(self.rollouts), rollout, memory))
            self.rollouts.append(rollout)
        return bool(taken)

    def is_decided(self, row: Row) -> str | None:
        """Why a row may end here; None: it has to go on."""
        return self.supply.decided(self.rollouts[row.index], row.answer)

    def end(self, index: int, answer: Generation) -> None:
        """Hand a finished row to the supply."""
        self.supply.end(self.rollouts[index], Ended(answer.ids, answer.finish))


def started(index: int, rollout: Rollout, memory: PrefixState) -> QueuedRow:
    """The row of a rollout with its forced token; the keys and values in front of that are known."""
    row = begun(index, rollout)
    row.text.append(rollout.token)
    row.reasons = [0] * len(row.answer)
    return QueuedRow(row, memory, len(rollout.prompt) + rollout.position)


def begun(index: int, rollout: Rollout) -> Row:
    """The row of a rollout without its forced token."""
    text = [*rollout.prompt, *rollout.text[: rollout.position]]
    return Row(index, text, len(rollout.prompt), rollout.seed)


# ---- Whether rollouts are faster token by token or with speculative rounds, measured on the pair itself.


Way = Literal["plain", "speculative"]
"""One token per forward of the target, or drafted blocks."""
MEASURED = 24
"""Tokens that every row writes for the measurement."""


def settled(params: Params, prompts: Sequence[dict[str, Any]], file: Path) -> dict[str, Any]:
    """`way` and, where it was measured, tokens per second of both: what `file` says, else measured and written there.

    A stage that goes on after an interruption keeps to what its first start has found.
    """
    if params.engine.rollouts != "own":
        return {"way": params.engine.rollouts}
    if params.label.way != "auto":
        return {"way": params.label.way}
    if not file.exists():
        write_json(file, on_pair(params, prompts))
        gc.collect()
        torch.cuda.empty_cache()  # the stage loads the pair again, perhaps in other processes
    found: dict[str, Any] = read_json(file)
    return found


def on_pair(params: Params, prompts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `measured` finds on the run's pair, which is in memory for this measurement alone."""
    pair = load_pair(params)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    request = {**request_of(prompts, pair), "eos_ids": (), "stops": (), "max_new_tokens": MEASURED}
    ids = [prompts[place % len(prompts)]["ids"] for place in range(params.label.batch_size)]
    with threads_of(params):
        return measured(decoder, ids, **request)


@contextmanager
def threads_of(params: Params) -> Iterator[None]:
    """As many threads as the rollouts will have: where several processes share the shards, each has one."""
    before = torch.get_num_threads()
    if params.decoding.workers > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measured(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> dict[str, Any]:
    """The faster way behind these prompts, as many as a batch holds, and both rates in tokens per second."""
    memories = decoder.remember(prompts)
    decoders = {"plain": decoder.plain(), "speculative": decoder}
    rates = {}
    for way, one in decoders.items():
        for num in (2, request["max_new_tokens"]):  # the first round warms up
            synchronise(one.target.device)
            started = perf_counter()
            done = one.resume(
                memories,
                [(len(ids) - 1, ids[-1:]) for ids in prompts],
                [len(ids) for ids in prompts],
                remember=False,
                **{**request, "max_new_tokens": num},
            )
            synchronise(one.target.device)
            rates[way] = sum(len(answer.ids) for answer, _ in done) / (perf_counter() - started)
    return {"way": max(rates, key=lambda way: rates[way]), "rows": len(prompts), "tokens_per_second": rates}
