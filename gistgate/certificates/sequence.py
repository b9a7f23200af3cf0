"""Fixed-sequence testing while prompts come in: settings from strict to loose, each until its answer is clear.

Three ways to stop. `planned`: decode all planned prompts, test once. `lost`: the same, but leave a setting as soon as a
watch says that it loses the largest budget; stopping only to refuse adds no false certificate. `clear`: stop on either
answer; the error is shared, half for the watch and half for the test behind the last prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from gistgate.certificates.bernstein import PLUG_IN, bernstein_sequence
from gistgate.certificates.betting import BETTING, Answer, Watch, betting_bound
from gistgate.certificates.bounds import EXACT, Bound, upper_bound
from gistgate.certificates.tango import Array
from gistgate.errors import UserError
from pipeline.certification.trial import NOTHING, Decoded

Stop = Literal["planned", "lost", "clear"]


@dataclass(frozen=True)
class Tested:
    """One setting of the sequence."""

    decoded: Decoded
    """All that was decoded of it."""
    bounds: tuple[Bound, ...]
    """What was found for every budget, in the order of the budgets."""
    within: tuple[bool, ...]
    """Whether that keeps the budget."""
    watched: tuple[Answer | None, ...]
    """What a watch said on the way; None where it stayed open or was not asked."""


def check_stop(stop: str) -> None:
    """Raise UserError unless that is a way to stop."""
    if stop not in get_args(Stop):
        raise UserError(f"There is no way to stop called '{stop}'. Use one of: {', '.join(get_args(Stop))}.")


def watch_confidence(stop: Stop, confidence: float) -> float:
    """How sure a watch has to be; when it may certify, it gets half of the error."""
    return 1 - (1 - confidence) / 2 if stop == "clear" else confidence


def try_settings(
    settings: Iterable[Callable[[], Iterable[Decoded]]], budgets: Sequence[float], confidence: float, stop: Stop,
    ternary: bool = True,
) -> list[Tested]:  # fmt: skip
    """Test settings from strict to loose; the first that fails the largest budget is the last.

    Args:
        settings: for each setting, a function that decodes chunk after chunk; later ones are not called in vain.
        ternary: whether the score can only differ by -1, 0 or 1, so that the exact bound may be used.

    Raises:
        UserError: an unknown way to stop.
    """
    check_stop(stop)
    tested: list[Tested] = []
    for chunks in settings:
        tested.append(try_setting(chunks(), budgets, confidence, stop, ternary))
        if not tested[-1].within[np.argmax(budgets)]:
            break
    return tested


def try_setting(
    chunks: Iterable[Decoded], budgets: Sequence[float], confidence: float, stop: Stop, ternary: bool = True
) -> Tested:
    """Take in chunks until nothing is open any more, then test what the watches left open."""
    sure = watch_confidence(stop, confidence)
    watches = [Watch(budget, sure) for budget in budgets]
    done = NOTHING
    for chunk in chunks:
        done = done + chunk
        if stop == "planned":
            continue
        for watch in watches:
            watch.see_all(chunk.differences)
        if over(watches, budgets, stop):
            break
    said = tuple(counted(watch.answer, stop) for watch in watches)
    bounds = tuple(bound_of(done.differences, answer, sure, ternary) for answer in said)
    within = tuple(
        answer == "within" or (answer is None and bound.within(budget))
        for answer, bound, budget in zip(said, bounds, budgets, strict=True)
    )
    return Tested(done, bounds, within, said)


def counted(answer: Answer | None, stop: Stop) -> Answer | None:
    """What a watch may decide: under `lost` it refuses and never certifies."""
    return answer if stop == "clear" or answer == "beyond" else None


def over(watches: Sequence[Watch], budgets: Sequence[float], stop: Stop) -> bool:
    """Whether more prompts can change nothing."""
    largest = watches[int(np.argmax(budgets))]
    if largest.answer == "beyond":
        return True
    return stop == "clear" and all(watch.answer is not None for watch in watches)


def bound_of(differences: Array, answer: Answer | None, confidence: float, ternary: bool) -> Bound:
    """The bound that goes with an answer: the watch's own after "within", else the sharpest for one look."""
    plain = one_look(differences, confidence, ternary)
    if answer != "within":
        return plain
    return replaced(plain, betting_bound(differences, 1 - confidence), BETTING)


def one_look(differences: Array, confidence: float, ternary: bool) -> Bound:
    """Exact for right-or-wrong scores, else the plug-in empirical Bernstein bound tuned to this number of prompts."""
    bound = upper_bound(differences, confidence)
    if ternary and bound.kind == EXACT:
        return bound
    value = float(bernstein_sequence(differences, 1 - confidence, planned=len(differences))[-1])
    return replaced(bound, value, PLUG_IN)


def replaced(bound: Bound, value: float, kind: str) -> Bound:
    """The same prompts under another bound."""
    return replace(bound, value=value, kind=kind)


def passed(tested: Sequence[Tested], budget_index: int) -> int | None:
    """The loosest setting that keeps a budget while all before it do; None when not even the first does."""
    kept = 0
    for one in tested:
        if not one.within[budget_index]:
            break
        kept += 1
    return kept - 1 if kept else None
