"""`gistgate certify --watch`: one server against another on a share of real traffic, one test after
the other, as long as it comes.

Each test ends once its prompts prove the budget kept or lost. Test k has the error e / k (k + 1),
so that all verdicts hold together, and so do all bounds, at any time, if the prompts of one test
are exchangeable.
"""

import asyncio
import fileinput
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from statistics import fmean

from gistgate.certificates.bounds import Decision, SequentialTest, betting_bound
from gistgate.certify.answers import Answered
from gistgate.certify.claims import Claim
from gistgate.certify.comparison import request_of
from gistgate.certify.endpoint import note
from gistgate.cli.certify import Options
from gistgate.cli.servers import claim_of, connected
from gistgate.core.files import parsed
from gistgate.core.utils import UserError
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.task import TaskSpec

EVERY = 50  # prompts of a test between two lines about it
VERDICTS = {"within": "kept", "beyond": "lost", None: "open"}


def watch(options: Options) -> None:
    """Ask both servers one prompt after the other until none comes any more, or until the budget is
    lost.
    """
    options.plan()
    if options.task or options.gate or not options.file:
        raise UserError(
            "--watch takes prompts as they come. Give --file FILE.jsonl or --file - and no task or"
            " gate."
        )
    options = replace(options, claim=options.claim or "agreement", concurrent=1)
    spec = options.spec(None)
    tests = Tests(claim_of(options, True), options.confidence)
    with asyncio.Runner() as runner:
        endpoints = connected(options, spec, runner)
        for place, task in prompts_in(options, spec):
            doc = task.docs[0]
            pairs = runner.run(endpoints.ask(request_of(task, doc)))
            verdict = tests.add(Answered(task, doc, pairs), place)
            if verdict or len(tests.answered) % EVERY == 0:
                print(tests.report(), flush=True)
            if verdict == "beyond":
                raise UserError(
                    f"The budget of {options.budget:.2%} is lost, with {options.confidence:.0%}"
                    " confidence. Serve the strict side, or promise a larger budget."
                )
    if tests.answered and tests.verdict is None:
        print(tests.report(), flush=True)


def prompts_in(options: Options, spec: TaskSpec) -> Iterator[tuple[int, PromptFile]]:
    """The prompts of the lines that chance takes, each a file of its own, with its line; lines
    without one are said and left out.
    """
    chance = Random(f"{options.seed} watch")
    with fileinput.input(options.file, encoding="utf-8") as lines:
        for place, line in enumerate(lines, start=1):
            if chance.random() >= options.share or not line.strip():
                continue
            where = f"{options.file}, line {place},"
            try:
                task = PromptFile([(where, parsed(line, where))], spec, options.scorer)
                claim_of(options, task.judges)
            except UserError as error:
                note(f"{error} It is left out.")
            else:
                yield place, task


class Tests:
    """The tests of one claim, of which the last may be open."""

    def __init__(self, claim: Claim, confidence: float) -> None:
        self.claim = claim
        self.confidence = confidence
        self.number = 0  # of the present test
        self.place = 0  # line of its last prompt
        self.begin()

    def begin(self) -> None:
        """Begin the next test."""
        self.number += 1
        self.error = (1 - self.confidence) / (self.number * (self.number + 1))
        self.test = SequentialTest(self.claim.budget, 1 - self.error)
        self.answered: list[Answered] = []
        self.differences: list[float] = []

    @property
    def verdict(self) -> Decision | None:
        """What the present test has shown."""
        return self.test.answer

    def add(self, prompt: Answered, place: int) -> Decision | None:
        """Take in the prompt of a line, for a new test if the last has ended; the verdict, or None
        while the test is open.
        """
        if self.verdict is not None:
            self.begin()
        self.place = place
        self.answered.append(prompt)
        self.differences.append(self.claim.difference(prompt))
        return self.test.update(self.differences[-1:])

    def report(self) -> str:
        """How the present test stands, in a line."""
        mean = fmean(self.differences)
        bound = max(mean, betting_bound(self.differences, self.error))  # the least on the way
        mean = self.claim.said(mean, self.answered)
        bound = self.claim.said(bound, self.answered)
        return (
            f"test {self.number}, {len(self.differences)} prompts, the last in line {self.place}:"
            f" {self.claim.words[0]} {mean:.2%}, at most {bound:.2%}; {VERDICTS[self.verdict]}"
        )
