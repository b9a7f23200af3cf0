"""`gistgate certify --watch`: one server against another on a share of real traffic."""

from __future__ import annotations

import asyncio
import fileinput
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from gistgate.cli.certify import Options, claim_of, connected
from gistgate.cli.options import needing
from gistgate.core.files import parsed
from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from gistgate.tasks.prompt_file import PromptFile
    from gistgate.tasks.task import TaskSpec

EVERY = 50  # prompts of a test between two lines about it


def watch(options: Options) -> None:
    """Ask both servers one prompt after the other until none comes any more, or until the budget is
    lost.
    """
    with needing("endpoints"):
        from gistgate.certify.answers import Answered
        from gistgate.certify.comparison import request_of
        from gistgate.certify.watch import Watch
    options.check()
    if options.task or options.gate or not options.file:
        raise UserError(
            "--watch takes prompts as they come. Give --file FILE.jsonl or --file - and no task or"
            " gate."
        )
    options = replace(options, claim=options.claim or "agreement", concurrent=1)
    spec = options.spec(None)
    tests = Watch(claim_of(options, True), options.confidence, spec.max_new_tokens)
    with asyncio.Runner() as runner:
        endpoints = connected(options, spec, runner)
        for number, task in prompts_in(options, spec):
            document = task.docs[0]
            pairs = runner.run(endpoints.ask(request_of(task, document)))
            verdict = tests.add(Answered.of(task, document, pairs), number)
            if verdict or len(tests.differences) % EVERY == 0:
                print(tests.report(), flush=True)
            if verdict == "beyond":
                raise UserError(
                    f"The budget of {options.budget:.2%} is lost, with {options.confidence:.0%}"
                    " confidence. Serve the strict side, or promise a larger budget."
                )
        if tests.differences and tests.verdict is None:
            print(tests.report(), flush=True)


def prompts_in(options: Options, spec: TaskSpec) -> Iterator[tuple[int, PromptFile]]:
    """The prompts of the lines that chance takes, each a file of its own, with its number; lines
    without one are said and left out.
    """
    from gistgate.certify.progress import note
    from gistgate.tasks.prompt_file import PromptFile

    chance = Random(f"{options.seed} watch")
    with fileinput.input(options.file, encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if chance.random() >= options.share or not line.strip():
                continue
            place = f"{options.file}, line {number},"
            try:
                task = PromptFile([parsed(line, place)], place, spec)
                claim_of(options, task.judges)
            except UserError as error:
                note(f"{error} It is left out.")
            else:
                yield number, task
