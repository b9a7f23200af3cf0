"""Whether speculation can pay for a pair, before hours are spent on a gate, and which limit of tokens answers need.
With c the cost of a draft step, v(K) that of verifying K + 1 tokens, both in target steps, speculation is tau(K) /
(v(K) + K c) times as fast as plain decoding (arXiv 2211.17192); a gate can raise tau to K + 1 at most."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation, Row, Statistics, total
from gistgate.core.session import Observer
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs

WORTH = 1.05  # speed against plain decoding below which speculation is not worth its memory
ROOM = 1.1  # how many times as fast as strict speculation a gate has to be able to become, to be worth its labels
TIMED = 4  # prompts on which costs are measured: they vary less from prompt to prompt than accepted tokens do
REPEATS = 3  # runs of every answer, of which the least time counts: costs are differences of two times
LONGER = 1.5  # proposed limit to the longest answer: one in n + 1 further answers exceeds the longest of n
STEP = 10  # a proposed limit is a multiple of so many tokens
NEXT = 4  # the limit to measure with where too many answers are cut, as a multiple of the last one


@dataclass(frozen=True)
class Outlook:
    """What one K promises."""

    block: int  # K, in tokens
    tau: float  # mean accepted length of strict verification, the target's own token included
    strict: float  # speed of strict verification, as a multiple of plain decoding
    ceiling: float  # speed if every draft were accepted: no gate can be faster


def outlook(costs: Costs, histogram: Mapping[int, int], block: int) -> Outlook:
    """What K = `block` promises, from the accepted lengths of a strict run with at least as large a K."""
    kept = sum(count * (min(length, block) + 1) for length, count in histogram.items())  # had drafts been cut there
    tau, price = kept / sum(histogram.values()), costs.verification(block) + block * costs.draft
    return Outlook(block, tau, tau / price, (block + 1) / price)


def advice(outlooks: Sequence[Outlook]) -> str:
    """One recommendation, in a sentence or two."""
    strict = max(outlooks, key=lambda one: one.strict)
    best = max(outlooks, key=lambda one: one.ceiling)
    if best.ceiling < WORTH:
        return (
            f"Speculation cannot pay here: even if every draft were accepted, the best K ({best.block}) would give "
            f"{best.ceiling:.2f} times the speed of plain decoding. Use a cheaper draft, or a drafter without a model "
            "such as `lookup`."
        )
    if best.ceiling < ROOM * strict.strict:
        return (
            f"Use strict speculation with K = {strict.block}, which gives about {strict.strict:.2f} times the speed of "
            f"plain decoding. A gate is not worth its labels: if it accepted every draft, it would reach "
            f"{best.ceiling:.2f} times."
        )
    start = (
        f"Strict speculation gives about {strict.strict:.2f} times the speed of plain decoding with K = {strict.block}."
        if strict.strict >= WORTH
        else f"Strict speculation does not pay ({strict.strict:.2f} times plain decoding with K = {strict.block})."
    )
    return (
        f"{start} A gate can pay: between that and {best.ceiling:.2f} times (every draft accepted, K = {best.block}) "
        "lies what it may win. Train one, and let the certificate decide."
    )


class Mismatches(Observer):
    """Counts the rounds which kept fewer tokens than were drafted."""

    number = 0

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        self.number += int((acceptance.length < block.valid.sum(-1)).sum())


def measure(decoder: Decoder, prompts: Sequence[Sequence[int]], blocks: Sequence[int], **request: Any) -> Costs:
    """Costs of the pair of a strict decoder, from decoding the first prompts plainly and with every K of `blocks`."""
    if not prompts or decoder.drafter is None:
        raise UserError("Costs are measured on prompts and with a drafter. Pass at least one prompt and a draft.")
    timed = prompts[:TIMED]
    plain = later_rounds(decoder.plain(), timed, request)
    step = plain.seconds["total"] / plain.forwards
    verify, drafting, drafted = {}, 0.0, 0
    for block in blocks:
        done = later_rounds(decoder.strict(block), timed, request)
        verify[block] = done.seconds["verify"] / done.forwards / step
        drafting += done.seconds["draft"]
        drafted += done.draft_forwards or block * done.forwards
    return Costs(step, drafting / drafted / step, verify)


def later_rounds(decoder: Decoder, prompts: Sequence[Sequence[int]], request: dict[str, Any]) -> Statistics:
    """What was counted behind the first K + 1 tokens of each answer, whose rounds include reading the prompt."""
    decoder.generate([prompts[0]], **request)  # warms up
    first = {**request, "max_new_tokens": decoder.block + 1}
    whole, begun = (total([fastest(decoder, ids, asked) for ids in prompts]) for asked in (request, first))
    if whole.forwards <= begun.forwards:
        raise UserError("Every answer ended in its first round, so no later round can be timed. Pass other prompts.")
    seconds = {part: max(spent - begun.seconds.get(part, 0.0), 1e-9) for part, spent in whole.seconds.items()}
    return Statistics(whole.forwards - begun.forwards, whole.draft_forwards - begun.draft_forwards, seconds=seconds)


def fastest(decoder: Decoder, ids: Sequence[int], request: dict[str, Any]) -> Statistics:
    """What one answer counts, with the least time of REPEATS runs for each part: other programs only add time."""
    runs = [decoder.generate([ids], **request)[0].statistics for _ in range(REPEATS)]
    parts = {part: min(run.seconds.get(part, 0.0) for run in runs) for part in runs[0].seconds}
    return Statistics(runs[0].forwards, runs[0].draft_forwards, seconds=parts)


@dataclass(frozen=True)
class Lengths:
    """The lengths of some answers; a limit of tokens that suits one pair cuts the answers of another."""

    answers: int  # how many there are
    cut: int  # those that the limit ended
    longest: int  # length of the longest of the others, in tokens; 0 where there is none
    limit: int  # longest answer that was allowed, in tokens

    @property
    def enough(self) -> int:
        """A limit that leaves room behind the longest answer that ended before it, in tokens."""
        return math.ceil(LONGER * self.longest / STEP) * STEP


def lengths_of(answers: Sequence[Generation], limit: int) -> Lengths:
    """The lengths of answers that were decoded with a limit of so many tokens."""
    ended = [len(answer.ids) for answer in answers if answer.finish != "length"]
    return Lengths(len(answers), len(answers) - len(ended), max(ended, default=0), limit)


def limit_advice(found: Lengths) -> str:
    """Which limit these answers ask for, or how to find it, in a sentence or two."""
    reached = f"{found.cut or 'None'} of {found.answers} answers reached the limit of {found.limit} tokens"
    most_end = not found.cut or (2 * found.cut < found.answers and found.enough <= found.limit)  # and far below it
    if not found.longest or not most_end:
        return (
            f"{reached}, so that the length of whole answers is not known. Before you set a limit for a task, ask "
            f"again with --max-new-tokens {NEXT * found.limit}, or with what the context leaves behind the prompt, and "
            "with --stop where a text ends the task's answers."
        )
    longest = "and may never end; the longest of the others has" if found.cut else "and the longest has"
    return (
        f"{reached} {longest} {found.longest}. A limit of {found.enough} tokens leaves room for further answers "
        "of this kind."
    )
