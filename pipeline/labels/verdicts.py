"""Whether rollouts keep the meaning of their references, and when a rollout may end because its
verdict is clear.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from gistgate.lm_eval.task import INVALID, HarnessTask
from gistgate.tasks.task import Document
from pipeline.labels.rollouts import (
    REJOINED,
    Answered,
    FinishedRollout,
    Rollout,
    RolloutList,
    decided,
    rejoined_at,
)

CHARACTERS = tuple("0123456789.,-+*/%$^_=:;)]}'\" \n\tax")
"""What may follow a text: an answer that one of them extends or replaces is not given yet."""
DIFFERENT = 2  # references with other answers that are tried behind a text as well


@dataclass
class Meaning:
    """Compares answers with the references of their problems, as the task does."""

    task: HarnessTask
    tokenizer: Any
    docs: Sequence[Document]  # by problem
    references: dict[int, list[int]]  # the target's own answers by problem, as token ids
    longest: float = math.inf  # an answer of more times its reference's tokens loses the meaning

    def __post_init__(self) -> None:
        self.expected = {
            problem: self.task.text(self.tokenizer, ids) for problem, ids in self.references.items()
        }

    def same(self, problem: int, answer: list[int]) -> bool:
        """Whether the meaning is kept; an answer that cannot be compared counts as lost."""
        if len(answer) > self.longest * len(self.references[problem]):
            return False
        text = self.task.text(self.tokenizer, answer)
        return bool(self.task.same_meaning(self.docs[problem], text, self.expected[problem]))

    def score(self, problem: int, answer: list[int]) -> float:
        """What the task thinks of an answer."""
        return float(self.task.score(self.docs[problem], self.task.text(self.tokenizer, answer)))

    def is_comparable(self, problem: int) -> bool:
        """Whether the task finds something to compare with in the problem's reference."""
        return self.same(problem, self.references[problem])

    def is_given(self, rollout: Rollout, answer: list[int]) -> bool:
        """Whether the task finds an answer that nothing which was tried behind the text can
        change.
        """
        doc = self.docs[rollout.problem]
        text = self.task.text(self.tokenizer, answer)
        result = self.task.answer(doc, text)
        if result in (INVALID, [INVALID], self.task.answer(doc, "")):
            return False
        different = (ref for ref in self.expected.values() if self.task.answer(doc, ref) != result)
        endings = [gap + ref for ref in islice(different, DIFFERENT) for gap in ("\n", " ")]
        return all(self.task.answer(doc, text + end) == result for end in (*endings, *CHARACTERS))


@dataclass(frozen=True)
class Audited:
    """A rollout that was made to its end, and its verdict."""

    rollout: Rollout
    answer: list[int]
    kept: bool


@dataclass
class AnswerJudge:
    """Gives the verdict on greedy rollouts, in whatever order they come and end. The first ones run
    to their end, and a way of stopping early that was wrong for one of these is given up, so that
    verdicts are those of whole rollouts.
    """

    runner: Any  # makes rollouts
    same: Callable[[int, list[int]], bool]  # does (problem, answer) keep the meaning?
    given: Answered | None  # ends a rollout whose answer is clear; None ends none for that
    audit: int  # rollouts that are still to be audited
    rejoin: int | None  # tokens in a row that equal the reference's and end a rollout; None: never
    _running: set[Rollout] = field(default_factory=set)  # audited rollouts that have not ended
    _audited: list[Audited] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._conclude()

    def take_up(self, rollout: Rollout) -> None:
        """Hear of a rollout that is to be made; the first ones are audited."""
        if self.audit:
            self.audit -= 1
            self._running.add(rollout)

    def audits(self, rollout: Rollout) -> bool:
        """Whether a rollout has to run to its end."""
        return rollout in self._running

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Why a rollout may end here: its outcome is clear by a way of telling that the audit has
        found right.
        """
        return decided(rollout, answer, self.rejoin, self.given) if self._has_audited else None

    def verdict(self, rollout: Rollout, finished: FinishedRollout) -> bool:
        """Whether a rollout keeps the meaning."""
        verdict = finished.finish == REJOINED or self.same(rollout.problem, finished.ids)
        if self.audits(rollout):
            self._running.remove(rollout)
            self._audited.append(Audited(rollout, finished.ids, verdict))
            self._conclude()
        return verdict

    def kept(self, rollouts: Sequence[Rollout], title: str = "rollouts") -> list[bool]:
        """Make these rollouts; whether each keeps the meaning. `title` names the progress bar."""
        for rollout in rollouts:
            self.take_up(rollout)
        audited = set(self._running)
        listed = RolloutList(
            rollouts,
            self.decided,
            lambda rollout, finished: (finished.ids, self.verdict(rollout, finished)),
            audited,
        )
        verdicts = listed.made_by(self.runner, title)
        # A rollout that ended before the audit did could not stop early where it rejoined; the
        # verdict is the same.
        rejoin = self.rejoin if self._has_audited else None
        return [
            verdict or (rollout not in audited and bool(decided(rollout, answer, rejoin, None)))
            for rollout, (answer, verdict) in zip(rollouts, verdicts)
        ]

    @property
    def _has_audited(self) -> bool:
        return not (self.audit or self._running)

    def _conclude(self) -> None:
        """Once the audit is over, give up the ways of stopping early that it has found wrong."""
        if not self._has_audited:
            return
        if self.rejoin is not None and not is_trustworthy(self._audited, self.rejoin):
            self.rejoin = None
        if any(map(self._misleads, self._audited)):
            self.given = None

    def _misleads(self, audited: Audited) -> bool:
        """Whether a rollout had another verdict where its answer seemed clear than at its end."""
        rollout = audited.rollout
        for length in range(rollout.position + 2, len(audited.answer)):
            start = audited.answer[:length]
            if self.given is not None and self.given(rollout, start):
                return self.same(rollout.problem, start) != audited.kept
        return False


def is_trustworthy(audited: Sequence[Audited], num: int) -> bool:
    """Whether at least 99 % of the whole rollouts that ever rejoin their reference keep the
    meaning.
    """
    rejoining = [
        entry.kept for entry in audited if rejoined_at(entry.rollout, entry.answer, num) is not None
    ]
    return bool(rejoining) and sum(rejoining) >= 0.99 * len(rejoining)
