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
from pipeline.labels.rolling import Roller
from pipeline.labels.rollouts import REJOINED, Answered, Ended, Listed, Rollout, decided, rejoined_at
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
    """Gives the verdict on greedy rollouts, in whatever order they come and end."""

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
            rejoin: tokens in a row that have to equal the reference's; None lets no rollout stop there.
        """
        self.roller, self.same, self.given, self.rejoin = roller, same, given, rejoin
        self._left, self._concluded = audit, False
        self._running: set[Rollout] = set()
        self._audited: list[tuple[Rollout, list[int], bool]] = []

    def take_up(self, rollout: Rollout) -> None:
        """Hear of a rollout that is to be made; the first ones are audited."""
        if self._left:
            self._left -= 1
            self._running.add(rollout)

    def audits(self, rollout: Rollout) -> bool:
        """Whether it has to run to its end."""
        return rollout in self._running

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Why a rollout may end here: its outcome is known by a way of telling that the audit has found right."""
        return decided(rollout, answer, self.rejoin, self.given) if self._has_audited() else None

    def verdict(self, rollout: Rollout, ended: Ended) -> bool:
        """Whether a rollout keeps the meaning."""
        kept = ended.finish == REJOINED or self.same(rollout.problem, ended.ids)
        if self.audits(rollout):
            self._running.remove(rollout)
            self._audited.append((rollout, ended.ids, kept))
        return kept

    def kept(self, rollouts: Sequence[Rollout], title: str | None = None) -> list[bool]:
        """Make these rollouts; whether each keeps the meaning. `title` shows a progress bar."""
        for rollout in rollouts:
            self.take_up(rollout)
        whole = set(self._running)
        told = Listed(
            rollouts, self.decided, lambda rollout, ended: (ended, self.verdict(rollout, ended)), first=whole
        ).made_by(self.roller, title=title)
        return [
            kept or (rollout not in whole and self._has_rejoined(rollout, ended))
            for rollout, (ended, kept) in zip(rollouts, told, strict=True)
        ]

    def _has_rejoined(self, rollout: Rollout, ended: Ended) -> bool:
        """Whether it would have stopped early; one that ended before the audit did could not."""
        if not self._has_audited() or self.rejoin is None:
            return False
        return rejoined_at(rollout, ended.ids, self.rejoin) is not None

    def _has_audited(self) -> bool:
        if self._left or self._running:
            return False
        if not self._concluded:
            self._conclude()
        return True

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
