"""Whether speculation and a gate can pay, before hours are spent on labels, and which limit of
tokens answers need. With c the cost of a draft step, v(K) that of verifying K + 1 tokens, both in
target steps, speculation is tau(K) / (v(K) + K c) times as fast as plain decoding (arXiv
2211.17192); a gate can raise tau to K + 1 at most."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, gt, lt, ne
from typing import Any

import torch

from gistgate.core.batches import decode_all
from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.parts import Observer
from gistgate.core.progress import bar
from gistgate.core.request import Generation, Row, total
from gistgate.core.utils import UserError
from gistgate.coverage.choose import BLOCK
from gistgate.drafters.adaptive import Costs
from gistgate.measure.costs import machine_of, measure
from gistgate.rules import make_rule

BLOCKS = (2, 4, 6, 8, 10, 12)
"""K of the table; costs are measured at the first, at `BLOCK` and at the last."""
RATIOS = (0.9, 0.5, 0.2)
"""Settings of `prob-ratio`; the first one swaps near ties alone."""
AT_ONCE = 8
"""Answers that are decoded together."""
PASSES = 0.5
"""Share of the mismatches that a good gate passes: the target's next words survive 0.3 to 0.7 of
them."""
ROOM = 1.35
"""How many times as fast as lossless decoding such a gate has to be, to be worth its labels."""
SAVED = 1.1
"""How many times fewer target forwards the best loose answers have to need."""
WIDE = 2.0
"""Cost of verifying K + 1 tokens, in target steps, from which doctor names the processor."""
SOLVED = 0.5
"""Score of the target below which changed words flip answers both ways."""
FLIPS = 0.1
"""Mean squared change of scores above which a budget takes thousands of prompts."""
SHORT = 16
"""Mean length of answers, in tokens, up to which there is nothing to draft."""
LONGER = 1.5
"""Proposed limit to the longest answer: one in n + 1 further answers exceeds the longest of n."""
STEP = 10
"""A proposed limit is a multiple of so many tokens."""
NEXT = 4
"""The limit to measure with where too many answers are cut, as a multiple of the last one."""

Scores = Callable[[int, list[int]], float]
"""Judges the answer to the prompt of a place."""


@dataclass(frozen=True)
class Outlook:
    """What one K promises. Speeds are multiples of that of plain decoding."""

    block: int  # K, in tokens
    tau: float  # mean accepted length of strict verification, the target's own token included
    strict: float  # speed of strict verification
    half: float  # speed if `PASSES` of the mismatches were accepted
    ceiling: float  # speed if every draft were accepted: no gate can be faster


def round_price(costs: Costs, block: int) -> float:
    """What a round with K = `block` costs, in target steps."""
    return costs.verification(block) + block * costs.draft


def outlook(costs: Costs, block: int, tau: float, half: float) -> Outlook:
    """What K = `block` promises at these mean accepted lengths."""
    price = round_price(costs, block)
    return Outlook(block, tau, tau / price, half / price, (block + 1) / price)


def mean_length(histogram: Mapping[int, int], block: int) -> float:
    """tau at K = `block`, had the drafts of a strict run with at least as large a K been cut
    there.
    """
    tokens = sum(num * (min(length, block) + 1) for length, num in histogram.items())
    return tokens / sum(histogram.values())


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
        within_BK = block.valid
        if block.ends is not None:
            within_BK = within_BK & ~torch.isin(block.draft_ids, block.ends)
        chance_BK = torch.where(block.strict, 1.0, PASSES) * within_BK
        kept_K = chance_BK.cumprod(-1).sum(0).cpu()
        self._kept[: len(kept_K)] += kept_K
        self._rounds += len(within_BK)

    def half(self, block: int) -> float:
        """tau at K = `block` if every mismatch were accepted with the chance `PASSES`."""
        return 1 + float(self._kept[:block].sum()) / self._rounds


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
    r: float,
    tau: float,
    strict: Sequence[list[int]],
    loose: Sequence[list[int]],
    scores: Scores | None,
) -> Change:
    """What a setting with this tau made of the strict answers."""
    num = len(loose)
    tokens = sum(map(len, loose)) / num
    counted = Change(r, tau, tokens, tokens / tau, sum(map(ne, strict, loose)) / num)
    if scores is None:
        return counted
    before = list(map(scores, range(num), strict))
    after = list(map(scores, range(num), loose))
    return replace(
        counted,
        score=sum(after) / num,
        lost=sum(map(gt, before, after)),
        gained=sum(map(lt, before, after)),
        square=sum((a - b) ** 2 for a, b in zip(before, after, strict=True)) / num,
    )


def loses_by_chance(strict: Change, loose: Change, answers: int) -> bool:
    """Whether loose answers score no more than one standard error below strict ones, and few scores
    change.
    """
    if strict.score is None or loose.score is None or loose.square is None:
        return False
    if loose.square > FLIPS:
        return False
    return strict.score - loose.score <= math.sqrt(loose.square / answers)


@dataclass(frozen=True)
class Findings:
    """What some prompts show of a pair."""

    machine: str  # what computes, in words
    costs: Sequence[Costs]  # as `measure` gives them; none where answers are too short
    outlooks: Sequence[Sequence[Outlook]]  # by costs, and by K
    changes: Sequence[Change]  # strict decoding, then each of `RATIOS`
    agreement: float  # share of the judged draft tokens that are the target's own
    labels: float  # mismatches of one prompt
    lengths: Mapping[str, int]  # those of `lengths_of`

    @property
    def middle(self) -> Change:
        """The change by the setting in the middle of `RATIOS`."""
        return self.changes[len(self.changes) // 2]

    @property
    def times_fewer(self) -> float:
        """How many times fewer target forwards the best loose answers need."""
        strict, *looser = self.changes
        return max(strict.forwards / loose.forwards for loose in looser)

    @property
    def gains(self) -> list[float]:
        """By costs: speed with `PASSES` of the mismatches, against the best decoding without
        loss.
        """
        speeds = zip(self.best("half"), self.best("strict"), strict=True)
        return [half / max(1.0, strict) for half, strict in speeds]

    def ratio_gains(self, change: Change) -> list[float]:
        """By costs: speed of whole answers with a setting of `prob-ratio`, against the best
        decoding without loss.
        """
        gains = []
        for costs, strict in zip(self.costs, self.best("strict"), strict=True):
            seconds = change.forwards * round_price(costs, BLOCK)
            gains.append(self.changes[0].tokens / max(1.0, strict) / seconds)
        return gains

    @property
    def free_ratio(self) -> Change | None:
        """The setting of `prob-ratio` with the fewest target forwards whose scores fall no more
        than by chance (one standard error); None without a task, or where there is none.
        """
        strict, *looser = self.changes
        free = [change for change in looser if loses_by_chance(strict, change, self.answers)]
        return min(free, key=attrgetter("forwards"), default=None)

    @property
    def answers(self) -> int:
        """How many prompts were answered."""
        return self.lengths["answers"]

    def best(self, figure: str) -> list[float]:
        """By costs: the highest of a figure of `Outlook` over all K."""
        return [max(map(attrgetter(figure), outlooks)) for outlooks in self.outlooks]


def examine(
    decoder: Decoder, prompts: Sequence[Sequence[int]], scores: Scores | None, **request: Any
) -> Findings:
    """Decode the prompts strictly and at each of `RATIOS`."""
    if not prompts or decoder.drafter is None:
        raise UserError(
            "Doctor measures on prompts and with a drafter. Pass at least one prompt and a draft."
        )
    mismatches = Mismatches(BLOCKS[-1])
    ways: dict[float, Decoder] = {1: decoder.strict(BLOCKS[-1]).watched_by(mismatches)}
    for r in RATIOS:
        ways[r] = decoder.strict(BLOCK).having(rule=make_rule("prob-ratio", r=r))
    number = len(prompts) * len(ways)
    with bar(total=number, title="Answers", unit="answer") as answered:
        runs = {
            r: decode_all(way, prompts, batch_size=AT_ONCE, progress=answered.update, **request)
            for r, way in ways.items()
        }
    strict = runs[1]
    strict_ids = [answer.ids for answer in strict]
    counted = total([answer.statistics for answer in strict])
    taus = {block: mean_length(counted.histogram, block) for block in BLOCKS}
    changes = changes_of(runs, taus[BLOCK], scores)
    costs = []
    if changes[0].tokens > SHORT:
        longest_first = sorted(zip(strict_ids, prompts), key=lambda pair: -len(pair[0]))
        timed = [ids for _, ids in longest_first]
        costs = measure(decoder, timed, (BLOCKS[0], BLOCK, BLOCKS[-1]), **request)
    outlooks = []
    for cost in costs:
        promises = [outlook(cost, block, taus[block], mismatches.half(block)) for block in BLOCKS]
        outlooks.append(promises)
    agreement = counted.strict / (counted.strict + mismatches.number)
    lengths = lengths_of(strict, request["max_new_tokens"])
    labels = mismatches.number / len(prompts)
    machine = machine_of(decoder.target.device)
    return Findings(machine, costs, outlooks, changes, agreement, labels, lengths)


def changes_of(
    runs: Mapping[float, Sequence[Generation]], strict_tau: float, scores: Scores | None
) -> list[Change]:
    """What each of `RATIOS` changes, behind strict decoding, whose ratio is 1."""
    strict_ids = [answer.ids for answer in runs[1]]
    changes = []
    for r, answers in runs.items():
        loose = total([answer.statistics for answer in answers])
        tau = strict_tau if r == 1 else loose.mean_accepted_length
        changes.append(change(r, tau, strict_ids, [answer.ids for answer in answers], scores))
    return changes


# ---- How long answers are, and which limit they need.


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
    # Leaves room behind the longest that ended before the limit.
    enough = math.ceil(LONGER * longest / STEP) * STEP
    reached = f"{cut or 'None'} of {answers} answers reached the limit of {limit} tokens"
    most_end = not cut or (2 * cut < answers and enough <= limit)  # and far below it
    if not longest or not most_end:
        return (
            f"{reached}, so that the length of whole answers is not known. Before you set a limit"
            f" for a task, ask again with --max-new-tokens {NEXT * limit}, or with what the context"
            " leaves behind the prompt, and with --stop where a text ends the task's answers."
        )
    ending = "and may never end; the longest of the others has" if cut else "and the longest has"
    return (
        f"{reached} {ending} {longest}. A limit of {enough} tokens leaves room for further answers"
        " of this kind."
    )


# ---- What follows from the findings.


def plan(findings: Findings, budget: float, confidence: float) -> str:
    """How many prompts a budget needs, in a sentence; with a task alone."""
    from gistgate.certificates.planning import Plan  # scipy comes with an extra

    middle = findings.middle
    square = middle.square or 0.0
    flips = (middle.lost or 0) + (middle.gained or 0)
    is_ternary = findings.lengths["answers"] * square == flips
    need = Plan(budget, confidence, is_ternary).needed(square)
    return (
        f"A budget of {budget:.2%} at {confidence:.0%} confidence needs about {need or 'too many'}"
        f" calibration prompts if scores change as at r = {middle.r:g} and nothing is lost on"
        " average; twice as many to be safe."
    )


def verdict(findings: Findings) -> tuple[bool | None, str]:
    """Whether a gate can pay, None where costs are too noisy to say; and which K suits strict
    decoding, and why.
    """
    strict = findings.changes[0]
    if strict.tokens <= SHORT:
        return False, (
            f"No: answers are too short to draft, {strict.tokens:.1f} tokens on average; {SHORT}"
            " are too few."
        )
    fastest = {max(each, key=attrgetter("strict")).block for each in findings.outlooks}
    speed = (
        f"Strict speculation is {ranged(findings.best('strict'))} times as fast as plain decoding"
        f" with K = {' or '.join(map(str, sorted(fastest)))}.\n"
    )
    speed += wide_reads(findings)
    ratio = ratio_speed(findings)
    reasons = reasons_against(findings)
    if reasons:
        return False, f"{speed}No, a gate can hardly pay: {'; '.join(reasons)}.{ratio}"
    gate = gate_speed(findings)
    if min(findings.gains) < ROOM:
        return None, f"{speed}Too noisy to say: {gate}. Ask again while the machine is idle.{ratio}"
    score = "" if strict.score is None else f", and the target scores {strict.score:.2f}"
    return True, (
        f"{speed}Yes, a gate can pay: {strict_length(findings)}, {gate}, {fewer(findings)}{score}."
        f" Let the certificate decide.{ratio}"
    )


def reasons_against(findings: Findings) -> list[str]:
    """Why a gate can hardly pay."""
    strict = findings.changes[0]
    middle = findings.middle
    reasons = []
    if max(findings.gains) < ROOM:
        reasons.append(
            f"little can be gained: {strict_length(findings)}, and {gate_speed(findings)}"
        )
    if strict.score is not None and strict.score < SOLVED:
        reasons.append(
            f"the target scores {strict.score:.2f} only, so that changed words flip answers both"
            " ways"
        )
    if middle.square is not None and middle.square > FLIPS:
        reasons.append(
            f"at r = {middle.r:g} {middle.lost} answers score less and {middle.gained} more"
        )
    if findings.times_fewer < SAVED:
        reasons.append(f"{fewer(findings)}, as they grow or keep little more")
    return reasons


def ranged(values: Sequence[float], limit: float = math.inf) -> str:
    """A figure by all turns, and its range over both halves of them, with so many digits that none
    reads as `limit` that is below it.
    """
    digits = 2
    while any(value < limit <= round(value, digits) for value in values):
        digits += 1
    first, low, high = (f"{value:.{digits}f}" for value in (values[0], min(values), max(values)))
    return f"{first} [{low}, {high}]"


def wide_reads(findings: Findings) -> str:
    """That reading several rows is expensive here, as a line; nothing where it is not."""
    costs = [each.verification(BLOCK) for each in findings.costs]
    if min(costs) < WIDE:
        return ""
    price = (
        f"On {findings.machine} reading {BLOCK + 1} rows costs {ranged(costs)} times 1 row"
        " of this target"
    )
    if max(findings.best("half")) < 1:
        return f"{price}: speculation does not pay, so decode plainly.\n"
    return f"{price}, which a draft has to save first.\n"


def ratio_speed(findings: Findings) -> str:
    """What a rule without training would gain, as a line; nothing where it gains little or loses
    more than by chance.
    """
    ratio = findings.free_ratio
    if ratio is None or min(findings.ratio_gains(ratio)) < SAVED:
        return ""
    speed = ranged(findings.ratio_gains(ratio))
    return (
        f"\nThe rule prob-ratio needs no training and would be {speed} times as fast as decoding"
        f" without loss at r = {ratio.r:g}, where {ratio.lost} answers score less and"
        f" {ratio.gained} more. Certify it first."
    )


def strict_length(findings: Findings) -> str:
    """How much strict decoding keeps of a draft, in words."""
    return (
        f"strict decoding keeps {findings.changes[0].tau:.1f} of {BLOCK + 1} tokens (K {BLOCK},"
        f" agreement {findings.agreement:.2f})"
    )


def gate_speed(findings: Findings) -> str:
    """What a good gate would gain, in words."""
    return (
        f"a gate that passes half of the mismatches would be {ranged(findings.gains, ROOM)} times"
        " as fast as decoding without loss"
    )


def fewer(findings: Findings) -> str:
    """How many target forwards loose answers save, in words."""
    times = findings.times_fewer
    return f"loose answers need at best {times:.2f} times fewer target forwards"
