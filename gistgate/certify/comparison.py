"""What `gistgate certify` does: certify one server against another, on a task or on one's own
prompts.

Only one claim is tested, so no prompt chooses anything. An interrupted run asks again, unless
--resume says that no server was changed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

import gistgate
from gistgate.certificates.bounds import p_value
from gistgate.certificates.calibration import task_scope
from gistgate.certificates.decoder import check_options, known_marks, planned, spec_of
from gistgate.certificates.fixed_sequence import Verdicts, fixed_sequence
from gistgate.certificates.ledger import Ledger, Look, hash_of, level
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import needed_for
from gistgate.certify.endpoint import Endpoint, Messages, Served, body, connect, keys_of, note
from gistgate.core.files import fingerprint, write_json, write_text
from gistgate.core.utils import UserError, nearest, refusing
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_task
from gistgate.models.options import read_rows
from gistgate.tasks.prompts import distinct_documents, hashes_of, used_problems
from gistgate.tasks.task import TASKS, Document, Task, TaskSpec

if TYPE_CHECKING:
    from gistgate.cli.certify import Options

Pair = tuple[Served, Served]  # the answers of both servers to one prompt, of one seed

SERVED_FILE = "served-certificate.json"
CLAIMS = {
    "score": ("scores at most {:.4g} points lower than", "loss", "lost", "gained"),
    "agreement": (
        "answers at most {:.4g} % of the prompts otherwise than",
        "changed",
        "changed",
        "mended",
    ),
    "length": ("writes at most {:.4g} % more than", "growth", "longer", "shorter"),
}  # what is said of the loose server by budget; words for what is bounded, and for prompts on both sides of it
# prompts that a claim on lengths plans for, which nothing predicts before the first answers
LENGTHS = 250
PILOT = 10  # prompts after which the seconds of the plan are said
TICK = 0.5  # seconds between two lines about the progress, on a terminal and elsewhere
SELDOM = 10.0


@dataclass(frozen=True)
class ServedCertificate:
    """One test of one claim about the loose server against the strict one."""

    strict: dict[
        str, Any
    ]  # address, model and request settings of the reference, and what it reports of itself
    loose: dict[str, Any]  # the same of the server that was tested
    scope: dict[str, Any]  # task, prompts and prompting
    # largest mean loss in the unit of the score, share of changed answers, or growth of the mean
    # length
    budget: float
    confidence: float  # probability with which the claim holds, over the draw of the prompts
    n: int  # prompts that were compared
    losses: int  # prompts on which the loose server scored lower, answered otherwise or wrote more
    gains: int  # prompts on which it scored higher or wrote less
    differing: int  # prompts with different answers, scored alike or not
    # mean of strict - loose score, share of changed answers, or growth of the mean length
    loss: float
    bound: float  # one-sided upper bound on that
    bound_kind: str  # which bound it is
    certified: bool  # whether the bound keeps the budget
    strict_answers: dict[
        str, float | None
    ]  # shares cut at the longest length and before, mean tokens and mean score
    loose_answers: dict[str, float | None]
    refusal: str | None = None  # why nothing is certified and what would help; None after a success
    made: str = ""  # date in UTC
    claim: str = "score"  # one of `CLAIMS`
    task: str = ""  # its name
    sampling: dict[str, Any] = field(
        default_factory=dict
    )  # what every request says, unless `extra` says otherwise
    version: str = ""  # of GistGate

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        strict, loose = (f"{one['model']} at {one['url']}" for one in (self.strict, self.loose))
        said, what, worse, better = CLAIMS[self.claim]
        sampled = (
            f" at temperature {heat}, on average over samples"
            if (heat := self.sampling["temperature"])
            else ""
        )
        return (
            f"{'Certified' if self.certified else 'Not certified'} at {100 * self.confidence:.4g}"
            f" %: {loose} {said.format(100 * self.budget)} {strict}{sampled}; {what}"
            f" {self.loss:.2%}, at most {self.bound:.2%} ({self.losses} {worse}, {self.gains}"
            f" {better}, {self.differing} in other words, of {self.n} prompts)."
        )

    @property
    def card(self) -> str:
        """The sentence and all entries as a page of Markdown."""
        told = asdict(self)
        sides = [{**told.pop(side), **told.pop(f"{side}_answers")} for side in ("strict", "loose")]
        rows = [
            f"| {name} | {' | '.join(in_cell(one[name]) for one in sides)} |" for name in sides[0]
        ]
        facts = [f"- {name}: {in_cell(entry)}" for name, entry in told.items()]
        return "\n".join(
            [
                f"# {self.sentence}",
                "",
                "| | strict | loose |",
                "|---|---|---|",
                *rows,
                "",
                *facts,
                "",
            ]
        )


def in_cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("|", "&#124;")


class OwnPrompts(Task):
    """A file in place of a task: entries with `prompt` or `messages`, and an `answer` where one is
    known, or texts.
    """

    stops = ()  # type: ignore[assignment]
    metric = "the text contains the answer"
    name = "own prompts"
    max_new_tokens = 0

    def __init__(self, rows: list[tuple[str, Any]], file: str, spec: TaskSpec) -> None:
        if spec.data or spec.metric or spec.allow_code or spec.prompting.num_fewshot:
            raise UserError(
                "--task-data, --metric, --allow-code and --num-fewshot belong to a task. Leave them"
                " out."
            )
        self.rows = [row if isinstance(row, dict) else {"prompt": row} for _, row in rows]
        self.max_new_tokens = spec.max_new_tokens
        example = (
            '{"prompt": "2 + 2?", "answer": "4"}, or with "messages" of a chat in place of a prompt'
        )
        with refusing(
            f"{file} holds something else than prompts", f"Write lines such as {example}."
        ):
            is_chat = spec.prompting.chat_template or any("messages" in row for row in self.rows)
            self.prompting = replace(spec.prompting, chat_template=is_chat)
            self.judges = all("answer" in row for row in self.rows)
            texts = [one["content"] for row in self.rows for one in self.messages(row)]
            if not texts or not all(isinstance(text, str) and text for text in texts):
                raise ValueError("a prompt is empty or no text")

    def documents(self, split: str) -> list[Document]:
        return self.rows

    def question(self, doc: Document) -> str:
        return str(doc.get("messages") or doc["prompt"])

    problem = question

    def context(self, doc: Document, tokenizer: object) -> str:
        return str(doc["prompt"])

    def messages(self, doc: Document) -> Messages:
        system = (
            [{"role": "system", "content": self.prompting.system}] if self.prompting.system else []
        )
        return [*system, *(doc.get("messages") or [{"role": "user", "content": doc["prompt"]}])]

    def score(self, doc: Document, text: str) -> float:
        """Whether the answer stands in the text, as whole words or numbers."""
        answer, text = (" ".join(str(one).casefold().split()) for one in (doc["answer"], text))
        return float(
            bool(re.search(rf"(?<!\w)(?<!\d[.,])(?<!-){re.escape(answer)}(?!\w|[.,]\d)", text))
        )

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool:
        return text.split() == reference.split()


def certify(options: Options) -> tuple[ServedCertificate, Path]:
    """Plan, ask both servers, test, write. The card is written after a refusal, too, and says
    so.
    """
    check_options(options)
    if (options.task is None) == (options.file is None):
        raise UserError(
            "Name what both servers are asked: a task (--task), or a file of your own prompts"
            " (--file)."
        )
    gate = None if options.gate is None else Gate.load(options.gate)
    spec = spec_of(options, gate)
    task = (
        OwnPrompts(read_rows(options.file), options.file, spec)
        if options.file
        else load_task(spec, TASKS)
    )
    claim = claim_of(options, task.judges)
    confidence = level(options.confidence, options.looks)
    lost = float(claim == "agreement")
    stop = options.stop
    ternary = options.samples == 1
    need = needed_for(
        options.budget, confidence, options.changed, ternary, stop, lost * options.changed
    )
    need = LENGTHS if claim == "length" else need
    docs = documents(task, options, gate, need)
    if claim != "length":
        planned(options, len(docs), ternary, lost)
    with asyncio.Runner() as runner:
        strict, loose = connected(options, spec, runner)
        name = ", ".join([task.name, claim][: 1 + (claim != "score")])
        name += f" at temperature {options.temperature}" if options.temperature else ""
        questions = [task.question(doc) for doc in docs]
        # it says nothing of what is tested, because a server may be changed before the next look
        look = Look(
            claim=f"{name}, served: {loose.described()} against {strict.described()}",
            marks=[hash_of(list(one.encode())) for one in questions]
            + [hashes_of([task.problem(doc)]) for doc in docs],
            spent=1 - confidence,
            error=1 - options.confidence,
            remedy=(
                f"A server may have been changed since. Add --draw {options.draw + 1}, which takes"
                " fresh prompts."
            ),
        )
        ledger = Ledger()
        ledger.check(look)
        told = [{**one.described(), "reported": one.reported} for one in (strict, loose)]
        kept = ledger.local.with_name(f"answers-{fingerprint(told)}.jsonl")
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.open("a" if options.resume else "w").close()
        compared = Compared(
            task, docs, (strict, loose), claim, options, need, kept, answers_in(kept)
        )
        ternary = ternary and claim != "length"
        verdicts = fixed_sequence(
            [compared.chunks(runner)], [options.budget], confidence, stop, ternary
        )  # type: ignore[arg-type]
        for one in (strict, loose):  # again, so that a change is said
            with suppress(Exception):
                runner.run(one.survey())
    compared.check_something_to_lose()
    ledger.record(look)
    certificate = compared.certificate(verdicts, confidence)
    path = (options.out or Path()) / SERVED_FILE
    write_json(path, asdict(certificate))
    write_text(path.with_suffix(".md"), certificate.card)
    kept.unlink(missing_ok=True)
    return certificate, path


def claim_of(options: Options, judges: bool) -> str:
    """The claim that is made, if it can be, where right answers are known or not."""
    claim = options.claim or ("score" if judges else "agreement")
    if claim not in CLAIMS:
        raise UserError(f"There is no claim '{claim}'. {nearest(claim, CLAIMS)}")
    if claim == "score" and not judges:
        raise UserError(
            f"{options.file} has prompts without `answer`, so no score is known. Take --claim"
            " agreement."
        )
    if claim == "agreement" and options.temperature:
        raise UserError(
            "Two samples differ by chance, so agreement shows nothing. Take another claim."
        )
    if options.samples > 1 and not options.temperature:
        raise UserError(
            "All greedy answers to a prompt are one. Add --temperature, or leave --samples out."
        )
    return claim


def connected(
    options: Options, spec: TaskSpec, runner: asyncio.Runner
) -> tuple[Endpoint, Endpoint]:
    """The strict endpoint and the loose one, unless both are one."""
    runner.get_loop().set_exception_handler(
        lambda *_: None
    )  # of requests that nobody waits for any more
    keys = keys_of(options.strict, options.loose)
    names = tuple(options.same_model)
    arguments = spec.prompting.arguments
    said = (
        {"chat_template_kwargs": arguments} if arguments else {}
    )  # as vLLM, SGLang and llama.cpp call them
    sides = [
        (
            options.strict,
            options.strict_model,
            {**said, **body(options.strict_body)},
            keys["strict"],
            names,
        ),
        (
            options.loose,
            options.loose_model,
            {**said, **body(options.loose_body)},
            keys["loose"],
            names,
        ),
    ]
    strict, loose = (runner.run(connect(*side)) for side in sides)
    one, other = (
        replace(one, url=one.url.lower().replace("localhost", "127.0.0.1"))
        for one in (strict, loose)
    )
    if one == other:
        raise UserError(
            "Both endpoints are the same server, model and request. Tell them apart: --strict-body."
        )
    return strict, loose


def answers_in(kept: Path) -> dict[str, list[Pair]]:
    """The answers that an interrupted run left behind; a line that it could not finish counts as
    none.
    """
    found: dict[str, Any] = {}
    for line in kept.read_text().split("\n"):
        with suppress(ValueError):
            found |= json.loads(line)
    return {
        mark: [tuple(Served(**one) for one in pair) for pair in pairs]
        for mark, pairs in found.items()
    }  # type: ignore[misc]


def documents(
    task: Task, options: Options, gate: Gate | None, need: int | None = None
) -> list[Document]:
    """Calibration documents in random order, without problems of a finished run, or that a pipeline
    or a gate knows.
    """
    train = task.documents("train")
    known = known_marks(gate)
    order = random.Random(f"{options.seed} certificates")
    unused = (train[index] for index in distinct_documents(task, train, order, used_problems(task)))
    found = [doc for doc in unused if hashes_of([task.problem(doc)]) not in known]
    n = options.prompts or (2 * need if need else len(found))
    drawn = found[(options.draw - 1) * n : options.draw * n]
    if not drawn:
        raise UserError(
            f"{len(found)} unused documents are too few for draw {options.draw} of {n}. Lower"
            " --prompts."
        )
    return drawn


@dataclass
class Compared:
    """Both servers on the calibration documents; every answer and score is kept, strict beside
    loose.
    """

    task: Task
    docs: Sequence[Document]
    sides: tuple[Endpoint, Endpoint]  # the strict one and the loose one
    claim: str
    options: Options
    need: int | None = None  # prompts that the guessed share of changed answers asks for
    kept: Path | None = None  # file of the answers until there is a card
    found: dict[str, list[Pair]] = field(
        default_factory=dict
    )  # answers by the hash of what was asked
    fresh: int = 0  # prompts that were asked, not found
    pairs: list[list[Pair]] = field(
        default_factory=list
    )  # of every prompt, in order, one for each sample
    scores: tuple[list[float], list[float]] = field(
        default_factory=lambda: ([], [])
    )  # empty where nothing is scored
    began: float = field(default_factory=monotonic)
    said: float = field(default_factory=monotonic)  # when the progress was said last
    stopped: bool = False  # by Ctrl-C

    @property
    def answers(self) -> tuple[list[Served], ...]:
        return tuple([pair[side] for pairs in self.pairs for pair in pairs] for side in (0, 1))

    def chunks(self, runner: asyncio.Runner) -> Iterator[Decoded]:
        """d of one prompt after the other, while further ones are under way, so that a test can end
        at any.
        """
        free = asyncio.Semaphore(self.options.concurrent)
        loop = runner.get_loop()
        asked = [loop.create_task(self.ask(doc, free)) for doc in self.docs]
        with suppress(RuntimeError):  # a thread takes no signals
            # An exception that Ctrl-C raises between two callbacks would leave a loop that cannot
            # be closed.
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                loop.add_signal_handler(signal.SIGINT, setattr, self, "stopped", True)
        options = self.options
        changed = 0.0
        total = len(self.docs)
        ends = self.claim == "agreement" and options.stop == "clear"
        error = (1 - options.confidence) / options.looks / 2
        try:
            for n, (doc, pairs) in enumerate(zip(self.docs, asked, strict=True), start=1):
                runner.run(self.wait(pairs))
                if self.stopped:
                    raise KeyboardInterrupt
                yield Decoded(np.array([d := self.taken(doc, pairs.result())]))
                changed += d
                if ends and all(
                    p_value(int(changed), 0, of, options.budget) > error for of in (n, total)
                ):
                    break  # no proof is left, whatever the rest of the prompts show
        except (KeyboardInterrupt, UserError):
            note(
                f"The answers to {len(self.found)} prompts are kept. --resume goes on if no server"
                " is changed."
            )
            raise
        finally:
            for pairs in asked:
                pairs.cancel()
            loop.remove_signal_handler(signal.SIGINT)
            note(f"{len(self.pairs)} prompts answered by both in {monotonic() - self.began:.0f} s")

    async def ask(self, doc: Document, free: asyncio.Semaphore) -> list[Pair]:
        """The answers of both servers to a prompt, one pair for each sample; what is known is not
        asked again.
        """
        asked: list[Any] = [self.task.prompt(doc), list(self.task.stops), self.task.max_new_tokens]
        heat = self.options.temperature
        mark = fingerprint(asked, heat, self.options.samples, self.options.seed)
        seeds = random.Random(
            mark
        )  # the seed of a request that is repeated is the same, and so is the other server's

        async def sample(**sampling: Any) -> Pair:
            async with free:
                return await asyncio.gather(*(one.answer(*asked, **sampling) for one in self.sides))  # type: ignore[return-value]

        if mark not in self.found:
            seeded = [
                {"temperature": heat, "seed": seeds.getrandbits(31)}
                for _ in range(self.options.samples)
            ]
            self.found[mark] = await asyncio.gather(
                *(sample(**(one if heat else {})) for one in seeded)
            )
            self.fresh += 1
            if self.kept:
                with self.kept.open("a") as file:  # behind a line that an interruption cut
                    file.write(
                        "\n"
                        + json.dumps(
                            {mark: [[asdict(one) for one in pair] for pair in self.found[mark]]}
                        )
                    )
        return self.found[mark]

    async def wait(self, both: asyncio.Task[list[Pair]]) -> None:
        while not both.done() and not self.stopped:
            await asyncio.wait([both], timeout=TICK)
            self.tell()

    def tell(self, plan: bool = False) -> None:
        """Say how far the run is, its rate and the time left, but no outcome, so that an
        interruption is no look.
        """
        done = len(self.found)  # in any order
        total = len(self.docs)
        now = monotonic()
        if plan or now - self.said >= (TICK if sys.stderr.isatty() else SELDOM):
            self.said = now
            rate = self.fresh / (now - self.began)
            need = self.need if plan and rate else None
            cost = f"; {need} prompts, as planned, take {need / rate:.0f} s" if need else ""
            times = (
                f", {60 * rate:.0f} a minute, {(total - done) / rate:.0f} s left{cost}"
                if rate
                else ""
            )
            note(f"{done} of at most {total} prompts answered by both{times}", stays=plan)

    def taken(self, doc: Document, pairs: list[Pair]) -> float:
        """Keep and score the answers to a prompt; what the claim is about."""
        task = self.task
        budget = self.options.budget
        limit = self.task.max_new_tokens
        self.pairs.append(pairs)
        texts = [[task.cut(one.text) for one in side] for side in zip(*pairs, strict=True)]
        for side, scores in zip(texts, self.scores, strict=True):
            scores += [fmean(task.score(doc, text) for text in side)] if task.judges else []
        if len(self.pairs) == PILOT:
            self.tell(plan=True)
        if self.claim == "score":
            return self.scores[0][-1] - self.scores[1][-1]
        if self.claim == "agreement":
            [(strict,), (loose,)] = texts
            return float(strict != loose and not task.same_meaning(doc, loose, strict))
        lengths = [[one.tokens for one in side] for side in zip(*pairs, strict=True)]
        if any(tokens is None or tokens > limit for side in lengths for tokens in side):
            one, other = (side[0] for side in lengths)
            raise UserError(
                f"The servers say {one} and {other} tokens, of at most {limit}. Claim something"
                " else."
            )
        one, other = map(fmean, lengths)
        return (
            budget + (1 - budget) * (other - (1 + budget) * one) / limit
        )  # the mean is the budget if it is just kept

    def check_something_to_lose(self) -> None:
        """Refuse strict answers of which nothing could be lost, because a certificate would say
        nothing.
        """
        strict = described(self.answers[0], self.scores[0])
        limit = self.task.max_new_tokens
        n = len(self.answers[0])
        empty = sum(not one.text.strip() for one in self.answers[0])
        room = limit / (strict["tokens"] or limit) - 1  # more than that they cannot grow
        worth = {"score": strict["score"], "agreement": 1 - empty / n, "length": room}
        if (worth[self.claim] or 0) <= self.options.budget:
            scored = "" if strict["score"] is None else f"score {strict['score']:.1%} on average, "
            raise UserError(
                f"{self.sides[0].url} has nothing to lose: its answers {scored}{empty} of {n} are"
                f" empty and {strict['capped']:.0%} were cut at {limit} tokens. Look at what it"
                " writes, and mend the prompt (--chat, --num-fewshot), the task or the model."
            )

    def certificate(self, verdicts: Verdicts, confidence: float) -> ServedCertificate:
        """What the test said."""
        task = self.task
        budget = self.options.budget
        tested = verdicts.tested[0]
        strict, loose = (described(*side) for side in zip(self.answers, self.scores, strict=True))
        if self.claim == "length":  # what was decided stays
            unit = task.max_new_tokens / (strict["tokens"] or 1)
            bound = tested.bounds[0]
            mean, value = (grown(one, budget, unit) for one in (bound.mean, bound.value))
            growths = [
                sum(other.tokens - one.tokens for one, other in pairs) for pairs in self.pairs
            ]  # type: ignore[operator,misc]
            losses = sum(one > 0 for one in growths)
            gains = sum(one < 0 for one in growths)
            shown = replace(bound, mean=mean, value=value, losses=losses, gains=gains)
            verdicts = replace(verdicts, tested=(replace(tested, bounds=(shown,)),))
        refusal = verdicts.refusal(budget)
        return ServedCertificate(
            strict={**self.sides[0].described(), "reported": self.sides[0].reported},
            loose={**self.sides[1].described(), "reported": self.sides[1].reported},
            **verdicts.bound(budget).entries,
            scope=task_scope(task, [task.question(doc) for doc in self.docs[: len(self.pairs)]]),
            budget=budget,
            confidence=confidence,
            certified=refusal is None,
            strict_answers=strict,
            loose_answers=loose,
            differing=sum(
                any(one.text != other.text for one, other in pairs) for pairs in self.pairs
            ),
            refusal=refusal,
            made=datetime.now(UTC).date().isoformat(),
            claim=self.claim,
            task=task.name,
            sampling={
                "temperature": self.options.temperature,
                "max_tokens": task.max_new_tokens,
                "stop": list(task.stops),
                "samples": self.options.samples,
                "seed": self.options.seed,
            },
            version=gistgate.__version__,
        )


def grown(value: float, budget: float, unit: float) -> float:
    """Growth of the mean length, from what is tested; `unit` is the longest length over the mean
    strict one.
    """
    return budget + (value - budget) * unit / (1 - budget)


def described(answers: Sequence[Served], scores: Sequence[float]) -> dict[str, float | None]:
    """Means over the answers of one server."""
    tokens = [one.tokens for one in answers if one.tokens is not None]
    mean = fmean(tokens) if len(tokens) == len(answers) else None
    capped, limited = (
        fmean(getattr(one, name) for one in answers) for name in ("capped", "limited")
    )
    return {
        "capped": capped,
        "limited": limited or None,
        "tokens": mean,
        "score": fmean(scores) if scores else None,
    }
