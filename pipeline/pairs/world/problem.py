"""A problem: who, what, how many, which operations. Its arithmetic decides the answer, all else is ornament."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from pipeline.pairs.world import lexicon
from pipeline.pairs.world.params import WorldParams

OPERATIONS = ("gain", "lose", "double", "triple")
PARTS = {"corpus": range(0, 12), "train": range(12, 17), "test": range(17, 20)}
"""Twentieths of all arithmetic cores that belong to the models' corpora, the task's training and its test file."""


@dataclass(frozen=True)
class Step:
    """One operation; `amount` counts for gain and lose only."""

    operation: str
    amount: int
    day: str

    def apply(self, total: int) -> int:
        """The total after this step."""
        return {
            "gain": total + self.amount,
            "lose": total - self.amount,
            "double": total * 2,
            "triple": total * 3,
        }[self.operation]


@dataclass(frozen=True)
class Problem:
    """Everything that a question or a solution can mention."""

    name: str
    pronoun: str
    possessive: str
    friend: str
    items: str
    start: int
    steps: tuple[Step, ...]
    colour: str
    container: str
    other_colour: str
    other_container: str
    place: str

    @property
    def totals(self) -> list[int]:
        """Totals after every step."""
        totals, total = [], self.start
        for step in self.steps:
            total = step.apply(total)
            totals.append(total)
        return totals

    @property
    def answer(self) -> int:
        """The last total."""
        return self.totals[-1]


def core(start: int, steps: list[tuple[str, int]]) -> str:
    """Normal form of an arithmetic, such as `24 +5 *2`: the start, then each operation with its number."""
    sign = {"gain": "+{}", "lose": "-{}", "double": "*2", "triple": "*3"}
    return " ".join([str(start), *(sign[operation].format(amount) for operation, amount in steps)])


def part_of(core: str) -> str:
    """The part that a core belongs to. A fixed hash decides, so parts are disjoint for every seed and setting."""
    twentieth = int.from_bytes(hashlib.sha256(core.encode()).digest()[:4], "big") % 20
    return next(part for part, range_ in PARTS.items() if twentieth in range_)


Arithmetic = tuple[int, list[tuple[str, int]]]
"""A start, then each operation with its number."""


def draw_arithmetic(params: WorldParams, part: str, rng: random.Random, num_steps: int) -> Arithmetic:
    """Draw a start and operations whose totals stay within the world's bounds and whose core belongs to `part`."""
    while True:
        start = rng.randint(*params.numbers)
        total, steps = start, []
        for _ in range(num_steps):
            operation, amount = rng.choice(OPERATIONS), rng.randint(2, 9)
            total = Step(operation, amount, "").apply(total)
            if not 1 <= total <= params.max_total:
                break
            steps.append((operation, amount))
        if len(steps) == num_steps and part_of(core(start, steps)) == part:
            return start, steps


def draw_problem(params: WorldParams, part: str, rng: random.Random) -> Problem:
    """Draw one problem of `part`."""
    start, steps = draw_arithmetic(params, part, rng, rng.randint(params.min_steps, params.max_steps))
    (name, pronoun, possessive), (friend, _, _) = rng.sample(lexicon.PEOPLE, 2)
    colour, other_colour = rng.sample(lexicon.COLOURS, 2)
    container, other_container = rng.sample(lexicon.CONTAINERS, 2)
    days = rng.sample(lexicon.DAYS, len(steps))
    return Problem(
        name=name,
        pronoun=pronoun,
        possessive=possessive,
        friend=friend,
        items=rng.choice(lexicon.ITEMS),
        start=start,
        steps=tuple(Step(operation, amount, day) for (operation, amount), day in zip(steps, days, strict=True)),
        colour=colour,
        container=container,
        other_colour=other_colour,
        other_container=other_container,
        place=rng.choice(lexicon.PLACES),
    )
