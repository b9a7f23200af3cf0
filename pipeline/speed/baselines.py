"""transformers' own speculation at its best: the K, or its defaults, that is fastest on prompts that nobody times.

A baseline at a K that suits another method would flatter ours, and a K chosen on the timed prompts would flatter it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.speed.clock import DEFAULTS, Contender, Models, theirs
from pipeline.speed.race import lap

KS = (2, 3, 4, 6, 8, 10)
"""Block lengths that are tried; prompt lookup of transformers proposes 10 tokens where it is told nothing."""
LOST = 1.25
"""A variant that takes so many times the least time is not tried any further: prompts decide less than K does."""
ASSISTED, LOOKUP = "assisted", "prompt-lookup"


def assisted(pair: Models, request: dict[str, Any]) -> list[Contender]:
    """Assisted generation at every K with full blocks, and with transformers' own length and confidence threshold."""
    return [Contender(ASSISTED, theirs(pair, request, k), k) for k in (*KS, DEFAULTS)]


def prompt_lookup(pair: Models, request: dict[str, Any]) -> list[Contender]:
    """Prompt lookup at every K."""
    return [Contender(LOOKUP, theirs(pair, request, prompt_lookup_num_tokens=k), k) for k in KS]


def fastest(variants: Sequence[Contender], development: Sequence[list[int]]) -> Contender:
    """The variant that decodes these development prompts in the least time, all of them side by side.

    One that has taken LOST times the least so far does not decode the prompts that remain.
    """
    left = [Contender(str(place), one.decode, one.block) for place, one in enumerate(variants)]
    for one in left:  # the first call of everything pays for what later calls find done
        one.decode(development[:1])
    spent = {one.name: 0.0 for one in left}
    for turn, ids in enumerate(development):
        for name, (run,) in lap(left, [ids], [turn]).items():
            spent[name] += run.seconds
        least = min(spent[one.name] for one in left)
        left = [one for one in left if spent[one.name] <= LOST * least]
    return variants[int(min(left, key=lambda one: spent[one.name]).name)]


def chosen(pair: Models, request: dict[str, Any], development: Sequence[list[int]]) -> dict[str, int]:
    """By name the K of transformers' speculation that is fastest on these development prompts.

    A pair without a draft model has prompt lookup alone.
    """
    every = [prompt_lookup] if pair.draft is None else [assisted, prompt_lookup]
    best = (fastest(variants(pair, request), development) for variants in every)
    return {one.name: one.block for one in best}


def at(pair: Models, request: dict[str, Any], blocks: Mapping[str, int]) -> list[Contender]:
    """Both at these K, by name."""
    every = [*assisted(pair, request), *prompt_lookup(pair, request)]
    return [one for one in every if blocks.get(one.name) == one.block]
