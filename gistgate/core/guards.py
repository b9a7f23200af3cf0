"""The guards by name, and the one that notices answers that repeat themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from gistgate.core.block import Block, Reason
from gistgate.core.domain import DomainGuard
from gistgate.core.guard import CLOSED, Guard, Verdict
from gistgate.core.identity import gate_hash, identify_model
from gistgate.core.request import Row
from gistgate.core.rule import Rule
from gistgate.core.scopes import PROSE, THINKING, Scope
from gistgate.core.utils import Registry, UserError

GRAM = 4  # tokens of a gram whose variety is counted


@dataclass
class Repetition:
    """What the loop guard knows of one request, in tokens of its answer."""

    closed: bool = False  # whether the present round is verified strictly
    until: float = 0  # length up to which the answer stays closed
    seen: int = 0  # length that was looked at
    alarm: int = 0  # length at the last alarm


@dataclass(frozen=True)
class LoopGuard(Guard):
    """Strict verification for `window` tokens once an answer with loose tokens has begun to repeat
    itself.

    Draft tokens of closed rounds get the reason `loop`; they count as strict ones. Counters:
    docs/rules.md.
    """

    period: int = 64  # longest period that is looked for, in tokens
    repeats: int = 4  # times a period has to stand in a row
    # tokens over which the variety of grams is taken; shorter answers are judged by their period
    # alone
    span: int = 256
    variety: float = 0.3  # share of distinct grams below which the span counts as a loop
    window: float = 128  # tokens for which it stays closed
    id = "loop"
    memory = Repetition

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        for row in {id(row): row for row in rows}.values():  # the paths of a tree share one row
            repetition = self.known(row)
            repetition.closed = len(row.answer) < repetition.until
            row.statistics.count("loop_rounds", repetition.closed)
        return [CLOSED if self.known(row).closed else None for row in rows]

    def committed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            repetition = self.known(row)
            answer = row.answer
            if (
                repetition.closed
            ):  # the strict accepts of the round, counted before, are the guard's
                for place in range(repetition.seen, len(answer)):
                    if row.reasons[place] == Reason.STRICT:
                        row.reasons[place] = Reason.LOOP
            # The target's own token ends every round and may differ each time, so all new ends are
            # looked at.
            longest = max(self.span, self.period * self.repeats)
            ends = range(repetition.seen + 1, len(answer) + 1)
            loops = [self.is_loop(answer[max(0, end - longest) : end]) for end in ends]
            repetition.seen = len(answer)
            row.statistics.extra["loop_open"] = float(loops[-1:] == [True])
            if any(loops) and len(answer) >= repetition.until:
                # A loop without a loose token since the last alarm, or at all, is the target's.
                is_loose = Reason.LOOSE in row.reasons[repetition.alarm :]
                row.statistics.count("loop_alarms" if is_loose else "loop_target")
                repetition.alarm = len(answer)
                repetition.until = len(answer) + self.window

    def is_loop(self, ids: Sequence[int]) -> bool:
        """Whether the text ends in a period that stands `repeats` times, or is poor in grams over
        its last `span`.
        """
        for period in range(1, min(self.period, len(ids) // self.repeats) + 1):
            if ids[-1 - period] == ids[-1]:  # comparing one token spares nearly all the slices
                text = ids[-period * self.repeats :]
                if text[period:] == text[:-period]:
                    return True
        if len(ids) < self.span:
            return False
        num = self.span - GRAM + 1
        last = ids[-self.span :]
        grams = {tuple(last[start : start + GRAM]) for start in range(num)}
        return len(grams) < self.variety * num


GUARDS: Registry[Callable[[Any, Any], Guard]] = Registry(
    "guard",
    {
        LoopGuard.id: lambda _folder, _tokenizer: LoopGuard(),
        DomainGuard.id: lambda folder, _tokenizer: DomainGuard.load(folder),
        PROSE: lambda _folder, tokenizer: Scope(PROSE, tokenizer),
        THINKING: lambda _folder, tokenizer: Scope(THINKING, tokenizer),
    },
)
"""Guards and scopes by id: made of a gate's folder and a tokenizer."""


def make_guards(names: Sequence[str], gate: Any = None, tokenizer: Any = None) -> list[Guard]:
    """Guards and scopes by their ids.

    `gate` is the folder that "domain" is read from, or a gate loaded from it.
    """
    folder = getattr(gate, "folder", gate)
    return [GUARDS[name](folder, tokenizer) for name in names]


def check_guards(guards: Sequence[Guard], gate: Any, target: PreTrainedModel) -> None:
    """Refuse a guard that was fitted with another gate or on other weights; older ones do not say
    the weights.
    """
    for guard in guards:
        if not isinstance(guard, DomainGuard):
            continue
        here = {"gate": gate and gate_hash(gate), "target": identify_model(target).fingerprint}
        for part, value in here.items():
            if value is not None and guard.about.get(part) not in (None, value):
                raise UserError(
                    f"The guard 'domain' was fitted with another {part}. Leave it out, or export"
                    " anew."
                )
