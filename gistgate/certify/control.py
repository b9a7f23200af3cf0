"""A control: the baseline answers some prompts again, at another time and another concurrency, so
that a reader sees how far it differs from itself.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from gistgate.certify.answers import Answered, Pair
from gistgate.certify.claims import Claim
from gistgate.certify.comparison import Comparison
from gistgate.certify.play import played, request_of
from gistgate.core.utils import UserError

ELSEWHERE = 4
"""Requests under way in the control of a run that had one at a time."""


async def controlled(comparison: Comparison, count: int) -> dict[str, Any]:
    """What the baseline does to itself and the candidate to it, on the first prompts of a run, as
    it stands on a card.
    """
    endpoints = comparison.endpoints
    prompts = comparison.answered[:count]
    concurrent = 1 if endpoints.concurrent > 1 else ELSEWHERE
    free = asyncio.Semaphore(concurrent)

    async def asked_again(prompt: Answered) -> Answered:
        request = request_of(prompt.task, prompt.doc)
        pairs: list[Pair] = []
        for before, sampling in zip(prompt.strict, endpoints.samplings(request), strict=True):
            async with free:
                pairs.append((before, await played(endpoints.strict, request, sampling)))
        return Answered(prompt.task, prompt.doc, await comparison.judged(request, pairs))

    try:
        repeated = await asyncio.gather(*(asked_again(prompt) for prompt in prompts))
    except UserError as error:
        return {"prompts": 0, "sentence": f"the baseline did not answer again: {error}"}
    baseline = figures(comparison.claim, repeated)
    candidate = figures(comparison.claim, prompts)
    entries = {"prompts": len(prompts), "concurrent": concurrent}
    return {
        **entries,
        "baseline": baseline,
        "candidate": candidate,
        "sentence": sentence(comparison.claim, entries, baseline, candidate),
    }


def figures(claim: Claim, prompts: Sequence[Answered]) -> dict[str, Any]:
    """How often the second answers of prompts are in other words or worse, and what they lose."""
    pairs_N2 = np.array([claim.measured(prompt) for prompt in prompts])
    return {
        "differing": sum(prompt.is_differing for prompt in prompts),
        "worse": int((claim.harm(pairs_N2) > 0).sum()),
        "loss": claim.loss(pairs_N2),
    }


def sentence(
    claim: Claim, entries: dict[str, int], baseline: dict[str, Any], candidate: dict[str, Any]
) -> str:
    """The control in words."""
    pace = "one at a time" if entries["concurrent"] == 1 else f"{entries['concurrent']} at a time"
    text = (
        f"Control: the baseline answered {entries['prompts']} of the prompts again, {pace}."
        f" From its first answers {figures_in_words(claim, baseline)}; of the candidate's answers"
        f" {figures_in_words(claim, candidate)} from the baseline's."
    )
    if baseline["differing"]:
        text += (
            " The baseline does not repeat its own answers, so not all that differs is due to the"
            " candidate."
        )
    return text


def figures_in_words(claim: Claim, side: dict[str, Any]) -> str:
    """The figures of one side in words."""
    loss, worse, _ = claim.words
    lost = f"{side['worse']} {worse}, {loss} {100 * side['loss']:.2f} {claim.unit}"
    return f"{side['differing']} differ ({lost})"
