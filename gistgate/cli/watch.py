"""`gistgate certify --watch`: one server against another on a share of real traffic, one test after
the other, as long as it comes.

Each test ends once its prompts prove the budget kept or lost. Test k has the error e / k (k + 1),
so that all verdicts hold together, and so do all bounds, at any time, if the prompts of one test
are exchangeable.
"""

import asyncio
import fileinput
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from gistgate.certificates.bounds import Decision, SequentialTest
from gistgate.certify.answers import Answered
from gistgate.certify.claims import Claim
from gistgate.certify.comparison import BothEndpoints
from gistgate.certify.endpoint import note
from gistgate.certify.play import request_of
from gistgate.cli.certify import Options
from gistgate.cli.servers import claim_of, connected
from gistgate.core.files import parsed
from gistgate.core.utils import PromptError, UserError
from gistgate.models.options import JSON, TABLES, entries_of
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.task import TaskSpec

EVERY = 50  # prompts of a test between two lines about it
VERDICTS = {"within": "kept", "beyond": "lost", None: "open"}


def watch(options: Options) -> str:
    """Ask both servers one prompt after the other until none comes any more, or until the budget is
    lost; returns the verdict of all tests.
    """
    options.plan()
    if options.task or options.gate or not options.file:
        raise UserError(
            "--watch takes prompts as they come. Give --file FILE.jsonl or --file - and no task or"
            " gate."
        )
    options = replace(options, claim=options.claim or "agreement", concurrent=1)
    spec = options.spec(None)
    tests = Tests(claim_of(options, True, True), options.confidence)
    with asyncio.Runner() as runner:
        endpoints = connected(options, spec, runner)
        try:
            test_all(options, spec, tests, endpoints, runner)
        except (KeyboardInterrupt, UserError):
            note(tests.state)
            raise
    if tests.verdict == "beyond":
        note(f"The budget of {options.budget:.2%} is lost. Serve the baseline, or promise more.")
        return "FAIL"
    if not tests.pairs:
        raise UserError("No prompt was tested. Look at the notes above, or at --share.")
    if tests.verdict is None:
        print(tests.report())
    return "PASS" if tests.kept else "UNDECIDED"


def test_all(
    options: Options,
    spec: TaskSpec,
    tests: "Tests",
    endpoints: BothEndpoints,
    runner: asyncio.Runner,
) -> None:
    """Test the prompts as they come; one that a server refuses is said and left out."""
    for where, task in prompts_in(options, spec):
        doc = task.docs[0]
        try:
            pairs = runner.run(endpoints.ask(request_of(task, doc)))
        except PromptError as error:
            note(f"{where} was refused and is left out. {error}")
            continue
        verdict = tests.add(Answered(task, doc, pairs), where)
        if verdict or len(tests.pairs) % EVERY == 0:
            print(tests.report())
        if verdict == "beyond":
            return


def prompts_in(options: Options, spec: TaskSpec) -> Iterator[tuple[str, PromptFile]]:
    """The prompts that chance takes, each a file of its own, with its place; lines without one are
    said and left out.
    """
    chance = Random(f"{options.seed} watch")
    for where, row in rows_in(str(options.file)):
        if chance.random() >= options.share:
            continue
        try:
            rows = [(where, row() if callable(row) else row)]
            task = PromptFile(rows, spec, options.scorer, options.replay, options.scores_turns)
            claim_of(options, task.judges, task.calls_tools)
        except UserError as error:
            note(f"{error} It is left out.")
        else:
            yield where.rstrip(","), task


def rows_in(place: str) -> Iterator[tuple[str, Any]]:
    """The entries of a file or of standard input (-) as they come, each with its place."""
    opened = fileinput.hook_compressed
    try:
        with fileinput.input(place, openhook=opened, encoding="utf-8-sig") as lines:
            yield from entries_in(lines, place)
    except UnicodeDecodeError as error:
        raise UserError(f"{place} cannot be read as text ({error}). Save it as UTF-8.") from error


def entries_in(lines: Iterable[str], place: str) -> Iterator[tuple[str, Any]]:
    """The entries of lines: JSON lines, which are parsed when they are called, or texts, by the
    first line. Lines that begin an array or are a table are read to their end.
    """
    numbered = enumerate(lines, start=1)
    first = next((entry for entry in numbered if entry[1].strip()), (1, ""))
    begins = first[1].strip()
    is_whole = begins.startswith("[") or begins == "{"
    suffix = Path(place.removesuffix(".gz")).suffix.lower()
    if is_whole or suffix in TABLES:
        yield from entries_of("".join(line for _, line in chain([first], numbered)), place)
        return
    is_json = begins.startswith("{") or suffix in JSON
    for at, line in chain([first], numbered):
        where = f"{place}, line {at},"
        if line.strip():
            yield where, partial(parsed, line, where) if is_json else line.rstrip("\r\n")


class Tests:
    """The tests of one claim, of which the last may be open."""

    def __init__(self, claim: Claim, confidence: float) -> None:
        self.claim = claim
        self.confidence = confidence
        self.number = 0  # of the present test
        self.kept = 0  # tests that showed the budget kept
        self.place = "no line"  # of the last prompt
        self.begin()

    def begin(self) -> None:
        """Begin the next test."""
        self.number += 1
        self.error = (1 - self.confidence) / (self.number * (self.number + 1))
        self.test = SequentialTest(self.claim.aim, 1 - self.error)
        self.pairs: list[tuple[float, float]] = []  # what is compared

    @property
    def verdict(self) -> Decision | None:
        """What the present test has shown."""
        return self.test.answer

    @property
    def state(self) -> str:
        """How far the tests are, but no outcome of an open one, so that an interruption is no
        look.
        """
        number = len(self.pairs)
        return (
            f"Test {self.number} is {VERDICTS[self.verdict]} after {number} prompts, the last in"
            f" {self.place}; {self.kept} tests showed the budget kept."
        )

    def add(self, prompt: Answered, place: str) -> Decision | None:
        """Take in the prompt of a place, for a new test if the last has ended; the verdict, or None
        while the test is open.
        """
        if self.verdict is not None:
            self.begin()
        self.place = place
        self.pairs.append(self.claim.measured(prompt))
        verdict = self.test.update(self.claim.differences(np.array(self.pairs[-1:])))
        self.kept += verdict == "within"
        return verdict

    def report(self) -> str:
        """How the present test stands, in a line."""
        pairs_N2 = np.array(self.pairs)
        bound = self.claim.upper(pairs_N2, 1 - self.error)
        limit = "not bounded" if bound is None else f"at most {bound:.2%}"
        return (
            f"test {self.number}, {len(self.pairs)} prompts, the last in {self.place}:"
            f" {self.claim.words[0]} {self.claim.loss(pairs_N2):.2%}, {limit};"
            f" {VERDICTS[self.verdict]}"
        )
