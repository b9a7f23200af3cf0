"""The texts of a batch while they are being written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gistgate.core.reader import RowCache
from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# ---- What was counted while decoding. Everything a report says is derived from these sums.


@dataclass
class Statistics:
    """Sums over rounds; every count is made after the block was cut at its stop, so it agrees with the text.

    A round is one target forward for one row, the first included. Definitions: docs/statistics.md.
    """

    forwards: int = 0
    """Target forwards that this text took part in."""
    draft_forwards: int = 0
    """Draft forwards that this text took part in."""
    strict: int = 0
    """Accepted draft tokens before the first loose accept of their block."""
    loose: int = 0
    """Draft tokens accepted although the strict rule refuses them."""
    carried: int = 0
    """Strict accepts behind a loose accept of the same block."""
    own: int = 0
    """Tokens that the target added itself."""
    histogram: dict[int, int] = field(default_factory=dict)
    """Rounds by accepted draft tokens."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds by part (draft, verify, accept, total), shared evenly by the rows of a batch."""
    extra: dict[str, float] = field(default_factory=dict)
    """What a rule counts besides, by name."""

    @property
    def tokens(self) -> int:
        """Tokens that reached the output."""
        return self.strict + self.loose + self.carried + self.own

    @property
    def mean_accepted_length(self) -> float:
        """tau: tokens in the output per target forward, the target's own token included."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def loose_per_100(self) -> float:
        """Loosely accepted tokens per hundred tokens of output."""
        return 100 * self.loose / self.tokens if self.tokens else 0.0

    def spend(self, part: str, seconds: float) -> None:
        """Add wall-clock time to a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def count(self, name: str) -> None:
        """One more of something besides."""
        self.extra[name] = self.extra.get(name, 0.0) + 1.0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.forwards + other.forwards,
            self.draft_forwards + other.draft_forwards,
            self.strict + other.strict,
            self.loose + other.loose,
            self.carried + other.carried,
            self.own + other.own,
            summed(self.histogram, other.histogram),
            summed(self.seconds, other.seconds),
            summed(self.extra, other.extra),
        )

    def as_dict(self, timed: bool = True) -> dict[str, Any]:
        """Plain JSON; without seconds when equal runs have to give equal bytes."""
        values = asdict(self)
        values["histogram"] = {str(length): count for length, count in sorted(self.histogram.items())}
        if not timed:
            del values["seconds"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Statistics:
        """The reverse of `as_dict`."""
        histogram = {int(length): count for length, count in values.get("histogram", {}).items()}
        return cls(**{**values, "histogram": histogram})


def summed(a: dict[Any, Any], b: dict[Any, Any]) -> dict[Any, Any]:
    """Key-wise sum of two dictionaries of numbers."""
    return {key: a.get(key, 0) + b.get(key, 0) for key in sorted(a.keys() | b.keys())}


def total(parts: list[Statistics]) -> Statistics:
    """The sum of many."""
    return sum(parts, Statistics())


@dataclass
class Row:
    """One text: prompt, answer so far, and what was counted."""

    index: int
    """Place of its prompt in the request."""
    text: list[int]
    """Prompt and answer, as token ids."""
    prompt_length: int
    """Tokens of `text` that are prompt."""
    seed: int = 0
    """Seed of the row's own random numbers."""
    reasons: list[int] = field(default_factory=list)
    """Reason of every answer token."""
    finish: str | None = None
    """Why the answer ended; None while it goes on."""
    statistics: Statistics = field(default_factory=Statistics)
    generator: torch.Generator | None = None
    cost: float | None = None
    """What a round costs this request right now, 0 to 1; None where nobody said."""
    memory: dict[str, Any] = field(default_factory=dict)
    """What rules and guards remember about this request, by their ids."""

    @property
    def answer(self) -> list[int]:
        return self.text[self.prompt_length :]

    def uniforms(self, num: int) -> Tensor:
        """`num` fresh numbers in (0, 1), the same for the same seed whatever the neighbours do."""
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.rand(num, generator=self.generator, dtype=torch.float64)
        return drawn.clamp(1e-12, 1 - 1e-12)


@dataclass(frozen=True)
class Generation:
    """One finished answer."""

    ids: list[int]
    """New token ids, cut at the stop; an eos stays."""
    reasons: list[int]
    """Reason of every token of `ids` (gistgate.core.block.Reason)."""
    finish: str
    """"eos", "stop" (a stop string) or "length"."""
    statistics: Statistics
    """What was counted."""


@dataclass(frozen=True)
class Memory:
    """What both models remember of one text: lets an answer be continued from any earlier token."""

    text: list[int]
    """Prompt and answer, as token ids."""
    target: RowCache
    """The target's keys and values of a prefix of `text`."""
    draft: RowCache
    """The drafter's; empty when it keeps none."""

    @property
    def num_bytes(self) -> int:
        """Memory held by both, in bytes."""
        return self.target.num_bytes + self.draft.num_bytes


def finished(row: Row) -> Generation:
    """The row as an answer."""
    assert row.finish is not None
    return Generation(row.answer, row.reasons, row.finish, row.statistics)


def texts_of(rows: Sequence[Row]) -> list[list[int]]:
    """The texts of all rows."""
    return [row.text for row in rows]


def spend(rows: Sequence[Row], **seconds: float) -> None:
    """Share wall-clock seconds by part evenly among the rows of a batch."""
    for row in rows:
        for part, spent in seconds.items():
            row.statistics.spend(part, spent / len(rows))


def count_notes(rows: Sequence[Row], notes: Sequence[str]) -> None:
    """Count what a drafter noted of each row; no notes at all say nothing."""
    for row, note in zip(rows, notes, strict=False):
        if note:
            row.statistics.count(note)


# ---- How many rows of a request are decoded at a time, who hears of finished ones, and how well the slots were used.


@dataclass
class Usage:
    """What was counted over rounds; several requests may count into one."""

    busy: int = 0
    """Slots that held an unfinished row."""
    available: int = 0
    """Slots that were asked for, whether or not the request had rows for all of them."""
    tokens: int = 0
    """Tokens of the finished rows."""
    forwards: int = 0
    """Target forwards of the finished rows."""

    def count(self, busy: int, available: int) -> None:
        """One more round."""
        self.busy, self.available = self.busy + busy, self.available + available

    def finish(self, tokens: int, forwards: int) -> None:
        """One more finished row."""
        self.tokens, self.forwards = self.tokens + tokens, self.forwards + forwards

    @property
    def mean_accepted_length(self) -> float:
        """tau of the finished rows; 0 before the first."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def idle(self) -> float:
        """Share of slots without a row, in [0, 1]; 0 before the first round."""
        return 1 - self.busy / self.available if self.available else 0.0


def ignore(_finished: int) -> None:
    """Hear of finished rows and do nothing."""


@dataclass(frozen=True)
class Slots:
    """The batch of a request: a finished row leaves its slot to one that waits."""

    number: int | None = None
    """Rows decoded at a time; None: all of the request."""
    progress: Callable[[int], object] = ignore
    """Called with the number of rows just finished, one row at a time."""
    usage: Usage = field(default_factory=Usage)
    """Where the use of the slots is counted."""

    def __post_init__(self) -> None:
        if self.number is not None and self.number < 1:
            raise UserError(f"A batch of {self.number} rows decodes nothing. Use a batch size of 1 or more.")

    def most(self, num_rows: int) -> int:
        """Slots that a request of so many rows has."""
        return num_rows if self.number is None else min(self.number, num_rows)


# ---- Where an answer ends. A block is cut here before anything is counted.


@dataclass(frozen=True)
class Stop:
    """End of text, stop strings and a length limit, tested token by token inside a block."""

    max_new_tokens: int
    """Longest answer, in tokens."""
    eos_ids: Collection[int] = ()
    """Ids that end the answer; they stay in it."""
    strings: Sequence[str] = ()
    """Texts that end the answer; the token that completes one stays in it."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """Decodes the tail in search of `strings`."""

    def cut(self, answer: Sequence[int], new: Sequence[int]) -> tuple[int, str | None]:
        """How many of `new` tokens stay behind `answer`, and why it ends there: "eos", "stop", "length" or None."""
        room = self.max_new_tokens - len(answer)
        ends = [(index + 1, "eos") for index, token in enumerate(new) if token in self.eos_ids][:1]
        at = self._first_string(answer, new[:room])
        if at is not None:
            ends.append((at, "stop"))
        if len(new) >= room:
            ends.append((room, "length"))
        return min(ends, key=lambda end: end[0]) if ends else (len(new), None)

    def _first_string(self, answer: Sequence[int], new: Sequence[int]) -> int | None:
        """Tokens of `new` up to the first that completes a stop string."""
        if not self.strings or self.tokenizer is None:
            return None
        # A stop string of n bytes cannot reach further back than n tokens, and the answer so far holds none.
        tail = list(answer[-max(len(string.encode()) for string in self.strings) :])
        if not self._has_stop([*tail, *new]):
            return None
        return next((num for num in range(1, len(new) + 1) if self._has_stop([*tail, *new[:num]])), None)

    def _has_stop(self, ids: Sequence[int]) -> bool:
        assert self.tokenizer is not None
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return any(string in text for string in self.strings)


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends an answer: the tokenizer's eos and those of the model's generation settings."""
    listed = model.generation_config.eos_token_id if model.generation_config else None
    ids = listed if isinstance(listed, list) else [listed]
    return sorted({int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None})
