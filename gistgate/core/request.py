"""One request: its rows, what was counted about them, where an answer stops, and how many rows run
at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.architecture import context_of
from gistgate.core.cache import NOTHING_READ, RowCache, Texts
from gistgate.core.utils import UserError


@dataclass
class Statistics:
    """Sums over rounds, counted after the block was cut at its stop. Definitions: docs/speed.md."""

    forwards: int = 0  # target forwards that this text took part in
    draft_forwards: int = 0
    strict: int = 0  # accepted draft tokens before the first loose accept of their block
    loose: int = 0  # draft tokens accepted although the strict rule refuses them
    carried: int = 0  # strict accepts behind a loose accept of the same block
    own: int = 0  # tokens that the target added itself
    histogram: dict[int, int] = field(default_factory=dict)  # rounds by accepted draft tokens
    # by part, shared evenly by the rows of a batch
    seconds: dict[str, float] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)  # what rules and drafters count besides

    @property
    def tokens(self) -> int:
        """New tokens of the text."""
        return self.strict + self.loose + self.carried + self.own

    @property
    def mean_accepted_length(self) -> float:
        """tau: tokens per target forward, the target's own token included."""
        return self.tokens / self.forwards if self.forwards else 0.0

    @property
    def loose_per_100(self) -> float:
        """Loose tokens per hundred tokens."""
        return 100 * self.loose / self.tokens if self.tokens else 0.0

    def count(self, name: str, number: float = 1) -> None:
        """Add to a counter in `extra`; one that stays 0 does not appear there."""
        if number:
            self.extra[name] = self.extra.get(name, 0.0) + float(number)

    def __add__(self, other: Statistics) -> Statistics:
        sums = {}
        for name, value in vars(self).items():
            sums[name] = added(value, getattr(other, name))
        return Statistics(**sums)

    def as_dict(self, timed: bool = True) -> dict[str, Any]:
        """Plain JSON; without seconds when equal runs have to give equal bytes."""
        values = asdict(self)
        values["histogram"] = {
            str(length): self.histogram[length] for length in sorted(self.histogram)
        }
        if not timed:
            del values["seconds"]
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Statistics:
        """Read what `as_dict` returned."""
        rounds = values.get("histogram", {})
        histogram = {int(length): num for length, num in rounds.items()}
        return cls(**{**values, "histogram": histogram})


def added(a: Any, b: Any) -> Any:
    """The sum of two numbers, or of two dictionaries of numbers by their keys."""
    if isinstance(a, dict):
        keys = sorted(a.keys() | b.keys())
        return {key: a.get(key, 0) + b.get(key, 0) for key in keys}
    return a + b


def total(parts: Sequence[Statistics]) -> Statistics:
    """The sum of the statistics of several texts."""
    return sum(parts, Statistics())


def text_behind(tokenizer: Any, before: Sequence[int], ids: Sequence[int], **how: Any) -> str:
    """The text of tokens behind others; `how` goes to the tokenizer.

    Many tokenizers leave the first space of a text away, where none is first.
    """

    def text_of(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), **how))

    near = before[-8:]
    first = text_of(near)
    whole = text_of([*near, *ids])
    # Half a character in front would take in what follows it.
    return whole[len(first) :] if whole.startswith(first) else text_of(ids)


@dataclass
class Row:
    """One text: prompt, answer so far, and what was counted."""

    index: int  # place of its prompt in the request
    text: list[int]  # prompt and answer
    prompt_length: int
    seed: int = 0
    reasons: list[int] = field(default_factory=list)  # of every answer token
    finish: str | None = None
    statistics: Statistics = field(default_factory=Statistics)
    generator: torch.Generator | None = None
    cost: float | None = None  # what a round costs this request now, 0 to 1; for the rule `wisv`
    memory: dict[str, Any] = field(default_factory=dict)  # of rules and guards, by their ids

    @property
    def prompt(self) -> list[int]:
        """The tokens in front of the answer."""
        return self.text[: self.prompt_length]

    @property
    def answer(self) -> list[int]:
        """The new tokens so far."""
        return self.text[self.prompt_length :]

    def room(self, max_new_tokens: int) -> int:
        """Tokens that may still be drafted: the target adds one of its own behind them."""
        return max_new_tokens - (len(self.text) - self.prompt_length) - 1

    def uniforms(self, num: int) -> Tensor:
        """`num` fresh numbers in (0, 1), the same for the same seed whatever the neighbours do."""
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.rand(num, generator=self.generator, dtype=torch.float64)
        return drawn.clamp(1e-12, 1 - 1e-12)

    def generation(self) -> Generation:
        """The finished answer."""
        assert self.finish is not None
        return Generation(self.answer, self.reasons, self.finish, self.statistics)


@dataclass(frozen=True)
class Generation:
    """One finished answer."""

    ids: list[int]  # new tokens, cut at the stop; an eos stays
    reasons: list[int]  # gistgate.core.block.Reason of every token
    finish: str  # "eos", "stop" or "length"
    statistics: Statistics


@dataclass(frozen=True)
class PrefixState:
    """What both models remember of one text: lets an answer be continued from any earlier token."""

    text: list[int]
    target: RowCache = NOTHING_READ
    draft: RowCache = NOTHING_READ  # where the drafter keeps none

    @property
    def num_bytes(self) -> int:
        """Memory held, in bytes."""
        return self.target.num_bytes + self.draft.num_bytes


def spend(rows: Sequence[Row], **seconds: float) -> None:
    """Share wall-clock seconds by part evenly among the rows of a batch."""
    for row in rows:
        spent = row.statistics.seconds
        for part, duration in seconds.items():
            spent[part] = spent.get(part, 0.0) + duration / len(rows)


@dataclass
class Usage:
    """How well slots were used, over rounds and requests."""

    busy: int = 0  # slots of all rounds that held an unfinished row
    available: int = 0  # slots of all rounds, whether or not the request had rows for all of them

    def count(self, busy: int, available: int) -> None:
        """Count one round."""
        self.busy += busy
        self.available += available


@dataclass(frozen=True)
class Slots:
    """The batch of a request: a finished row leaves its slot to one that waits."""

    number: int | None = None  # rows decoded at a time; None: all of the request
    progress: Callable[[int], object] = lambda _num: None  # called with 1 for every finished row
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        if self.number is not None and self.number < 1:
            raise UserError(
                f"A batch of {self.number} rows decodes nothing. Use a batch size of 1 or more."
            )

    def most(self, num_rows: int) -> int:
        """Rows of a request of `num_rows` that are decoded at a time."""
        return num_rows if self.number is None else min(self.number, num_rows)


@dataclass(frozen=True)
class Stop:
    """End of text, stop strings and a length limit, tested token by token inside a block."""

    max_new_tokens: int
    eos_ids: Collection[int] = ()  # they stay in the answer
    strings: Sequence[str] = ()  # the token that completes one stays in the answer
    tokenizer: PreTrainedTokenizerBase | None = None

    def cut(
        self, answer: Sequence[int], new: Sequence[int], before: Sequence[int] = ()
    ) -> tuple[int, str | None]:
        """How many `new` tokens stay behind `before` and `answer`, and why it ends: "eos", "stop",
        "length" or None.
        """
        room = self.max_new_tokens - len(answer)
        ends: list[tuple[int, str]] = []
        for place, token in enumerate(new):
            if token in self.eos_ids:
                ends.append((place + 1, "eos"))
                break
        if self.strings:
            ends += self._string_ends(answer, new[:room], before)
        if len(new) >= room:
            ends.append((room, "length"))
        return min(ends, key=lambda end: end[0], default=(len(new), None))

    def _string_ends(
        self, answer: Sequence[int], new: Sequence[int], before: Sequence[int]
    ) -> list[tuple[int, str]]:
        """How many tokens of `new` the first stop string takes; nothing where none is complete."""
        # A stop string of n bytes cannot reach further back than n tokens, and the answer so far
        # holds none.
        longest = max(len(string.encode(errors="surrogatepass")) for string in self.strings)
        tail = answer[-longest:]
        before = before if len(tail) == len(answer) else ()
        if self._has_stop([*tail, *new], before):
            for num in range(1, len(new) + 1):
                if self._has_stop([*tail, *new[:num]], before):
                    return [(num, "stop")]
        return []

    def _has_stop(self, ids: Sequence[int], before: Sequence[int]) -> bool:
        text = text_behind(self.tokenizer, before, ids, skip_special_tokens=False)
        return any(string in text for string in self.strings)


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends an answer: the tokenizer's eos and those of the model's generation
    settings.
    """
    listed = model.generation_config.eos_token_id if model.generation_config else None
    ids = {*listed} if isinstance(listed, list) else {listed}
    ids.add(tokenizer.eos_token_id)
    return sorted(int(token) for token in ids if token is not None)


# ---- What is refused before a request is decoded, each with one sentence.


def check_ids(models: Sequence[PreTrainedModel], prompts: Texts) -> None:
    """Refuse prompts with ids that a model has no embedding for, which a tokenizer with added
    tokens may give.
    """
    largest = min(len(model.get_input_embeddings().weight) for model in models) - 1
    for index, prompt in enumerate(prompts):
        for token in prompt:
            if not 0 <= token <= largest:
                raise UserError(
                    f"Prompt {index} holds the token id {token}, and the models know the ids 0 to"
                    f" {largest}. Use the tokenizer that belongs to them, or leave this token out."
                )


def check_rows(
    rows: int, seeds: Sequence[int] | None, costs: Sequence[float] | None = None
) -> None:
    """Refuse seeds and costs that are not one for each row, that no generator takes, or that are no
    shares.
    """
    for name, values in {"seeds": seeds, "costs": costs}.items():
        if values is not None and len(values) != rows:
            raise UserError(
                f"There are {len(values)} {name} for {rows} prompts. Give one for each."
            )
    for seed in seeds or ():
        if not -(2**63) <= seed < 2**64:
            raise UserError(f"The seed {seed} does not fit into 64 bits. Give a smaller one.")
    for cost in costs or ():
        if not 0 <= cost <= 1:
            raise UserError(
                f"A round costs {cost}, but costs are shares from 0 to 1. Divide by the largest."
            )


def check_prompts(
    models: Sequence[PreTrainedModel], lengths: Sequence[int], max_new_tokens: int
) -> None:
    """Refuse empty prompts and those that leave no room for the answer, by their lengths in
    tokens.
    """
    if 0 in lengths:
        raise UserError(
            f"Prompt {lengths.index(0)} is empty. Give at least one token, for instance the"
            " tokenizer's bos."
        )
    longest = max(lengths, default=0)
    for model in models:
        context = context_of(model.config.get_text_config())
        if context and longest + max_new_tokens > context:
            raise UserError(
                f"A prompt of {longest} tokens and an answer of up to {max_new_tokens} exceed the"
                f" context of {type(model).__name__}, {context} tokens. Shorten the prompt or lower"
                " max_new_tokens."
            )
