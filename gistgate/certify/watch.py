"""What `gistgate certify --watch` does: one server against another on a share of real traffic, as
long as it comes.

One test follows the other. Each ends once its prompts prove the budget kept or lost. Test k has the
error e / k (k + 1), so that all verdicts hold together, and so do all bounds, at any time, if the
prompts of one test are exchangeable.
"""

import asyncio
import fileinput
import random
from dataclasses import replace
from statistics import fmean
from typing import Any

from gistgate.certificates.bounds import SequentialTest, betting_bound
from gistgate.certificates.decoder import check_options, spec_of
from gistgate.certify.comparison import CLAIMS, Compared, OwnPrompts, claim_of, connected, grown
from gistgate.certify.endpoint import note
from gistgate.cli.certify import Options
from gistgate.core.files import parsed
from gistgate.core.utils import UserError

VERDICTS = {"within": "kept", "beyond": "lost", None: "open"}
EVERY = 50  # prompts of a test between two lines about it


def watch(options: Options) -> None:
    """Ask both servers one prompt after the other until none comes any more, or until the budget is
    lost.
    """
    check_options(options)
    if options.task or options.gate or not options.file:
        raise UserError(
            "--watch takes prompts as they come. Give --file FILE.jsonl or --file - and no task or"
            " gate."
        )
    options = replace(options, claim=options.claim or "agreement")
    claim = claim_of(options, True)
    chance = random.Random(f"{options.seed} watch")
    free = asyncio.Semaphore()
    spec = spec_of(options, None)
    budget = options.budget
    k = 0  # of the present test
    error = 0.0
    d = list[float]()
    strict = list[Any]()
    answer: str | None = "none"

    def tell() -> None:
        bound = max(mean := fmean(d), betting_bound(d, error))  # the bound is the least on the way
        if claim == "length":
            mean, bound = (
                grown(one, budget, spec.max_new_tokens / (fmean(strict) or 1))
                for one in (mean, bound)
            )
        seen = f"{CLAIMS[claim][1]} {mean:.2%}, at most {bound:.2%}; {VERDICTS[answer]}"
        print(f"test {k}, {len(d)} prompts, the last in line {at}: {seen}", flush=True)

    with asyncio.Runner() as runner, fileinput.input(options.file, encoding="utf-8") as lines:
        sides = connected(options, spec, runner)
        for at, line in enumerate(lines, start=1):
            if chance.random() >= options.share or not line.strip():
                continue
            try:
                task = OwnPrompts(
                    [("", parsed(line, where := f"{options.file}, line {at},"))], where, spec
                )
                claim_of(options, task.judges)
            except UserError as unknown:
                note(f"{unknown} It is left out.")
                continue
            if answer is not None:
                k = k + 1
                d = []
                strict = []
                test = SequentialTest(
                    budget, 1 - (error := (1 - options.confidence) / (k * (k + 1)))
                )
            one = Compared(task, task.rows, sides, claim, options)
            pairs = runner.run(one.ask(task.rows[0], free))
            d.append(one.taken(task.rows[0], pairs))
            strict += [pair[0].tokens for pair in pairs]
            if (answer := test.update(d[-1:])) or len(d) % EVERY == 0:
                tell()
            if answer == "beyond":
                lost = (
                    f"The budget of {budget:.2%} is lost, with {options.confidence:.0%} confidence."
                )
                raise UserError(f"{lost} Serve the strict side, or promise a larger budget.")
        if answer is None:
            tell()
