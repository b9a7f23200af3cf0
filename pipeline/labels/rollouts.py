"""Rollouts: how texts go on behind one forced token, made many at once in a batch that is kept
full. A `RolloutSource` is asked for the next ones whenever slots are free, so that it may ask for
such as depend on how others end; `RolloutList` asks for some that are all known beforehand.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.files import read_json, write_json
from gistgate.core.parts import Terms
from gistgate.core.progress import bar
from gistgate.core.request import PrefixState, Row, Slots, Stop, Usage
from gistgate.core.session import Queue, QueuedRow, Session

REJOINED = "rejoined"
"""Finish of a rollout that came back to the words of its reference."""
GREEDY = Sampling()
REPORTS = Path("reports/labels")  # what each pass of the stages `collect` and `label` has cost
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, eq=False)
class Rollout:
    """One continuation to make; texts are token ids."""

    problem: int  # index of its prompt
    prompt: list[int]
    text: list[int]  # the answer that the prefix is taken from
    position: int  # tokens of the text to keep
    token: int  # the token to force behind them
    reference: list[int]  # the target's own answer; a rollout that rejoins it may stop early
    seed: int = 0

    def row(self, index: int) -> Row:
        """The row of a request that goes on behind the kept prefix, without the forced token."""
        return Row(index, [*self.prompt, *self.text[: self.position]], len(self.prompt), self.seed)


Decided = Callable[[Rollout, list[int]], str | None]
"""(rollout, answer so far as token ids) -> why the rollout may end here; None: it has to go on."""


@dataclass(frozen=True)
class FinishedRollout:
    """A rollout that has come to its end, or as far as its outcome needs."""

    ids: list[int]  # the whole answer, the kept prefix and the forced token included
    finish: str  # as of `Generation`, or REJOINED, or the source's own reason


class RolloutSource(Protocol):
    """Asks for rollouts, also for such as depend on how others end."""

    def take(self, num: int) -> list[Rollout]:
        """At most `num` rollouts to make next; none: there is nothing to make before another one
        has ended.
        """

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Why a rollout may end here, as of `Decided`."""

    def end(self, rollout: Rollout, finished: FinishedRollout) -> None:
        """Take in a rollout that has ended."""


@dataclass
class RolloutList(Generic[Outcome]):
    """A source of rollouts that are all known beforehand."""

    rollouts: Sequence[Rollout]
    decided: Decided
    outcome: Callable[[Rollout, FinishedRollout], Outcome]  # what is needed of each rollout
    first: Collection[Rollout] = ()  # those that are made before the others

    def __post_init__(self) -> None:
        # Rollouts that have about as much of the answer ahead of them end together.
        ordered = sorted(self.rollouts, key=lambda one: one.position - len(one.reference))
        self._waiting = sorted(ordered, key=lambda rollout: rollout not in self.first)
        self._outcomes: dict[Rollout, Outcome] = {}

    def take(self, num: int) -> list[Rollout]:
        """The next `num`."""
        taken = self._waiting[:num]
        del self._waiting[:num]
        return taken

    def end(self, rollout: Rollout, finished: FinishedRollout) -> None:
        """Keep the outcome of a rollout."""
        self._outcomes[rollout] = self.outcome(rollout, finished)
        self._bar.update(1)

    def made_by(
        self,
        runner: Any,
        title: str = "rollouts",
        sampling: Sampling = GREEDY,
    ) -> list[Outcome]:
        """The outcomes of all rollouts in their order; `title` names the progress bar."""
        with bar(title=title, unit="rollout", total=len(self.rollouts)) as self._bar:
            runner.serve(self, sampling)
        return [self._outcomes[rollout] for rollout in self.rollouts]


def decided(rollout: Rollout, answer: list[int], rejoin: int | None) -> str | None:
    """Why an outcome is known: `rejoin` tokens in a row equal the reference's."""
    # All of it is looked at: an audit that was still going on may have passed over the place.
    if rejoin is not None and rejoined_at(rollout, answer, rejoin) is not None:
        return REJOINED
    return None


def rejoined_at(rollout: Rollout, answer: Sequence[int], num: int) -> int | None:
    """Where `num` tokens in a row, all behind the forced one, stand in the reference as well; None
    if nowhere.
    """
    reference = rollout.reference
    grams = {tuple(reference[at : at + num]) for at in range(len(reference) - num + 1)}
    starts = range(rollout.position + 1, len(answer) - num + 1)
    return next((at for at in starts if tuple(answer[at : at + num]) in grams), None)


def stop_of(
    tokenizer: Any,
    *,
    max_new_tokens: int,
    eos_ids: Collection[int] = (),
    stops: Sequence[str] = (),
) -> Stop:
    """What ends an answer, of the arguments that all prompts share."""
    return Stop(max_new_tokens, frozenset(eos_ids), tuple(filter(None, stops)), tokenizer)


@dataclass
class Cost:
    """What labels cost, counted while they are made."""

    labels: int = 0  # mismatches whose outcome was found by a rollout and kept as a label
    rollouts: int = 0  # continuations, those without a label of their own included
    rollout_tokens: int = 0  # tokens that they added behind their forced token
    slots: int = 0  # rows that all rounds of rollouts and of walks had room for
    slots_used: int = 0  # rows of these that held a text
    seconds: float = 0.0  # shards that run side by side add up

    def rolled(self, tokens: int) -> None:
        """Count a rollout that has ended and added `tokens`."""
        self.rollouts += 1
        self.rollout_tokens += max(tokens, 0)

    def use(self, usage: Usage) -> None:
        """Count how the slots of a request were used."""
        self.slots += usage.available
        self.slots_used += usage.busy


@contextmanager
def counted(folder: Path, index: int) -> Iterator[Cost]:
    """The cost of one shard, kept beside the shards in `folder` until `report_costs`."""
    cost = Cost()
    started = perf_counter()
    yield cost
    cost.seconds = perf_counter() - started
    write_json(folder / f"cost-{index:05d}.json", asdict(cost))


def report_costs(folder: Path, name: str, count: int) -> None:
    """Write the sums over all shards to reports/labels/<name>.json."""
    total: Counter[str] = Counter()
    for index in range(count):
        total.update(read_json(folder / f"cost-{index:05d}.json"))
    labels = total["labels"]
    seconds = total["seconds"]
    rates = {
        "labels_per_hour": 3600 * labels / seconds if seconds else None,
        "rollout_tokens_per_label": total["rollout_tokens"] / labels if labels else None,
    }
    write_json(REPORTS / f"{name}.json", {**total, **rates})


@dataclass
class PrefixCache:
    """What both models remember of the texts that rollouts start from, those used last, up to a
    limit of memory.
    """

    decoder: Decoder  # reads what is missing
    batch_size: int  # texts that it reads at once, at most
    limit_mb: int = 1000
    _memories: OrderedDict[tuple[int, ...], PrefixState] = field(default_factory=OrderedDict)
    _bytes: int = 0

    def of(self, texts: Sequence[tuple[int, ...]]) -> list[PrefixState]:
        """What is remembered of each text (prompt and answer as token ids)."""
        new = [text for text in dict.fromkeys(texts) if text not in self._memories]
        new.sort(key=len)  # texts of about the same length waste no padding
        for start in range(0, len(new), self.batch_size):
            for memory in self.decoder.remember(new[start : start + self.batch_size]):
                self.put(memory)
        memories = [self._memories[text] for text in texts]
        for text in texts:
            self._memories.move_to_end(text)
        num = len(set(texts))
        while self._bytes > self.limit_mb * 1_000_000 and len(self._memories) > num:
            _, oldest = self._memories.popitem(last=False)
            self._bytes -= oldest.num_bytes
        return memories

    def put(self, memory: PrefixState) -> None:
        """Take in what was read elsewhere."""
        text = tuple(memory.text)
        if text not in self._memories:
            self._bytes += memory.num_bytes
        self._memories[text] = memory


class RolloutRunner:
    """Makes rollouts with the decoder, from remembered keys and values: where one ends, the next
    one comes in.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefixes: PrefixCache,
        batch_size: int,
        cost: Cost,
        **request: Any,
    ) -> None:
        """`decoder` goes on from `prefixes`, `batch_size` rows at a time; `cost` counts what is
        spent.
        """
        # A source may decode as well while rollouts wait, and the drafter holds what its draft
        # model has read.
        self.decoder = decoder.having(drafter=copy(decoder.drafter))
        self.prefixes = prefixes
        self.batch_size = batch_size
        self.cost = cost
        self.stop = stop_of(decoder.tokenizer, **request)

    @torch.inference_mode()
    def serve(self, source: RolloutSource, sampling: Sampling) -> None:
        """Make what `source` asks for until it asks for nothing more."""

        def retire(_num: int) -> None:
            index, (answer, _) = session.results.popitem()  # the one that ended last
            rollout = rows.rollouts[index]
            self.cost.rolled(len(answer.ids) - rollout.position - 1)
            source.end(rollout, FinishedRollout(answer.ids, answer.finish))

        rows = SourceRows(source, self.prefixes, self.batch_size)
        slots = Slots(self.batch_size, retire)
        queue = Queue(rows, self.batch_size)
        terms = Terms(self.decoder.parts, self.stop, sampling, slots)
        session = Session(terms, queue, rows.is_decided)
        session.run()
        self.cost.use(slots.usage)


@dataclass
class SourceRows(Iterator[QueuedRow]):
    """The rows of a session that waits for a source: it may be exhausted, and go on once a rollout
    has ended.
    """

    source: RolloutSource
    prefixes: PrefixCache
    ahead: int  # rollouts that are taken at once
    rollouts: list[Rollout] = field(default_factory=list)  # taken, by the index of their row
    _next: deque[QueuedRow] = field(default_factory=deque)

    def __next__(self) -> QueuedRow:
        while self._next or self._take():
            start = self._next.popleft()
            reason = self.is_decided(start.row)
            if reason is None:
                return start
            finished = FinishedRollout(start.row.answer, reason)
            self.source.end(self.rollouts[start.row.index], finished)
        raise StopIteration

    def _take(self) -> bool:
        """Take rollouts and what is remembered of their texts; False if there are none now."""
        rollouts = self.source.take(self.ahead)
        memories = self.prefixes.of([(*rollout.prompt, *rollout.text) for rollout in rollouts])
        for rollout, memory in zip(rollouts, memories):
            row = rollout.row(len(self.rollouts))
            row.text.append(rollout.token)
            row.reasons = [0] * len(row.answer)
            self._next.append(QueuedRow(row, memory, len(rollout.prompt) + rollout.position))
            self.rollouts.append(rollout)
        return bool(rollouts)

    def is_decided(self, row: Row) -> str | None:
        """Why a row may end here; None: it has to go on."""
        return self.source.decided(self.rollouts[row.index], row.answer)
