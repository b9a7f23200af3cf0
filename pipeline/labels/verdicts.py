"""Whether rollouts keep the meaning of their references, and when a rollout may end because it has
come back to the words of its reference.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gistgate.lm_eval.task import HarnessTask
from gistgate.tasks.task import Document
from pipeline.labels.rollouts import (
    REJOINED,
    FinishedRollout,
    Rollout,
    RolloutList,
    decided,
    rejoined_at,
)


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


@dataclass(frozen=True)
class Audited:
    """A rollout that was made to its end, and its verdict."""

    rollout: Rollout
    answer: list[int]
    kept: bool


@dataclass
class AnswerJudge:
    """Gives the verdict on greedy rollouts, in whatever order they come and end. The first ones run
    to their end, and if rejoining misleads too many of these, no rollout is stopped for it, so that
    verdicts are those of whole rollouts.
    """

    runner: Any  # makes rollouts
    same: Callable[[int, list[int]], bool]  # does (problem, answer) keep the meaning?
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
        """Why a rollout may end here: it has rejoined its reference, which the audit trusts."""
        return decided(rollout, answer, self.rejoin) if self._has_audited else None

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
            verdict or (rollout not in audited and bool(decided(rollout, answer, rejoin)))
            for rollout, (answer, verdict) in zip(rollouts, verdicts)
        ]

    @property
    def _has_audited(self) -> bool:
        return not (self.audit or self._running)

    def _conclude(self) -> None:
        """Once the audit is over, stop no rollout for rejoining if that is not to be trusted."""
        rejoin = self.rejoin
        if self._has_audited and rejoin and not is_trustworthy(self._audited, rejoin):
            self.rejoin = None


def is_trustworthy(audited: Sequence[Audited], num: int) -> bool:
    """Whether at least 99 % of the whole rollouts that ever rejoin their reference keep the
    meaning.
    """
    rejoining = [
        entry.kept for entry in audited if rejoined_at(entry.rollout, entry.answer, num) is not None
    ]
    return bool(rejoining) and sum(rejoining) >= 0.99 * len(rejoining)
