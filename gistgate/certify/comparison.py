"""Both endpoints on the same documents: asking them, and comparing their answers."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from random import Random
from statistics import fmean
from time import monotonic
from typing import Any

import numpy as np

from gistgate.certificates.bounds import Array, p_value
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import Plan
from gistgate.certify.answers import Answered, Pair, Served, mean_length, means_of
from gistgate.certify.claims import Claim
from gistgate.certify.endpoint import Endpoint, note
from gistgate.certify.judge import MOST_UNREAD, Judge, preference
from gistgate.certify.paired import Record
from gistgate.certify.play import Request, played, request_of
from gistgate.certify.store import AnswerStore
from gistgate.core.files import fingerprint
from gistgate.core.utils import PromptError, UserError
from gistgate.tasks.task import Document, Task

PILOT = 10  # prompts after which the seconds of the plan are said
TICK = 0.5  # seconds between two lines about the progress, on a terminal
SELDOM = 10.0  # the same elsewhere
MOST = 0.5  # share of answers without an end above which they may be thoughts


@dataclass(frozen=True)
class BothEndpoints:
    """The strict endpoint and the loose one, which get the same requests."""

    strict: Endpoint
    loose: Endpoint
    temperature: float
    samples: int
    """Answers of each endpoint to a prompt."""
    seed: int
    """What the seeds of all requests follow."""
    concurrent: int
    """Requests that may be under way."""

    @cached_property
    def free(self) -> asyncio.Semaphore:
        """What lets that many through."""
        return asyncio.Semaphore(self.concurrent)

    def mark(self, request: Request) -> str:
        """What tells the answers to a request from others."""
        return fingerprint(request.identity, self.temperature, self.samples, self.seed)

    async def ask(self, request: Request) -> list[Pair]:
        """The answers of both endpoints, one pair for each sample; the seed of a request that is
        repeated is the same, and so is the other endpoint's.
        """
        samplings = self.samplings(request)
        return await asyncio.gather(*(self.pair(request, sampling) for sampling in samplings))

    def samplings(self, request: Request) -> list[dict[str, Any]]:
        """What a request says for each of its samples."""
        if not self.temperature:
            return [{}] * self.samples
        seeds = Random(self.mark(request))
        return [
            {"temperature": self.temperature, "seed": seeds.getrandbits(31)}
            for _ in range(self.samples)
        ]

    async def pair(self, request: Request, sampling: dict[str, Any]) -> Pair:
        """One answer of each endpoint."""
        async with self.free:
            return await asyncio.gather(
                played(self.strict, request, sampling), played(self.loose, request, sampling)
            )


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
        skips: int = 0,
        keeps_texts: bool = False,
        judge: Judge | None = None,
    ) -> None:
        self.task = task
        self.docs = docs
        self.endpoints = endpoints
        self.claim = claim
        self.plan = plan
        self.store = store
        self.skips = skips  # prompts that servers may refuse
        self.keeps_texts = keeps_texts
        self.judge = judge
        self.need: int | None = None  # prompts that are planned
        self.answered: list[Answered] = []  # the prompts that were compared, in their order
        self.records: list[Record] = []  # of the same
        self.refused: list[dict[str, str]] = []  # prompts that were left out
        self.fresh = 0  # prompts that were asked in this run
        self.done = 0  # these, and those with answers of an earlier one
        self.is_stopped = False  # by Ctrl-C
        self.began = monotonic()
        self.last_note = self.began  # about the progress
        self.last_count = -1  # of prompts, which it said

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
                pairs = self.pairs_of(doc, request)
                if pairs:
                    yield Decoded(self.compare(doc, pairs))
                if self.is_hopeless():
                    break
        except (KeyboardInterrupt, UserError):
            self.tell_kept()
            raise
        finally:
            for request in requests:
                request.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            seconds = monotonic() - self.began
            note(f"{len(self.answered)} prompts answered by both in {seconds:.0f} s")

    def tell_kept(self) -> None:
        """Say that what was paid for is not lost."""
        note(
            f"The answers to {self.done} prompts are kept. --resume goes on if no server is"
            " changed."
        )

    async def ask(self, doc: Document) -> list[Pair]:
        """The answers of both endpoints to a document; what is known is not asked again."""
        request = request_of(self.task, doc)
        mark = self.endpoints.mark(request)
        if mark in self.store.refusals:
            raise PromptError(self.store.refusals[mark])
        if mark not in self.store.pairs:
            try:
                pairs = await self.endpoints.ask(request)
                self.store.add(mark, await self.judged(request, pairs))
            except PromptError as error:
                if self.skips:
                    self.store.refuse(mark, str(error))
                raise
            self.fresh += 1
        self.done += 1
        return self.store.pairs[mark]

    async def judged(self, request: Request, pairs: list[Pair]) -> list[Pair]:
        """The answers with what the judge says of them, if there is one."""
        if self.judge is None:
            return pairs
        async with self.endpoints.free:
            prompt = request.prompt
            return await asyncio.gather(*(self.judge.judged(prompt, pair) for pair in pairs))

    def pairs_of(self, doc: Document, request: asyncio.Task[list[Pair]]) -> list[Pair]:
        """The answers to a document; none if a server refused it and the user allows that."""
        try:
            return request.result()
        except PromptError as error:
            place = place_of(self.task, doc)
            if len(self.refused) >= self.skips:
                raise UserError(
                    f"{place} was refused. {error} To leave such prompts out and count them on the"
                    f" card, allow more of them: --skip-refused {self.skips + 10}."
                ) from error
            self.refused.append({"place": place, "cause": str(error)})
            note(f"{place} was refused and is left out. {error}")
            return []

    async def wait(self, request: asyncio.Task[list[Pair]]) -> None:
        """Wait for the answers to a document, or until Ctrl-C, and tell how far the others are."""
        while not request.done() and not self.is_stopped:
            await asyncio.wait([request], timeout=TICK)
            is_due = monotonic() - self.last_note >= (TICK if sys.stderr.isatty() else SELDOM)
            if is_due and self.done > self.last_count:
                self.tell()

    def tell(self, need: int | None = None, stays: bool = False) -> None:
        """Say how far the run is, its rate and the time left, and how long the `need` of a plan
        takes, but no outcome, so that an interruption is no look.
        """
        self.last_note = monotonic()
        rate = self.fresh / (self.last_note - self.began)
        self.last_count = self.done
        text = f"{self.done} of at most {len(self.docs)} prompts answered by both"
        if rate:
            seconds = (len(self.docs) - self.done) / rate
            text += f", {60 * rate:.0f} a minute, {seconds:.0f} s left"
            if need:
                text += f"; {need} prompts, as planned, take {need / rate:.0f} s"
        note(text, stays)

    def compare(self, doc: Document, pairs: list[Pair]) -> Array:
        """Keep and score the answers to a document; what is tested of it [1]."""
        prompt = Answered(self.task, doc, pairs)
        self.answered.append(prompt)
        self.records.append(self.record_of(prompt))
        if len(self.answered) == PILOT:
            self.tell(self.need, stays=True)
            for sentence in self.unfinished():
                note(sentence)
        record = self.records[-1]
        return self.claim.differences(np.array([[record.baseline, record.candidate]]))

    def record_of(self, prompt: Answered) -> Record:
        """What the file of records holds of a prompt."""
        baseline, candidate = self.claim.measured(prompt)
        strict, loose = prompt.answers
        texts = []
        if self.keeps_texts:
            answers = [*prompt.transcripts(0), *prompt.transcripts(1)]
            texts = [self.task.question(prompt.doc), *answers]
        return Record(
            task=self.task.name,
            id=place_of(self.task, prompt.doc),
            prompt=fingerprint(self.task.prompt(prompt.doc)),
            baseline=baseline,
            candidate=candidate,
            differs=prompt.is_differing,
            tokens=(mean_length(strict), mean_length(loose)),
            finishes=tuple(finish_of(answer) for answer in (*strict, *loose)),
            judge=tuple(words for answer in prompt.loose for words in answer.judge),
            texts=tuple(text.encode(errors="replace").decode() for text in texts),
        )

    def is_hopeless(self) -> bool:
        """Whether no proof is left, whatever the remaining prompts show; only a claim whose
        differences are never negative knows that.
        """
        if self.claim.id != "agreement" or self.plan.stop != "clear":
            return False
        error = (1 - self.plan.confidence) / 2
        sizes = (max(1, len(self.answered)), len(self.docs))
        changed = sum(record.candidate < record.baseline for record in self.records)
        return all(p_value(changed, 0, n, self.plan.budget) > error for n in sizes)

    def means(self, side: int) -> dict[str, float | None]:
        """What a card says of the strict endpoint (0) or the loose one (1)."""
        answers = []
        scores = []
        for prompt in self.answered:
            answers += prompt.answers[side]
            scores += prompt.scores[side : side + 1]
        return means_of(answers, scores)

    def unfinished(self) -> list[str]:
        """A sentence about each endpoint that ends most of its answers at the longest length or
        within a thought: what it wrote may be a thought without a mark.
        """
        sentences = []
        for side, endpoint in enumerate((self.endpoints.strict, self.endpoints.loose)):
            answers: list[Served] = []
            for prompt in self.answered:
                answers += prompt.answers[side]
            share = fmean(answer.capped or answer.is_open for answer in answers)
            if share > MOST:
                sentences.append(
                    f"{endpoint.url} does not end {share:.0%} of its answers within"
                    f" {self.task.max_new_tokens} tokens: they may be thoughts. Allow longer ones"
                    " (--max-new-tokens), or switch reasoning off (--template"
                    " enable_thinking=false)."
                )
        return sentences

    def check_finished(self) -> None:
        """Refuse a claim about scores of a chat in which one endpoint alone ends most of its
        answers: what the other one is scored by may stand in a thought.
        """
        sentences = self.unfinished()
        is_chat = self.task.prompting.chat_template
        if is_chat and self.claim.id == "score" and len(sentences) == 1:
            raise UserError(sentences[0])

    @property
    def unread(self) -> float:
        """The share of prompts of which the judge said no verdict."""
        values = [preference(answer.judge) for prompt in self.answered for answer in prompt.loose]
        return fmean(value is None for value in values)

    def check_judge(self) -> None:
        """Refuse a judge that often says no verdict."""
        if self.judge and self.unread > MOST_UNREAD:
            raise UserError(
                f"{self.judge.endpoint.url} said no verdict about {self.unread:.0%} of the prompts."
                " Take another judge, or ask it for [[A]], [[B]] or [[C]] (--judge-prompt)."
            )

    def check_something_to_lose(self) -> None:
        """Refuse strict answers of which nothing could be lost, because a certificate would say
        nothing.
        """
        if self.claim.to_lose(self.answered) > self.plan.budget:
            return
        means = self.means(0)
        texts = [answer.text for prompt in self.answered for answer in prompt.answers[0]]
        empty = sum(not text.strip() for text in texts)
        scored = "" if means["score"] is None else f"score {means['score']:.1%} on average, "
        raise UserError(
            f"{self.endpoints.strict.url} has nothing to lose: its answers {scored}{empty} of"
            f" {len(texts)} are empty and {means['capped']:.0%} were cut at"
            f" {self.task.max_new_tokens} tokens. Look at what it writes, and mend the prompt"
            " (--chat, --num-fewshot), the task or the model."
        )


def finish_of(answer: Served) -> str:
    """Why an answer ended: by itself (stop), at the longest length, or at a limit of the server."""
    if answer.limited:
        return "limited"
    return "length" if answer.capped else "stop"


def place_of(task: Task, doc: Document) -> str:
    """Where a document stands: the line of a file, or the hash of its text in a task."""
    place = str(doc.get("place", "")).rstrip(",")
    return place or f"document {fingerprint(task.question(doc))[:10]}"
