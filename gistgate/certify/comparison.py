"""Both endpoints on the same documents: asking them, keeping their answers, and comparing these."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gistgate.certificates.bounds import p_value
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import Plan
from gistgate.certify.answers import Answered, Means, Pair, Served
from gistgate.certify.claims import Claim
from gistgate.certify.endpoint import Endpoint
from gistgate.certify.progress import TICK, Progress, note
from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError
from gistgate.tasks.task import Document, Messages, Task

PILOT = 10  # prompts after which the seconds of the plan are said


@dataclass(frozen=True)
class Samples:
    """How many answers an endpoint gives to a prompt, and how they are drawn."""

    temperature: float = 0.0
    number: int = 1
    seed: int = 0
    """What the seeds of all requests follow."""


Request = tuple[str | Messages, list[str], int]  # prompt, stops and longest answer in tokens


def request_of(task: Task, doc: Document) -> Request:
    """What both endpoints are asked about a document."""
    return task.prompt(doc), list(task.stops), task.max_new_tokens


class BothEndpoints:
    """The strict endpoint and the loose one, which get the same requests."""

    def __init__(
        self, strict: Endpoint, loose: Endpoint, samples: Samples, concurrent: int = 1
    ) -> None:
        self.strict = strict
        self.loose = loose
        self.samples = samples
        self.free = asyncio.Semaphore(concurrent)  # for requests that are under way

    def mark(self, request: Request) -> str:
        """What tells the answers to a request from others."""
        samples = self.samples
        return fingerprint(request, samples.temperature, samples.number, samples.seed)

    async def ask(self, request: Request) -> list[Pair]:
        """The answers of both endpoints, one pair for each sample; the seed of a request that is
        repeated is the same, and so is the other endpoint's.
        """
        seeds = random.Random(self.mark(request))
        pairs = []
        for _ in range(self.samples.number):
            sampling: dict[str, Any] = {}
            if self.samples.temperature:
                sampling["temperature"] = self.samples.temperature
                sampling["seed"] = seeds.getrandbits(31)
            pairs.append(self.pair(request, sampling))
        return await asyncio.gather(*pairs)

    async def pair(self, request: Request, sampling: dict[str, Any]) -> Pair:
        """One answer of each endpoint."""
        async with self.free:
            return await asyncio.gather(
                self.strict.answer(*request, **sampling), self.loose.answer(*request, **sampling)
            )


class AnswerStore:
    """Answers by the mark of what was asked, in a file until there is a card."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.pairs: dict[str, list[Pair]] = {}
        if resume and path.exists():
            self.read()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def read(self) -> None:
        """Take over what an interrupted run left; a line that it could not finish counts as
        none.
        """
        for line in self.path.read_text().split("\n"):
            with suppress(ValueError):
                for mark, pairs in json.loads(line).items():
                    self.pairs[mark] = [
                        (Served(**strict), Served(**loose)) for strict, loose in pairs
                    ]

    def add(self, mark: str, pairs: list[Pair]) -> None:
        """Keep the answers to one document, behind a line that an interruption cut."""
        self.pairs[mark] = pairs
        rows = [[asdict(strict), asdict(loose)] for strict, loose in pairs]
        with self.path.open("a") as file:
            file.write("\n" + json.dumps({mark: rows}))


class Comparison:
    """Both endpoints on the calibration documents."""

    def __init__(
        self,
        task: Task,
        docs: Sequence[Document],
        endpoints: BothEndpoints,
        claim: Claim,
        plan: Plan,
        store: AnswerStore,
        need: int | None,
    ) -> None:
        self.task = task
        self.docs = docs
        self.endpoints = endpoints
        self.claim = claim
        self.plan = plan
        self.store = store
        self.progress = Progress(len(docs), need)
        self.answered: list[Answered] = []  # the prompts that were compared, in their order
        self.changed = 0.0  # sum of what was compared
        self.fresh = 0  # prompts that were asked in this run
        self.is_stopped = False  # by Ctrl-C

    def chunks(self, runner: asyncio.Runner) -> Iterator[Decoded]:
        """d of one prompt after the other, while further ones are under way, so that a test can end
        at any.
        """
        loop = runner.get_loop()
        requests = [loop.create_task(self.ask(doc)) for doc in self.docs]
        with suppress(RuntimeError):  # a thread takes no signals
            # An exception that Ctrl-C raises between two callbacks would leave a loop that cannot
            # be closed.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                loop.add_signal_handler(signal.SIGINT, setattr, self, "is_stopped", True)
        try:
            for doc, request in zip(self.docs, requests, strict=True):
                runner.run(self.wait(request))
                if self.is_stopped:
                    raise KeyboardInterrupt
                yield Decoded(np.array([self.compare(doc, request.result())]))
                if self.is_hopeless():
                    break
        except (KeyboardInterrupt, UserError):
            note(
                f"The answers to {len(self.store.pairs)} prompts are kept. --resume goes on if no"
                " server is changed."
            )
            raise
        finally:
            for request in requests:
                request.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            count = len(self.answered)
            note(f"{count} prompts answered by both in {self.progress.seconds:.0f} s")

    async def ask(self, doc: Document) -> list[Pair]:
        """The answers of both endpoints to a document; what is known is not asked again."""
        request = request_of(self.task, doc)
        mark = self.endpoints.mark(request)
        if mark not in self.store.pairs:
            self.store.add(mark, await self.endpoints.ask(request))
            self.fresh += 1
        return self.store.pairs[mark]

    async def wait(self, request: asyncio.Task[list[Pair]]) -> None:
        """Wait for the answers to a document, or until Ctrl-C, and tell how far the others are."""
        while not request.done() and not self.is_stopped:
            await asyncio.wait([request], timeout=TICK)
            self.progress.tell(len(self.store.pairs), self.fresh)

    def compare(self, doc: Document, pairs: list[Pair]) -> float:
        """Keep and score the answers to a document; what the claim is about."""
        prompt = Answered.of(self.task, doc, pairs)
        self.answered.append(prompt)
        if len(self.answered) == PILOT:
            self.progress.tell(len(self.store.pairs), self.fresh, with_plan=True)
        difference = self.claim.difference(prompt)
        self.changed += difference
        return difference

    def is_hopeless(self) -> bool:
        """Whether no proof is left, whatever the remaining prompts show; only a claim whose
        differences are never negative knows that.
        """
        if self.claim.id != "agreement" or self.plan.stop != "clear":
            return False
        error = (1 - self.plan.confidence) / 2
        sizes = (len(self.answered), len(self.docs))
        return all(p_value(int(self.changed), 0, n, self.plan.budget) > error for n in sizes)

    def check_something_to_lose(self) -> None:
        """Refuse strict answers of which nothing could be lost, because a certificate would say
        nothing.
        """
        strict = Means.of(self.answered, 0)
        limit = self.task.max_new_tokens
        n = len(self.answered) * self.endpoints.samples.number
        if self.claim.to_lose(strict, n, limit) > self.plan.budget:
            return
        scored = "" if strict.score is None else f"score {strict.score:.1%} on average, "
        raise UserError(
            f"{self.endpoints.strict.url} has nothing to lose: its answers {scored}{strict.empty}"
            f" of {n} are empty and {strict.capped:.0%} were cut at {limit} tokens. Look at what"
            " it writes, and mend the prompt (--chat, --num-fewshot), the task or the model."
        )
