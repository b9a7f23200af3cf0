"""Small requests for Python functions with unit tests: documents of the task `python-functions`, without a download.

A function selects some elements of a list, changes each of them and combines the results. The tests come from the same
steps, computed here; programs of a model run elsewhere. Equal seeds give equal documents.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import prod
from pathlib import Path
from typing import Any

from gistgate.files import write_json_lines

SIZES = {"train": 1200, "test": 400}
"""Documents of each file."""
TESTS = 5
"""Unit tests of a document; the first is the example in its request."""
LETTERS = "abdegilmnorstu"
WORDS = (
    "amber", "anna", "apple", "arrow", "bread", "candle", "civic", "cloud", "eagle", "ember", "field", "garden",
    "glass", "harbor", "island", "kayak", "lemon", "level", "linen", "maple", "meadow", "mirror", "noon", "ocean",
    "olive", "orange", "otter", "paper", "pebble", "radar", "river", "rotor", "silver", "stone", "summer", "tulip",
    "umbrella", "valley", "violin", "window",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a function: how it is asked for, its part of the function's name, and what it does."""

    said: str
    name: str
    do: Callable[[Any], Any]


def numbers_selected(draw: random.Random) -> Step:
    """Which numbers stay."""
    n, low = draw.randint(2, 7), draw.randint(-4, 15)
    return draw.choice(
        [
            Step(f"that are divisible by {n}", f"divisible_by_{n}", lambda x: x % n == 0),
            Step(f"that are not divisible by {n}", f"not_divisible_by_{n}", lambda x: x % n != 0),
            Step(f"that are greater than {low}", "large", lambda x: x > low),
            Step(f"that are smaller than {low}", "small", lambda x: x < low),
            Step("that are odd", "odd", lambda x: x % 2 == 1),
            Step("that are negative", "negative", lambda x: x < 0),
            Step(f"whose absolute value is at most {low + 6}", "near_zero", lambda x: abs(x) <= low + 6),
        ]
    )


def number_changed(draw: random.Random) -> Step:
    """What becomes of each number."""
    n = draw.randint(2, 9)
    return draw.choice(
        [
            Step("squares each of them", "squares", lambda x: x * x),
            Step(f"multiplies each of them by {n}", f"times_{n}", lambda x: x * n),
            Step(f"adds {n} to each of them", f"plus_{n}", lambda x: x + n),
            Step(f"subtracts each of them from {n}", f"from_{n}", lambda x: n - x),
            Step("takes the absolute value of each of them", "absolute", abs),
            Step("replaces each of them by the sum of its decimal digits", "digit_sums", digit_sum),
            Step(f"takes the remainder of each of them on division by {n} (as % does)", f"mod_{n}", lambda x: x % n),
        ]
    )


def numbers_combined(draw: random.Random) -> Step:
    """What is returned."""
    return draw.choice(
        [
            Step("their sum", "sum", sum),
            Step("their product (1 if there is none)", "product", prod),
            Step("the largest of them (0 if there is none)", "max", lambda xs: max(xs, default=0)),
            Step("the smallest of them (0 if there is none)", "min", lambda xs: min(xs, default=0)),
            Step("the largest minus the smallest (0 if there is none)", "spread", spread),
            Step("a list of them in ascending order", "sorted", sorted),
            Step("a list of them without repetitions, in order of first appearance", "unique", unique),
            Step("a list of their running totals", "totals", lambda xs: list(accumulate(xs))),
            Step("a text of them joined by commas", "text", lambda xs: ",".join(map(str, xs))),
        ]
    )


def words_selected(draw: random.Random) -> Step:
    """Which words stay."""
    n, letter = draw.randint(3, 6), draw.choice(LETTERS)
    return draw.choice(
        [
            Step(f"with more than {n} letters", f"longer_than_{n}", lambda w: len(w) > n),
            Step(f"that contain the letter '{letter}'", f"with_{letter}", lambda w: letter in w),
            Step(f"that do not contain the letter '{letter}'", f"without_{letter}", lambda w: letter not in w),
            Step("that begin with a vowel", "vowel", lambda w: w[0] in "aeiou"),
            Step("that read the same backwards", "palindromes", lambda w: w == w[::-1]),
        ]
    )


def word_changed(draw: random.Random) -> Step:
    """What becomes of each word."""
    letter = draw.choice(LETTERS)
    return draw.choice(
        [
            Step("writes each of them in capitals", "capitals", str.upper),
            Step("reverses each of them", "reversed", lambda w: w[::-1]),
            Step("takes the last letter of each of them", "last_letters", lambda w: w[-1]),
            Step(f"removes every '{letter}' from each of them", f"no_{letter}", lambda w: w.replace(letter, "")),
            Step("writes each of them twice in a row", "doubled", lambda w: w + w),
        ]
    )


def words_combined(draw: random.Random) -> Step:
    """What is returned."""
    return draw.choice(
        [
            Step("a list of them in alphabetical order", "sorted", sorted),
            Step("a list of them in reverse order", "backwards", lambda ws: ws[::-1]),
            Step("a text of them joined by hyphens", "joined", "-".join),
            Step("the number of their letters altogether", "letters", lambda ws: sum(map(len, ws))),
            Step("a list of them without repetitions, in order of first appearance", "unique", unique),
        ]
    )


KINDS: dict[str, tuple[tuple[Callable[[random.Random], Step], ...], Callable[[random.Random], list[Any]]]] = {
    "numbers": (
        (numbers_selected, number_changed, numbers_combined),
        lambda draw: [draw.randint(-12, 30) for _ in range(draw.randint(4, 8))],
    ),
    "words": (
        (words_selected, word_changed, words_combined),
        lambda draw: [draw.choice(WORDS) for _ in range(draw.randint(3, 7))],
    ),
}
"""The steps of a function and the lists that it is tested on, by the name of its argument."""
REQUESTS = (
    "Write a Python function `{name}({argument})` that selects the {argument} {selected}, {changed}, and returns "
    "{combined}.",
    "Write the Python function `{name}`. It gets a list `{argument}`, keeps those {selected}, {changed}, and returns "
    "{combined}.",
)


def digit_sum(number: int) -> int:
    """The sum of a number's decimal digits."""
    return sum(map(int, str(abs(number))))


def spread(values: Sequence[int]) -> int:
    """The largest minus the smallest."""
    return max(values) - min(values) if values else 0


def unique(values: Sequence[Any]) -> list[Any]:
    """The values without repetitions."""
    return list(dict.fromkeys(values))


def documents(draw: random.Random) -> Iterator[dict[str, str]]:
    """Documents without end, no function twice."""
    seen: set[tuple[str, ...]] = set()
    while True:
        argument = draw.choice(list(KINDS))
        steps = [maker(draw) for maker in KINDS[argument][0]]
        key = tuple(step.said for step in steps)
        if key not in seen:
            seen.add(key)
            yield document(draw, argument, *steps)


def document(draw: random.Random, argument: str, selected: Step, changed: Step, combined: Step) -> dict[str, str]:
    """The request for one function, its unit tests and its name."""
    name = f"{combined.name}_{changed.name}_{selected.name}"
    inputs = [*(KINDS[argument][1](draw) for _ in range(TESTS - 1)), []]
    calls = [f"{name}({given!r})" for given in inputs]
    values = [combined.do([changed.do(one) for one in given if selected.do(one)]) for given in inputs]
    said = {"selected": selected.said, "changed": changed.said, "combined": combined.said}
    request = draw.choice(REQUESTS).format(name=name, argument=argument, **said)
    return {
        "prompt": f"{request}\nExample: {calls[0]} == {values[0]!r}",
        "tests": "\n".join(f"assert {call} == {value!r}" for call, value in zip(calls, values, strict=True)),
        "entry_point": name,
    }


def write_functions(seed: int, folder: Path) -> None:
    """Write train.jsonl and test.jsonl, which share no request."""
    supply = documents(random.Random(f"{seed} functions"))
    for split, size in SIZES.items():
        write_json_lines(folder / f"{split}.jsonl", list(islice(supply, size)))
