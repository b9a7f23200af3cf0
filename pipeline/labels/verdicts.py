"""Verdicts: whether the greedy rollout behind a forced token keeps the meaning, found with as few tokens as possible.

A rollout stops as soon as its outcome is decided. Either its answer is given: whatever may follow, the task's filter
finds the same in it. Or it has rejoined the reference: a number of tokens in a row are the reference's. The second is a
rule of thumb, so the first few rollouts run to their end and audit it; they audit the first as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from gistgate.integrations.lm_eval.judging import INVALID
from gistgate.integrations.lm_eval.prompting import Document
from gistgate.integrations.lm_eval.task import Task
from pipeline.labels.rollouts import REJOINED, Answered, Ended, Roller, Rollout, rejoined_at
from pipeline.labels.served_rollouts import ServedRoller

CHARACTERS = tuple("0123456789.,-+*/%$^_=:;)]}'\" \n\tax")
"""What may follow a text: an answer that one of them extends or replaces is not given yet."""
OTHERS = 2
"""References of other problems, with other answers, that are tried behind a text as well."""


class Meaning:
    """Compares answers with the references of their problems, as the task does."""

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        docs: Sequence[Document],
        references: dict[int, list[int]],
    ) -> None:
        """`docs` by problem; `references`: the target's own answers by problem, as token ids."""
        self.task, self.tokenizer, self.docs, self.references = task, tokenizer, docs, references
        self._texts: dict[int, str] = {}

    def expected(self, problem: int) -> str:
        """The reference of a problem as text."""
        if problem not in self._texts:
            self._texts[problem] = self.task.text(self.tokenizer, self.references[problem])
        return self._texts[problem]

    def same(self, problem: int, answer: list[int]) -> bool:
        """Whether the meaning is kept; an answer that cannot be compared counts as lost."""
        text = self.task.text(self.tokenizer, answer)
        return bool(self.task.same_meaning(self.docs[problem], text, self.expected(problem)))

    def is_comparable(self, problem: int) -> bool:
        """Whether the task finds something to compare with in the problem's reference."""
        return self.same(problem, self.references[problem])

    def is_given(self, rollout: Rollout, answer: list[int]) -> bool:
        """Whether the task finds an answer that nothing which was tried behind the text can change."""
        doc, text = self.docs[rollout.problem], self.task.text(self.tokenizer, answer)
        found = self.task.answer(doc, text)
        if found in (INVALID, [INVALID], self.task.answer(doc, "")):
            return False
        return all(self.task.answer(doc, text + more) == found for more in self._endings(doc, found))

    def _endings(self, doc: Document, found: object) -> list[str]:
        others = (problem for problem in self.references if self.task.answer(doc, self.expected(problem)) != found)
        texts = [self.expected(problem) for problem, _ in zip(others, range(OTHERS), strict=False)]
        return [*(gap + text for text in texts for gap in ("\n", " ")), *CHARACTERS]


class Judge:
    """Gives the verdict on greedy rollouts, in whatever portions they come."""

    def __init__(
        self,
        roller: Roller | ServedRoller,
        same: Callable[[int, list[int]], bool],
        given: Answered | None,
        *,
        audit: int,
        rejoin: int | None,
    ) -> None:
        """Begin with the audit.

        Args:
            roller: makes the rollouts.
            same: (problem, answer) -> whether the meaning is kept.
            given: tells whether an answer is given; None lets no rollout stop there.
            audit: rollouts that run to their end before any stops early.
            rejoin: as in `Roller.run`; None lets no rollout stop there.
        """
        self.roller, self.same, self.given, self.rejoin = roller, same, given, rejoin
        self._left, self._concluded = audit, False
        self._audited: list[tuple[Rollout, list[int], bool]] = []

    def kept(self, rollouts: Sequence[Rollout]) -> list[bool]:
        """Whether each rollout keeps the meaning."""
        first, rest = rollouts[: self._left], rollouts[self._left :]
        whole = self.roller.run(first)
        kept = [self.same(rollout.problem, ended.ids) for rollout, ended in zip(first, whole, strict=True)]
        self._left -= len(first)
        self._audited += zip(first, (ended.ids for ended in whole), kept, strict=True)
        if rest and not self._concluded:
            self._conclude()
        return kept + self._early(rest)

    def _early(self, rollouts: Sequence[Rollout]) -> list[bool]:
        ended = self.roller.run(rollouts, rejoin=self.rejoin, answered=self.given)
        return [self._verdict(*one) for one in zip(rollouts, ended, strict=True)]

    def _verdict(self, rollout: Rollout, ended: Ended) -> bool:
        return ended.finish == REJOINED or self.same(rollout.problem, ended.ids)

    def _conclude(self) -> None:
        """Give up a way of stopping early that the audit has found wrong."""
        if self.rejoin is not None and not is_trustworthy(self._audited, self.rejoin):
            self.rejoin = None
        if self.given is not None and not all(self._stops_right(*one) for one in self._audited):
            self.given = None
        self._audited, self._concluded = [], True

    def _stops_right(self, rollout: Rollout, answer: list[int], kept: bool) -> bool:
        """Whether the verdict at the first place where the answer seems given is that of the whole rollout."""
        assert self.given is not None
        for length in range(rollout.position + 2, len(answer)):
            if self.given(rollout, answer[:length]):
                return self.same(rollout.problem, answer[:length]) == kept
        return True


def is_trustworthy(audited: Sequence[tuple[Rollout, list[int], bool]], num: int) -> bool:
    """Whether at least 99 % of the whole rollouts that ever rejoin their reference keep the meaning."""
    rejoining = [kept for rollout, answer, kept in audited if rejoined_at(rollout, answer, num) is not None]
    return bool(rejoining) and sum(rejoining) >= 0.99 * len(rejoining)
