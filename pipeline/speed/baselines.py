"""transformers' own speculation at its best: the K, or its defaults, that is fastest on prompts that nobody times.

A baseline at a K that suits another method would flatter ours, and a K chosen on the timed prompts would flatter it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.speed.clock import DEFAULTS, Contender, Models, theirs
from pipeline.speed.race import race

KS = (2, 3, 4, 6, 8, 10)
"""Block lengths that are tried; prompt lookup of transformers proposes 10 tokens where it is told nothing."""
ASSISTED, LOOKUP = "assisted", "prompt-lookup"


def assisted(pair: Models, request: dict[str, Any]) -> list[Contender]:
    """Assisted generation at every K with full blocks, and with transformers' own length and confidence threshold."""
    return [Contender(ASSISTED, theirs(pair, request, k), k) for k in (*KS, DEFAULTS)]


def prompt_lookup(pair: Models, request: dict[str, Any]) -> list[Contender]:
    """Prompt lookup at every K."""
    return [Contender(LOOKUP, theirs(pair, request, prompt_lookup_num_tokens=k), k) for k in KS]


def fastest(variants: Sequence[Contender], development: Sequence[list[int]]) -> Contender:
    """The variant that decodes these development prompts in the least time, all of them side by side."""
    named = [Contender(str(place), one.decode, one.block) for place, one in enumerate(variants)]
    times = race(named, [[ids] for ids in development])
    spent = [sum(seconds for (seconds,) in times[one.name]["seconds"]) for one in named]
    return variants[spent.index(min(spent))]


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
