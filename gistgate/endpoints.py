"""What `gistgate calibrate --strict-endpoint … --loose-endpoint …` does: certify one server against another.

Nothing is known of either server but its answers, so this certifies vLLM's own lossy verification, relaxed acceptance
of other engines, quantised weights, or anything else that can be put behind an address. Only one claim is tested, so no
prompt chooses anything.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import openai
from filelock import FileLock

from gistgate.certificates.calibration import task_scope
from gistgate.certificates.fixed_sequence import Stop, Verdicts, check_stop, fixed_sequence
from gistgate.certificates.judged import Looks, level
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import check_possible, default_n, plan_sentence
from gistgate.core.config import opened
from gistgate.core.files import fingerprint, read_json, write_json
from gistgate.core.gate import Gate
from gistgate.core.utils import UserError
from gistgate.lm_eval.calibrate import judged_marks, learned_by, spec_of
from gistgate.lm_eval.prompts import distinct_documents, hashes_of, problems_of, used_prompts
from gistgate.lm_eval.task import Document, Task, load_task

# ---- What was certified about one server against another, seen from outside, as the file `served-certificate.json`.


SERVED_FILE = "served-certificate.json"


@dataclass(frozen=True)
class Lengths:
    """What the answers of one server look like, beside their score."""

    capped: float
    """Share of answers that were cut at the longest length."""
    tokens: float | None
    """Mean length in tokens; None where the server does not say it."""
    score: float
    """Mean score."""


@dataclass(frozen=True)
class ServedCertificate:
    """One test of one claim: the loose server loses at most `budget` against the strict one."""

    strict: dict[str, Any]
    """Address, model and request settings of the reference."""
    loose: dict[str, Any]
    """The same of the server that was tested."""
    scope: dict[str, Any]
    """Task, prompts and prompting."""
    budget: float
    """Largest mean loss, in the unit of the score."""
    confidence: float
    """Probability with which the bound holds, over the draw of the prompts."""
    n: int
    """Prompts that were compared."""
    losses: int
    """Prompts on which the loose server scored lower."""
    gains: int
    """Prompts on which it scored higher."""
    differing: int
    """Prompts with different answers, scored alike or not."""
    loss: float
    """Mean of strict - loose score."""
    bound: float
    """One-sided upper bound on that mean."""
    bound_kind: str
    """Which bound it is."""
    certified: bool
    """Whether the bound keeps the budget."""
    strict_answers: Lengths
    loose_answers: Lengths
    refusal: str | None = None
    """Why nothing is certified and what would help; None after a success."""
    made: str = ""
    """Date in UTC."""

    def save(self, folder: str | Path) -> Path:
        """Write `served-certificate.json` into a folder and return its path."""
        path = Path(folder) / SERVED_FILE
        write_json(path, asdict(self))
        return path


# ---- One model behind an OpenAI-compatible server, asked greedily, one request for one answer.


RETRIES = 5
"""Times that the client repeats a request after a broken connection, a timeout, status 429 or a status from 500 on.
Greedy requests change nothing on the server, so repeating one is safe."""
SECONDS = 600.0
"""Longest wait for one answer."""
KEY = "OPENAI_API_KEY"
"""Environment variable with the key of a server that asks for one."""
WHOLE = ("stop", "length")
"""Reasons for which a complete answer ends; every other one means that the answer is not what the model would say."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class EncodedPrompt:
    """One request."""

    prompt: str | Messages
    """A text to continue, or the messages of a chat."""
    stops: tuple[str, ...]
    """Texts that end the answer; the protocol allows four."""
    max_tokens: int
    """Longest answer, in tokens."""


@dataclass(frozen=True)
class Served:
    """One complete answer."""

    text: str
    """The answer, without the text that ended it."""
    tokens: int | None
    """Its length in tokens; None where the server does not say it."""
    capped: bool
    """Whether it was cut at the longest length."""


@dataclass(frozen=True)
class Endpoint:
    """A server, one of its models, and what every request to it says beside the prompt."""

    url: str
    """Address up to the version, such as http://127.0.0.1:8000/v1."""
    model: str
    """Name under which the server knows the model."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of every request's body, such as {"vllm_xargs": {"gistgate": "strict"}}."""

    @cached_property
    def client(self) -> Any:
        """The connections to the server, which threads may share."""
        key = os.environ.get(KEY, "none")
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=RETRIES, timeout=SECONDS)

    def described(self) -> dict[str, Any]:
        """What tells this endpoint from others in a certificate."""
        return {"url": self.url, "model": self.model, "extra": dict(self.extra)}

    def answer(self, asked: EncodedPrompt) -> Served:
        """The greedy answer to one request.

        Raises:
            UserError: no whole answer came, or another model gave it.
        """
        shared: dict[str, Any] = {
            "model": self.model,
            "max_tokens": asked.max_tokens,
            "temperature": 0.0,
            "stop": list(asked.stops) or None,
            "extra_body": {**continued(asked.prompt), **self.extra} or None,
        }
        with explained(self.url):
            if isinstance(asked.prompt, str):
                done = self.client.completions.create(prompt=asked.prompt, **shared)
            else:
                done = self.client.chat.completions.create(messages=asked.prompt, **shared)
            return self._whole(done)  # a page of a gateway may come with status 200

    def hang_up(self) -> None:
        """Close all connections: requests on their way fail, and the next request opens new ones."""
        if (client := self.__dict__.pop("client", None)) is not None:
            client.close()

    def _whole(self, done: Any) -> Served:
        if done.model != self.model:
            raise UserError(
                f"{self.url} was asked for the model '{self.model}' and answered with '{done.model}'. A certificate "
                "would speak of the wrong model. Name the model that the server serves."
            )
        choice = done.choices[0] if done.choices else None
        if choice is None or choice.finish_reason not in WHOLE:
            reason = choice.finish_reason if choice else "no answer at all"
            raise UserError(
                f"{self.url} ended an answer with '{reason}', so it is not whole and is not scored. Look into the "
                "server's log; a rerun asks again and keeps all answers that are whole."
            )
        text = choice.text if hasattr(choice, "text") else choice.message.content
        tokens = done.usage.completion_tokens if done.usage else None
        return Served(text or "", tokens, choice.finish_reason == "length")


def continued(prompt: str | Messages) -> dict[str, bool]:
    """Entries of the request that let the answer go on from a beginning which the task gives it, in a chat.

    Without them vLLM and SGLang close that message and begin another one, and a task of programs would get prose.
    """
    if isinstance(prompt, str) or prompt[-1]["role"] != "assistant":
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def connect(url: str, model: str | None, extra: Mapping[str, Any]) -> Endpoint:
    """The endpoint, once its server has named its models; without `model` the only one that it serves.

    Raises:
        UserError: nobody answers, or the server does not serve such a model.
    """
    url = url.rstrip("/")
    if not is_address(url):
        raise UserError(
            f"'{url}' is no address of a server. Write it as http://HOST:PORT/v1, such as http://127.0.0.1:8000/v1."
        )
    with explained(url):
        known = [one.id for one in Endpoint(url, model or "").client.models.list()]
    if model is None and len(known) != 1:
        raise UserError(f"{url} serves {', '.join(known) or 'no model'}. Name one of its models.")
    if model is not None and model not in known:
        raise UserError(f"{url} does not serve '{model}'. It serves: {', '.join(known) or 'no model'}.")
    return Endpoint(url, model or known[0], extra)


def is_address(url: str) -> bool:
    """Whether a client can be made for a URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        return False


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    try:
        yield
    except openai.APIConnectionError as error:  # a timeout is one, too
        raise UserError(
            f"{url} cannot be reached, after {RETRIES} repetitions ({error}). Start or mend the server and run the "
            "command again: answers that have come are kept."
        ) from error
    except openai.APIStatusError as error:
        raise UserError(
            f"{url} refused a request with status {error.status_code}: {short(error.message)}. Mend the request or the "
            "server and run the command again: answers that have come are kept."
        ) from error
    except (openai.OpenAIError, ValueError, AttributeError, TypeError, LookupError) as error:
        raise UserError(
            f"{url} does not speak the OpenAI protocol: {short(str(error))}. The address usually ends with /v1."
        ) from error


def short(text: str) -> str:
    """The beginning of a server's message, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:300]}..."


# ---- Answers of servers that have come, in one SQLite file: each is kept the moment it is whole, until its run is over.


Waiting = dict[Future[Served], str]
"""Requests on their way, and the key of each."""


class KeptAnswers:
    """Asks a server once for each request, however often a run is started."""

    def __init__(self, path: Path, run: str) -> None:
        """Open or create the file.

        Args:
            path: the file, which several runs may share.
            run: id of the run. Answers of other runs are not used: a server may have been changed in between.

        Raises:
            UserError: the file is none that this class wrote, or cannot be written.
        """
        self.path, self.run = path, run
        with self._base() as base, base:
            base.execute("create table if not exists kept (run text, key text, answer text, primary key (run, key))")

    def __len__(self) -> int:
        """Answers of this run that have come."""
        with self._base() as base:
            return int(base.execute("select count(*) from kept where run = ?", (self.run,)).fetchone()[0])

    def answers(self, endpoint: Endpoint, asked: Sequence[EncodedPrompt], concurrent: int) -> list[Served]:
        """Answers in the order of the requests, at most `concurrent` of them on their way at a time.

        Raises:
            UserError: a request failed, or an answer cannot be written; what came before it is kept.
        """
        keys = [fingerprint(endpoint.described(), asdict(one)) for one in asked]
        with self._base() as base:
            rows = base.execute("select key, answer from kept where run = ?", (self.run,))
            known = {key: Served(**json.loads(answer)) for key, answer in rows}
            request = {key: one for key, one in zip(keys, asked, strict=True) if key not in known}
            pool = ThreadPoolExecutor(max(concurrent, 1))
            waiting: Waiting = {pool.submit(endpoint.answer, one): key for key, one in request.items()}
            try:
                failures = [error for one in as_completed(waiting) if (error := self._keep(base, one, waiting, known))]
            except BaseException:
                endpoint.hang_up()  # after Ctrl-C nobody waits for a server, and what has come is kept
                for one in [one for one in waiting if one.done() and waiting[one] not in known]:
                    self._keep(base, one, waiting, known)
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        if failures:
            raise failures[0]
        return [known[key] for key in keys]

    def finish(self) -> None:
        """Forget the answers of this run: the next one asks the servers as they are then."""
        with self._base() as base, base:
            base.execute("delete from kept where run = ?", (self.run,))

    def _keep(
        self, base: sqlite3.Connection, done: Future[Served], waiting: Waiting, known: dict[str, Served]
    ) -> BaseException | None:
        """Keep one answer; after a failure, which is returned, only requests on their way are still waited for."""
        if done.cancelled():
            return None
        if (error := done.exception()) is not None:
            for other in waiting:
                other.cancel()
            return error
        key = waiting[done]
        with base:
            base.execute(
                "insert or ignore into kept values (?, ?, ?)", (self.run, key, json.dumps(asdict(done.result())))
            )
        known[key] = done.result()
        return None

    def _base(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self.path, "the answers are then asked again")


# ---- Two servers that answer the same documents of a task, chunk by chunk, and what their answers look like.


CHUNK = 64
"""Prompts between two looks at the outcomes."""


@dataclass
class Compared:
    """Both servers on the calibration documents, chunk by chunk; every answer is kept for the lengths."""

    task: Task
    docs: Sequence[Document]
    strict: Endpoint
    loose: Endpoint
    kept: KeptAnswers
    concurrent: int

    def __post_init__(self) -> None:
        self.answers: tuple[list[Served], list[Served]] = ([], [])
        self.scores: tuple[list[float], list[float]] = ([], [])

    def chunks(self) -> Iterator[Decoded]:
        """d = strict - loose score of the next documents."""
        for start in range(0, len(self.docs), CHUNK):
            docs = self.docs[start : start + CHUNK]
            asked = [request(self.task, doc) for doc in docs]
            for endpoint, answers, scores in zip((self.strict, self.loose), self.answers, self.scores, strict=True):
                new = self.kept.answers(endpoint, asked, self.concurrent)
                answers += new
                scores += [self.task.score(doc, self.task.cut(one.text)) for doc, one in zip(docs, new, strict=True)]
            first, second = (np.array(scores[start:], dtype=float) for scores in self.scores)
            yield Decoded(first - second)

    @property
    def differing(self) -> int:
        """Prompts that the servers answered differently."""
        return sum(one.text != other.text for one, other in zip(*self.answers, strict=True))

    def lengths(self) -> tuple[Lengths, Lengths]:
        """Capped answers, length and score of the strict and the loose server."""
        first, second = (described(*pair) for pair in zip(self.answers, self.scores, strict=True))
        return first, second


def request(task: Task, doc: Document) -> EncodedPrompt:
    """How a document is asked."""
    prompt = task.messages(doc) if task.prompting.chat_template else task.context(doc, None)
    return EncodedPrompt(prompt, tuple(task.stops), task.max_new_tokens)


def described(answers: Sequence[Served], scores: Sequence[float]) -> Lengths:
    """Means over the answers of one server."""
    tokens = [one.tokens for one in answers if one.tokens is not None]
    mean = fmean(tokens) if len(tokens) == len(answers) else None
    return Lengths(fmean(one.capped for one in answers), mean, fmean(scores))


MOST_STOPS = 4
"""Stop texts that the protocol allows."""
KEPT = Path(".scratch/endpoints.sqlite")
"""Where answers wait for a rerun."""
FINISHED = Path(".gistgate/served.json")
"""How often each comparison came to its end here: a server may be changed before the next one."""


@dataclass(frozen=True)
class Options:
    """The options of the command; its help texts say what each one means."""

    task: str
    strict_endpoint: str
    loose_endpoint: str
    strict_model: str | None = None
    loose_model: str | None = None
    strict_body: str = "{}"
    loose_body: str = "{}"
    gate: str | None = None
    budget: float = 0.02
    confidence: float = 0.95
    prompts: int | None = None
    stop: Stop = "lost"
    task_data: str | None = None
    allow_code: bool = False
    chat: bool | None = None
    system: str | None = None
    num_fewshot: int | None = None
    metric: str | None = None
    max_new_tokens: int | None = None
    concurrent: int = 8
    out: Path = Path()
    draw: int = 1
    looks: int = 1
    seed: int = 0


def certify(options: Options) -> tuple[ServedCertificate, Path]:
    """Plan, ask both servers, test, write. The file is written after a refusal, too, and says so.

    Raises:
        UserError: a server does not answer as it should, so few prompts can certify nothing, or these prompts were
            judged before: a comparison that came to its end is not repeated on its prompts.
    """
    check_options(options)
    gate = None if options.gate is None else Gate.load(options.gate)
    spec = spec_of(options, gate)
    task = load_task(spec)
    if len(task.stops) > MOST_STOPS:
        raise UserError(
            f"The task '{options.task}' has {len(task.stops)} stop texts; servers take {MOST_STOPS}. Remove some "
            "of its `until`."
        )
    docs = documents(task, options, gate)
    confidence = level(options.confidence, options.looks)
    print(plan_sentence(options.budget, confidence, len(docs), True, options.stop))
    check_possible(options.budget, confidence, len(docs), True, options.stop)
    strict = connect(options.strict_endpoint, options.strict_model, body(options.strict_body))
    loose = connect(options.loose_endpoint, options.loose_model, body(options.loose_body))
    if strict == loose:
        raise UserError(
            "Strict and loose endpoint are the same server, model and request. Name two addresses, or tell them apart "
            "by --strict-body and --loose-body."
        )
    looks = looks_of(options, task, docs, strict, loose)
    tested = [options.budget, options.stop, asdict(spec.prompting), spec.metric, spec.max_new_tokens]
    comparison = fingerprint(looks.claim, looks.hashes, tested)
    again = times_finished(comparison)
    looks.take(looks.look([*tested, again], 1 - confidence))
    kept = KeptAnswers(KEPT, f"{comparison}-{again}")
    if len(kept):
        print(
            f"{len(kept)} answers come from a run that was interrupted, and are not asked again. If a server was "
            f"changed in between, stop here and remove {KEPT}."
        )
    compared = Compared(task, docs, strict, loose, kept, options.concurrent)
    verdicts = fixed_sequence([compared.chunks()], [options.budget], confidence, options.stop)
    certificate = certificate_of(options, compared, verdicts)
    path = certificate.save(options.out)
    times_finished(comparison, more=1)
    kept.finish()
    return certificate, path


def times_finished(comparison: str, more: int = 0) -> int:
    """How often a comparison came to its end in this folder, `more` times of them right now.

    Raises:
        UserError: the file is damaged.
    """
    FINISHED.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(FINISHED.with_name(f".{FINISHED.name}.lock")):
        counts = read_json(FINISHED) if FINISHED.exists() else {}
        if not isinstance(counts, dict) or not all(isinstance(one, int) for one in counts.values()):
            raise UserError(f"{FINISHED} does not count comparisons. Remove it, and take fresh prompts with --draw.")
        times: int = counts.get(comparison, 0) + more
        if more:
            write_json(FINISHED, {**counts, comparison: times})
    return times


def looks_of(options: Options, task: Task, docs: list[Document], strict: Endpoint, loose: Endpoint) -> Looks:
    """What the ledger is told: which claim is about to be tested on which prompts."""
    return Looks(
        claim=f"{options.task}, served: {loose.described()} against {strict.described()}",
        prompts=[list(task.question(doc).encode()) for doc in docs],
        problems=[hashes_of([task.problem(doc)]) for doc in docs],
        error=1 - options.confidence,
        remedy=f"A server may have been changed since. Add --draw {options.draw + 1}, which takes fresh calibration "
        "prompts.",
    )


def certificate_of(options: Options, compared: Compared, verdicts: Verdicts) -> ServedCertificate:
    """What the answers proved."""
    bound, refusal = verdicts.bound(options.budget), verdicts.refusal(options.budget)
    strict, loose = compared.lengths()
    return ServedCertificate(
        strict=compared.strict.described(),
        loose=compared.loose.described(),
        scope=task_scope(compared.task, [compared.task.question(doc) for doc in compared.docs]),
        budget=options.budget,
        confidence=bound.confidence,
        n=bound.n,
        losses=bound.losses,
        gains=bound.gains,
        differing=compared.differing,
        loss=bound.mean,
        bound=bound.value,
        bound_kind=bound.kind,
        certified=refusal is None,
        strict_answers=strict,
        loose_answers=loose,
        refusal=refusal,
        made=datetime.now(UTC).date().isoformat(),
    )


def documents(task: Task, options: Options, gate: Gate | None) -> list[Document]:
    """Calibration documents in random order, without problems that a finished run used, a ledger knows from a pipeline
    or the gate behind the loose server was trained on.

    Raises:
        UserError: none is left.
    """
    train = task.documents("train")
    order = random.Random(f"{options.seed} certificates")
    seen = problems_of(task, used_prompts())
    known = judged_marks() | set(learned_by(gate).split())
    unused = (train[index] for index in distinct_documents(task, train, order, seen))
    found = [doc for doc in unused if hashes_of([task.problem(doc)]) not in known]
    confidence = level(options.confidence, options.looks)
    n = options.prompts or default_n(options.budget, confidence, True, len(found), options.stop)
    drawn = found[(options.draw - 1) * n : options.draw * n]
    if not drawn:
        raise UserError(
            f"The task '{options.task}' has {len(found)} unused training documents, which is too few for draw "
            f"{options.draw} of {n} prompts. Lower --prompts or --draw, or take a larger task."
        )
    return drawn


def body(text: str) -> dict[str, object]:
    """Further entries of a request.

    Raises:
        UserError: the text is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"'{text}' is no JSON ({error}). Write an object such as {{\"top_k\": 1}}.") from error
    if not isinstance(value, dict):
        raise UserError(f"'{text}' is no JSON object. Write one such as {{\"top_k\": 1}}.")
    return value


def check_options(options: Options) -> None:
    """Refuse a claim that nobody can certify.

    Raises:
        UserError: budget, confidence or way to stop are none.
    """
    if not (0 < options.budget < 1 and 0.5 <= options.confidence < 1):
        raise UserError(
            f"A budget of {options.budget:g} at confidence {options.confidence:g} cannot be certified. "
            "The budget lies in (0, 1), the confidence in [0.5, 1)."
        )
    check_stop(options.stop)
