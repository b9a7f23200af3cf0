"""transformers' own speculation at its best: the K, or its defaults, that is fastest on prompts that nobody times.

A baseline at a K that suits another method would flatter ours, and a K chosen on the timed prompts would flatter it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gistgate.errors import UserError
from pipeline.speed.clock import DEFAULTS, Contender, Models, theirs
from pipeline.speed.race import lap, working

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
