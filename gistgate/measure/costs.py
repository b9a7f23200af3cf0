"""What draft steps and verification cost here, from decoding a few answers in turns, plainly and
with several K.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gistgate.core.decoder import Decoder
from gistgate.core.progress import bar
from gistgate.core.request import Statistics, total
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.measure.speed import Prompts

TIMED = 2
"""Answers on which costs are measured."""
LONGEST = 48
"""Tokens that such an answer has at most."""
TURNS = 4
"""Turns that are taken at least, an even number."""
MAX_TURNS = 8
STABLE = 1.1
"""Ratio of the prices of a round by two halves of the turns, up to which no more turns are
taken."""

Turn = Mapping[tuple[int, int], Sequence[Statistics]]
"""By K (0: plain decoding) and limit of tokens: the statistics of every answer."""


def measure(
    decoder: Decoder,
    prompts: Prompts,
    blocks: Sequence[int],
    *,
    max_new_tokens: int,
    **request: Any,
) -> list[Costs]:
    """Costs by all turns and by either half of them, from decoding the first prompts plainly and
    with every K.
    """
    ways = {0: decoder.plain()}
    for block in blocks:
        ways[block] = decoder.strict(block)
    longest = min(max_new_tokens, LONGEST)
    turns: list[Turn] = []
    estimates: list[Costs] = []
    for number in bar(range(1, MAX_TURNS + 1), title="Turns to time", unit="turn"):
        turns.append(take_turn(ways, prompts[:TIMED], longest, request))
        if number < TURNS or number % 2:
            continue
        parts = (turns, turns[::2], turns[1::2])
        estimates = [costs_of(part, blocks, longest) for part in parts]
        if all(is_stable(estimates, block) for block in blocks):
            break
    return estimates


def machine_of(device: torch.device) -> str:
    """What computes, in words: of a processor the instructions that decide what wide reads cost."""
    if device.type != "cpu":
        return f"this device ({torch.get_device_module(device).get_device_name(device)})"
    instructions = torch.backends.cpu.get_cpu_capability()
    if instructions.startswith("AVX512"):
        has_amx = torch.cpu._is_amx_tile_supported()
        instructions += " with AMX" if has_amx else " without AMX"
    return f"this processor ({instructions})"


def take_turn(
    ways: Mapping[int, Decoder],
    prompts: Prompts,
    longest: int,
    request: Mapping[str, Any],
) -> Turn:
    """Decode the prompts in every way, as whole answers of `longest` tokens and up to K + 1
    tokens.
    """
    turn = {}
    for block, way in ways.items():
        for limit in (longest, block + 1):
            answers = [way.generate([ids], max_new_tokens=limit, **request) for ids in prompts]
            turn[block, limit] = [answer.statistics for (answer,) in answers]
    return turn


def is_stable(estimates: Sequence[Costs], block: int) -> bool:
    """Whether the estimates agree on the price of a round with K = `block`."""
    prices = [costs.verify[block] + block * costs.draft for costs in estimates]
    return max(prices) <= STABLE * min(prices)


def costs_of(turns: Sequence[Turn], blocks: Sequence[int], longest: int) -> Costs:
    """Costs from the rounds of these turns that read no prompt."""
    plain = later_rounds(turns, 0, longest)
    step = plain.seconds["total"] / plain.forwards
    verify = {}
    least = math.inf
    draft_seconds = 0.0
    draft_steps = 0
    for block in sorted(blocks, reverse=True):
        rounds = later_rounds(turns, block, longest)
        # To read fewer tokens takes no more time.
        least = min(least, rounds.seconds["verify"] / rounds.forwards / step)
        verify[block] = least
        draft_seconds += rounds.seconds["draft"]
        draft_steps += rounds.draft_forwards or block * rounds.forwards
    return Costs(step, draft_seconds / draft_steps / step, verify)


def later_rounds(turns: Sequence[Turn], block: int, longest: int) -> Statistics:
    """The rounds behind the first K + 1 tokens of each answer, which include reading the prompt."""
    whole = least_times([turn[block, longest] for turn in turns])
    begun = least_times([turn[block, block + 1] for turn in turns])
    if whole.forwards <= begun.forwards:
        raise UserError(
            "Every answer ended in its first round, and no later one can be timed. Pass other"
            " prompts."
        )
    seconds = {
        part: max(time - begun.seconds.get(part, 0.0), 1e-9) for part, time in whole.seconds.items()
    }
    return Statistics(
        whole.forwards - begun.forwards,
        whole.draft_forwards - begun.draft_forwards,
        seconds=seconds,
    )


def least_times(turns: Sequence[Sequence[Statistics]]) -> Statistics:
    """Sums over answers, each with the least time of each part over the turns: other programs only
    add time.
    """
    answers = []
    for first, *later in zip(*turns, strict=True):
        seconds = dict(first.seconds)
        for run in later:
            for part in seconds:
                seconds[part] = min(seconds[part], run.seconds.get(part, 0.0))
        answers.append(Statistics(first.forwards, first.draft_forwards, seconds=seconds))
    return total(answers)
