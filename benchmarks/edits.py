"""Requests to repeat a Python file with one change, made on the spot: most of the answer stands in the prompt."""

from __future__ import annotations

from random import Random

VERBS = ("count", "merge", "scale", "filter", "sum", "rank", "split", "clean", "group", "shift", "round", "index")
NOUNS = ("orders", "prices", "rooms", "visits", "tokens", "scores", "weights", "dates", "paths", "lines", "cells")
BODIES = (
    "    kept = []\n    for one in {noun}:\n        if one > {number}:\n            kept.append(one)\n    return kept",
    "    total = {number}\n    for one in {noun}:\n        total += one\n    return total",
    "    limit = {number}\n    return sorted({noun})[:limit]",
    "    if not {noun}:\n        return {number}\n    return max({noun}) - min({noun})",
)


def edits(num: int, functions: int, seed: int) -> list[str]:
    """So many requests about files of so many functions; another seed gives other files."""
    random = Random(seed)
    return [edit(random, functions) for _ in range(num)]


def edit(random: Random, functions: int) -> str:
    """One file and the request to repeat it with one function renamed."""
    nouns = [random.choice(NOUNS) for _ in range(functions)]
    names = [f"{random.choice(VERBS)}_{noun}_{place}" for place, noun in enumerate(nouns)]
    file = "\n\n\n".join(function(random, name, noun) for name, noun in zip(names, nouns, strict=True))
    old, verb = random.choice(names), random.choice(VERBS)
    return (
        f"```python\n{file}\n```\n\nRepeat this whole file. Rename the function `{old}` to `{verb}_all_{old}` and "
        "change nothing else. Answer with the file alone."
    )


def function(random: Random, name: str, noun: str) -> str:
    """The text of one function."""
    body = random.choice(BODIES).format(noun=noun, number=random.randrange(100))
    return f"def {name}({noun}):\n{body}"
