"""One server against another on real traffic, one test after the other, as long as it comes.

Each test ends once its prompts prove the budget kept or lost. Test k has the error e / k (k + 1),
so that all verdicts hold together, and so do all bounds, at any time, if the prompts of one test
are exchangeable.
"""

from __future__ import annotations

from statistics import fmean

from gistgate.certificates.bounds import Decision, SequentialTest, betting_bound
from gistgate.certify.answers import Answered
from gistgate.certify.claims import Claim

VERDICTS = {"within": "kept", "beyond": "lost", None: "open"}


class Watch:
    """The tests of one claim, of which the last may be open."""

    def __init__(self, claim: Claim, confidence: float, limit: int) -> None:
        self.claim = claim
        self.confidence = confidence
        self.limit = limit  # longest answer, in tokens
        self.number = 0  # of the present test
        self.place = 0  # of the last prompt, a line of what is watched
        self.begin()

    def begin(self) -> None:
        """Begin the next test."""
        self.number += 1
        self.error = (1 - self.confidence) / (self.number * (self.number + 1))
        self.test = SequentialTest(self.claim.budget, 1 - self.error)
        self.differences: list[float] = []
        self.strict_tokens: list[int] = []
        self.verdict: Decision | None = None

    def add(self, prompt: Answered, place: int) -> Decision | None:
        """Take in the prompt of a line, for a new test if the last has ended; the verdict, or None
        while the test is open.
        """
        self.place = place
        if self.verdict is not None:
            self.begin()
        self.differences.append(self.claim.difference(prompt))
        strict, _ = prompt.sides
        self.strict_tokens += [answer.tokens or 0 for answer in strict]
        self.verdict = self.test.update(self.differences[-1:])
        return self.verdict

    def report(self) -> str:
        """How the present test stands, in a line."""
        mean = fmean(self.differences)
        bound = max(mean, betting_bound(self.differences, self.error))  # the least on the way
        tokens = fmean(self.strict_tokens)
        mean = self.claim.said(mean, self.limit, tokens)
        bound = self.claim.said(bound, self.limit, tokens)
        return (
            f"test {self.number}, {len(self.differences)} prompts, the last in line {self.place}:"
            f" {self.claim.quantity} {mean:.2%}, at most {bound:.2%}; {VERDICTS[self.verdict]}"
        )
