"""Whether speculation and a gate can pay, before hours are spent on labels, and which limit of
tokens answers need. With c the cost of a draft step, v(K) that of verifying K + 1 tokens, both in
target steps, speculation is tau(K) / (v(K) + K c) times as fast as plain decoding (arXiv
2211.17192); a gate can raise tau to K + 1 at most."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from gistgate.core.batches import decode_all
from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Row, Statistics, total
from gistgate.core.session import Observer
from gistgate.core.utils import UserError
from gistgate.coverage.choose import BLOCK
from gistgate.drafters.adaptive import Costs
from gistgate.rules import make_rule

BLOCKS = (
    2,
    4,
    6,
    8,
    10,
    12,
)  # K of the table; costs are measured at the first, at `BLOCK` and at the last
RATIOS = (0.9, 0.5, 0.2)  # settings of `prob-ratio`; the first one swaps near ties alone
AT_ONCE = 8  # answers that are decoded together
WORTH = 1.05  # speed against plain decoding below which speculation is not worth its memory
# share of the mismatches that a good gate passes: the target's next words survive 0.3 to 0.7 of
# them
PASSES = 0.5
# how many times as fast as lossless decoding such a gate has to be, to be worth its labels
ROOM = 1.35
SAVED = 1.1  # how many times fewer target forwards the best loose answers have to need
SOLVED = 0.5  # score of the target below which changed words flip answers both ways
FLIPS = 0.1  # mean squared change of scores above which a budget takes thousands of prompts
SHORT = 16  # mean length of answers, in tokens, up to which there is nothing to draft
TIMED = 2  # answers on which costs are measured, and their length in tokens
LONGEST = 48
TURNS = 4  # turns of that, and how many there may be
MOST = 8
# ratio of the prices of a round by two halves of the turns, up to which no more turns are taken
STABLE = 1.1
# proposed limit to the longest answer: one in n + 1 further answers exceeds the longest of n
LONGER = 1.5
STEP = 10  # a proposed limit is a multiple of so many tokens
NEXT = 4  # the limit to measure with where too many answers are cut, as a multiple of the last one


@dataclass(frozen=True)
class Outlook:
    """What one K promises. Speeds are multiples of that of plain decoding."""

    block: int  # K, in tokens
    tau: float  # mean accepted length of strict verification, the target's own token included
    strict: float  # speed of strict verification
    half: float  # speed if `PASSES` of the mismatches were accepted
    ceiling: float  # speed if every draft were accepted: no gate can be faster


def outlook(costs: Costs, block: int, tau: float, half: float) -> Outlook:
    """What K = `block` promises at these mean accepted lengths."""
    price = costs.verification(block) + block * costs.draft
    return Outlook(block, tau, tau / price, half / price, (block + 1) / price)


def mean_length(histogram: Mapping[int, int], block: int) -> float:
    """tau at K = `block`, had the drafts of a strict run with at least as large a K been cut
    there.
    """
    return sum(num * (min(length, block) + 1) for length, num in histogram.items()) / sum(
        histogram.values()
    )


class Mismatches(Observer):
    """Counts the rounds which kept fewer tokens than were drafted, and what a block would keep with
    `PASSES`.
    """

    def __init__(self, block: int) -> None:
        self.number = 0
        self._rounds = 0
        self._kept = torch.zeros(block)

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        self.number += int((acceptance.length < block.valid.sum(-1)).sum())
        within = (
            block.valid
            if block.ends is None
            else block.valid & ~torch.isin(block.draft_ids, block.ends)
        )
        kept_K = (torch.where(block.strict, 1.0, PASSES) * within).cumprod(-1).sum(0).cpu()
        self._kept[: len(kept_K)] += kept_K
        self._rounds += len(within)

    def half(self, block: int) -> float:
        """tau at K = `block` if every mismatch were accepted with the chance `PASSES`."""
        return 1 + float(self._kept[:block].sum()) / self._rounds


def measure(
    decoder: Decoder, prompts: Sequence[Sequence[int]], blocks: Sequence[int], **request: Any
) -> list[Costs]:
    """Costs by all turns and by either half of them, from decoding the first prompts plainly and
    with every K.
    """
    ways = {0: decoder.plain(), **{block: decoder.strict(block) for block in blocks}}
    longest = min(request.pop("max_new_tokens"), LONGEST)
    timed = prompts[:TIMED]
    turns = list[dict[tuple[int, int], list[Statistics]]]()
    while True:
        turns.append(
            {
                (block, most): [
                    way.generate([ids], max_new_tokens=most, **request)[0].statistics
                    for ids in timed
                ]
                for block, way in ways.items()
                for most in (longest, block + 1)
            }
        )
        if len(turns) >= TURNS and not len(turns) % 2:
            found = [costs_of(some, blocks, longest) for some in (turns, turns[::2], turns[1::2])]
            prices = [[one.verify[block] + block * one.draft for one in found] for block in blocks]
            if len(turns) >= MOST or all(max(some) <= STABLE * min(some) for some in prices):
                return found


def costs_of(
    turns: Sequence[Mapping[Any, Sequence[Statistics]]], blocks: Sequence[int], longest: int
) -> Costs:
    """Costs from the rounds behind the first K + 1 tokens of each answer, which include reading the
    prompt.
    """
    later = {}
    for block in (0, *blocks):
        runs = ([turn[block, most] for turn in turns] for most in (longest, block + 1))
        whole, begun = (total(list(map(fastest, zip(*some, strict=True)))) for some in runs)
        if whole.forwards <= begun.forwards:
            raise UserError(
                "Every answer ended in its first round, and no later one can be timed. Pass other"
                " prompts."
            )
        spent = {
            part: max(time - begun.seconds.get(part, 0.0), 1e-9)
            for part, time in whole.seconds.items()
        }
        counts = whole.forwards - begun.forwards, whole.draft_forwards - begun.draft_forwards
        later[block] = Statistics(*counts, seconds=spent)
    plain = later.pop(0)
    verify = {}
    least = math.inf
    step = plain.seconds["total"] / plain.forwards
    for block, done in sorted(
        later.items(), reverse=True
    ):  # to read fewer tokens takes no more time
        least = verify[block] = min(least, done.seconds["verify"] / done.forwards / step)
    drafted = sum(done.draft_forwards or block * done.forwards for block, done in later.items())
    return Costs(
        step, sum(done.seconds["draft"] for done in later.values()) / drafted / step, verify
    )


def fastest(turns: Sequence[Statistics]) -> Statistics:
    """What several runs of one answer count, with the least time of each part: other programs only
    add time.
    """
    parts = {part: min(run.seconds.get(part, 0.0) for run in turns) for part in turns[0].seconds}
    return Statistics(turns[0].forwards, turns[0].draft_forwards, seconds=parts)


def lengths_of(answers: Sequence[Generation], limit: int) -> dict[str, int]:
    """How many answers there are, how many the limit of tokens cut, and the longest of the others
    (0: none).
    """
    ended = [len(answer.ids) for answer in answers if answer.finish != "length"]
    return {
        "answers": len(answers),
        "cut": len(answers) - len(ended),
        "longest": max(ended, default=0),
        "limit": limit,
    }


def limit_advice(answers: int, cut: int, longest: int, limit: int) -> str:
    """Which limit these lengths ask for, or how to find it, in a sentence or two."""
    enough = (
        math.ceil(LONGER * longest / STEP) * STEP
    )  # leaves room behind the longest that ended before it
    reached = f"{cut or 'None'} of {answers} answers reached the limit of {limit} tokens"
    most_end = not cut or (2 * cut < answers and enough <= limit)  # and far below it
    if not longest or not most_end:
        return (
            f"{reached}, so that the length of whole answers is not known. Before you set a limit"
            f" for a task, ask again with --max-new-tokens {NEXT * limit}, or with what the context"
            " leaves behind the prompt, and with --stop where a text ends the task's answers."
        )
    others = "and may never end; the longest of the others has" if cut else "and the longest has"
    return (
        f"{reached} {others} {longest}. A limit of {enough} tokens leaves room for further answers"
        " of this kind."
    )


@dataclass(frozen=True)
class Change:
    """What one setting of `prob-ratio` makes of the answers. The last four entries are None without
    a task.
    """

    r: float  # the setting; 1 is strict
    tau: float
    tokens: float  # mean length of an answer
    forwards: float  # target forwards of a mean answer
    changed: float  # share of the answers that have other tokens than the strict ones
    score: float | None = None
    lost: int | None = None  # answers that score less than the strict ones
    gained: int | None = None  # and more
    square: float | None = None  # mean squared change of the score


def change(
    r: float, tau: float, strict: Sequence[list[int]], ids: Sequence[list[int]], scores: Any
) -> Change:
    """What a setting with this tau made of the strict answers; `scores` is that of `examine`."""
    num = len(ids)
    pairs = list(zip(strict, ids, strict=True))
    scored = list[Any]()
    if scores is not None:
        both = [(scores(at, a), scores(at, b)) for at, (a, b) in enumerate(pairs)]
        scored = [
            sum(b for _, b in both) / num,
            sum(a > b for a, b in both),
            sum(a < b for a, b in both),
        ]
        scored.append(sum((a - b) ** 2 for a, b in both) / num)
    tokens = sum(map(len, ids)) / num
    return Change(r, tau, tokens, tokens / tau, sum(a != b for a, b in pairs) / num, *scored)


@dataclass(frozen=True)
class Findings:
    """What some prompts show of a pair."""

    costs: Sequence[Costs]  # as `measure` gives them; none where answers are too short
    outlooks: Sequence[Sequence[Outlook]]  # by costs, and by K
    changes: Sequence[Change]  # strict decoding, then each of `RATIOS`
    agreement: float  # share of the judged draft tokens that are the target's own
    labels: float  # mismatches of one prompt
    lengths: Mapping[str, int]  # those of `lengths_of`


def examine(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    scores: Callable[[int, list[int]], float] | None,
    **request: Any,
) -> Findings:
    """Decode the prompts strictly and at each of `RATIOS`; `scores` judges the answer to the prompt
    of a place.
    """
    if not prompts or decoder.drafter is None:
        raise UserError(
            "Doctor measures on prompts and with a drafter. Pass at least one prompt and a draft."
        )
    seen = Mismatches(BLOCKS[-1])
    blocks = (BLOCKS[0], BLOCK, BLOCKS[-1])
    loose = (decoder.strict(BLOCK).having(rule=make_rule("prob-ratio", r=r)) for r in RATIOS)
    ways = [decoder.strict(BLOCKS[-1]).having(observer=seen), *loose]
    with tqdm(total=len(prompts) * len(ways), desc="Answers", unit="answer", disable=None) as shown:
        done = [
            decode_all(way, prompts, batch_size=AT_ONCE, progress=shown.update, **request)
            for way in ways
        ]
    counted, *counts = (total([one.statistics for one in answers]) for answers in done)
    strict, *looser = ([one.ids for one in answers] for answers in done)
    taus = {block: mean_length(counted.histogram, block) for block in BLOCKS}
    more = zip(RATIOS, (one.mean_accepted_length for one in counts), looser, strict=True)
    changes = [
        change(r, tau, strict, ids, scores) for r, tau, ids in [(1, taus[BLOCK], strict), *more]
    ]
    timed = [prompts[at] for at in sorted(range(len(prompts)), key=lambda at: -len(strict[at]))]
    costs = measure(decoder, timed, blocks, **request) if changes[0].tokens > SHORT else []
    outlooks = [
        [outlook(one, block, tau, seen.half(block)) for block, tau in taus.items()] for one in costs
    ]
    agreement = counted.strict / (counted.strict + seen.number)
    lengths = lengths_of(done[0], request["max_new_tokens"])
    return Findings(costs, outlooks, changes, agreement, seen.number / len(prompts), lengths)


def plan(found: Findings, budget: float, confidence: float) -> str:
    """How many prompts a budget needs, in a sentence; with a task alone."""
    from gistgate.certificates.planning import needed_for  # scipy comes with an extra

    one = found.changes[len(found.changes) // 2]
    square = one.square or 0.0
    n = found.lengths["answers"]
    need = needed_for(
        budget, confidence, square, ternary=n * square == (one.lost or 0) + (one.gained or 0)
    )
    return (
        f"A budget of {budget:.2%} at {confidence:.0%} confidence needs about {need or 'too many'}"
        f" calibration prompts if scores change as at r = {one.r:g} and nothing is lost on average;"
        " twice as many to be safe."
    )


def ranged(values: Sequence[float]) -> tuple[str, float, float]:
    """A figure of all turns in words, and its range over both halves of them."""
    return f"{values[0]:.2f} [{min(values):.2f}, {max(values):.2f}]", min(values), max(values)


def verdict(found: Findings) -> tuple[bool | None, str]:
    """Whether a gate can pay, None where costs are too noisy to say; and which K suits strict
    decoding, and why.
    """
    strict, *looser = found.changes
    middle = looser[len(looser) // 2]
    saved = max(strict.forwards / one.forwards for one in looser)
    if strict.tokens <= SHORT:
        return (
            False,
            (
                f"No: answers are too short to draft, {strict.tokens:.1f} tokens on average;"
                f" {SHORT} are too few."
            ),
        )
    fastest = [max(some, key=lambda one: one.strict) for some in found.outlooks]
    speed, *_ = ranged([one.strict for one in fastest])
    ceiling, _, most = ranged([max(one.ceiling for one in some) for some in found.outlooks])
    gains = [
        max(one.half for one in some) / max(1.0, best.strict)
        for some, best in zip(found.outlooks, fastest)
    ]
    room, little, much = ranged(gains)
    kept = (
        f"strict decoding keeps {strict.tau:.1f} of {BLOCK + 1} tokens (K {BLOCK}, agreement"
        f" {found.agreement:.2f})"
    )
    gate = (
        f"a gate that passes half of the mismatches would be {room} times as fast as decoding"
        " without loss"
    )
    drafts = (
        f"with every draft token accepted, speculation would be {ceiling} times as fast as plain"
        " decoding"
    )
    fewer = f"loose answers need at best {saved:.2f} times fewer target forwards"
    blocks = " or ".join(sorted({str(one.block) for one in fastest}, key=int))
    told = f"Strict speculation is {speed} times as fast as plain decoding with K = {blocks}.\n"
    solved = strict.score if strict.score is not None else 1.0
    square = middle.square or 0.0
    reasons = (
        (most < WORTH, drafts),
        (much < ROOM, f"little can be gained: {kept}, and {gate}"),
        (
            solved < SOLVED,
            f"the target scores {solved:.2f} only, so that changed words flip answers both ways",
        ),
        (
            square > FLIPS,
            f"at r = {middle.r:g} {middle.lost} answers score less and {middle.gained} more",
        ),
        (saved < SAVED, f"{fewer}, as they grow or keep little more"),
    )
    if against := "; ".join(reason for holds, reason in reasons if holds):
        return False, f"{told}No, a gate can hardly pay: {against}."
    if little < ROOM:
        return None, f"{told}Too noisy to say: {gate}. Ask again while the machine is idle."
    score = "" if strict.score is None else f", and the target scores {solved:.2f}"
    return (
        True,
        f"{told}Yes, a gate can pay: {kept}, {gate}, {fewer}{score}. Let the certificate decide.",
    )
