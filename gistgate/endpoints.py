"""What `gistgate calibrate --strict-endpoint … --loose-endpoint …` does: certify one server against another.

Only one claim is tested, so no prompt chooses anything. An interrupted run asks again: servers may have been changed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np
import openai

from gistgate.certificates.calibration import task_scope
from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.judged import Look, check, hash_of, level, record
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import default_n
from gistgate.core.files import write_json
from gistgate.core.gate import Gate
from gistgate.core.utils import UserError, first_line
from gistgate.lm_eval.calibrate import check_options, known_marks, planned, spec_of
from gistgate.lm_eval.prompts import distinct_documents, hashes_of, used_problems
from gistgate.lm_eval.task import Document, Task, load_task

if TYPE_CHECKING:
    from gistgate.cli.calibrate import Options

SERVED_FILE = "served-certificate.json"
CHUNK = 64  # prompts between two looks at the outcomes
RETRIES = 5  # repetitions of a request after a broken connection, a timeout, or status 429 or from 500 on
SECONDS = 600.0  # longest wait for one answer
KEY = "OPENAI_API_KEY"  # environment variable with the key of both servers, if they are one host, or of OpenAI's
KEYS = {"strict": "GISTGATE_STRICT_API_KEY", "loose": "GISTGATE_LOOSE_API_KEY"}  # those of one server each
MOST_STOPS = 4  # that the protocol allows; answers are cut at all of them here
BROKEN = (None, "content_filter", "tool_calls", "function_call", "abort", "error")
"""Reasons for which an answer ends that is not what the model would say; servers have several words for "stop"."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Lengths:
    """What the answers of one server look like, beside their score."""

    capped: float  # share of answers that were cut at the longest length
    tokens: float | None  # mean length in tokens; None where the server does not say it
    score: float  # mean score


@dataclass(frozen=True)
class ServedCertificate:
    """One test of one claim: the loose server loses at most `budget` against the strict one."""

    strict: dict[str, Any]  # address, model and request settings of the reference
    loose: dict[str, Any]  # the same of the server that was tested
    scope: dict[str, Any]  # task, prompts and prompting
    budget: float  # largest mean loss, in the unit of the score
    confidence: float  # probability with which the bound holds, over the draw of the prompts
    n: int  # prompts that were compared
    losses: int  # prompts on which the loose server scored lower
    gains: int  # prompts on which it scored higher
    differing: int  # prompts with different answers, scored alike or not
    loss: float  # mean of strict - loose score
    bound: float  # one-sided upper bound on that mean
    bound_kind: str  # which bound it is
    certified: bool  # whether the bound keeps the budget
    strict_answers: Lengths
    loose_answers: Lengths
    refusal: str | None = None  # why nothing is certified and what would help; None after a success
    made: str = ""  # date in UTC


def certify(options: Options) -> tuple[ServedCertificate, Path]:
    """Plan, ask both servers, test, write. The file is written after a refusal, too, and says so."""
    if not (options.strict_endpoint and options.loose_endpoint):
        raise UserError("Two servers are compared: name both --strict-endpoint and --loose-endpoint.")
    check_options(options)
    gate = None if options.gate is None else Gate.load(options.gate)
    task = load_task(spec_of(options, gate))
    docs = documents(task, options, gate)
    confidence = planned(options, len(docs), True)
    keys, names = keys_of(options.strict_endpoint, options.loose_endpoint), tuple(options.same_model)
    strict = connect(options.strict_endpoint, options.strict_model, body(options.strict_body), keys["strict"], names)
    loose = connect(options.loose_endpoint, options.loose_model, body(options.loose_body), keys["loose"], names)
    if strict == loose:
        raise UserError("Both endpoints are the same server, model and request. Tell them apart: --strict-body.")
    look = Look(  # it says nothing of what is tested, because a server may be changed before the next look
        claim=f"{options.task}, served: {loose.described()} against {strict.described()}",
        marks=[hash_of(list(task.question(doc).encode())) for doc in docs]
        + [hashes_of([task.problem(doc)]) for doc in docs],
        spent=1 - confidence,
        error=1 - options.confidence,
        remedy=f"A server may have been changed since. Add --draw {options.draw + 1}, which takes fresh prompts.",
    )
    check(look)
    compared = Compared(task, docs, strict, loose, options.concurrent)
    verdicts = fixed_sequence([compared.chunks()], [options.budget], confidence, options.stop)  # type: ignore[arg-type]
    strict_answers, loose_answers = map(described, compared.answers, compared.scores)
    if strict_answers.score <= options.budget:  # any loss would keep the budget, and a certificate would say nothing
        raise UserError(
            f"{strict.url} has nothing to lose: its answers score {strict_answers.score:.1%} on average, "
            f"{sum(not one.text.strip() for one in compared.answers[0])} of {len(compared.answers[0])} are empty and "
            f"{strict_answers.capped:.0%} were cut at {task.max_new_tokens} tokens. Look at what it writes, and mend "
            "the prompt (--chat, --num-fewshot), the task or the model."
        )
    record(look)
    bound, refusal = verdicts.bound(options.budget), verdicts.refusal(options.budget)
    certificate = ServedCertificate(
        strict=strict.described(), loose=loose.described(),
        scope=task_scope(task, [task.question(doc) for doc in docs]),
        budget=options.budget, confidence=bound.confidence, n=bound.n, losses=bound.losses, gains=bound.gains,
        differing=sum(one.text != other.text for one, other in zip(*compared.answers, strict=True)),
        loss=bound.mean, bound=bound.value, bound_kind=bound.kind, certified=refusal is None,
        strict_answers=strict_answers, loose_answers=loose_answers,
        refusal=refusal, made=datetime.now(UTC).date().isoformat(),
    )  # fmt: skip
    path = (options.out or Path()) / SERVED_FILE
    write_json(path, asdict(certificate))
    return certificate, path


def documents(task: Task, options: Options, gate: Gate | None) -> list[Document]:
    """Calibration documents in random order, without problems of a finished run, or that a pipeline or a gate knows."""
    train, known = task.documents("train"), known_marks(gate)
    order = random.Random(f"{options.seed} certificates")
    unused = (train[index] for index in distinct_documents(task, train, order, used_problems(task)))
    found = [doc for doc in unused if hashes_of([task.problem(doc)]) not in known]
    confidence = level(options.confidence, options.looks)
    n = options.prompts or default_n(options.budget, confidence, True, len(found), options.stop)
    drawn = found[(options.draw - 1) * n : options.draw * n]
    if not drawn:
        raise UserError(f"{len(found)} unused documents are too few for draw {options.draw} of {n}. Lower --prompts.")
    return drawn


def body(text: str) -> dict[str, object]:
    """Further entries of a request."""
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise UserError(f"'{text}' is no JSON object. Write one such as {{\"top_k\": 1}}.")


@dataclass
class Compared:
    """Both servers on the calibration documents; every answer and score is kept, strict beside loose."""

    task: Task
    docs: Sequence[Document]
    strict: Endpoint
    loose: Endpoint
    concurrent: int
    answers: tuple[list[Served], list[Served]] = field(default_factory=lambda: ([], []))
    scores: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def chunks(self) -> Iterator[Decoded]:
        """d = strict - loose score of the next documents."""
        for start in range(0, len(self.docs), CHUNK):
            docs = self.docs[start : start + CHUNK]
            for endpoint, answers, scores in zip((self.strict, self.loose), self.answers, self.scores, strict=True):
                new = self.ask(endpoint, docs)
                answers += new
                scores += [self.task.score(doc, self.task.cut(one.text)) for doc, one in zip(docs, new, strict=True)]
            print(f"{start + len(docs)} of {len(self.docs)} prompts are answered by both", file=sys.stderr, flush=True)
            first, second = (np.array(scores[start:], dtype=float) for scores in self.scores)
            yield Decoded(first - second)

    def ask(self, endpoint: Endpoint, docs: Sequence[Document]) -> list[Served]:
        """Answers in the order of the documents, at most `concurrent` requests on their way at a time."""
        task, pool = self.task, ThreadPoolExecutor(self.concurrent)
        prompts = [task.messages(doc) if task.prompting.chat_template else task.context(doc, None) for doc in docs]
        waiting = [pool.submit(endpoint.answer, prompt, task.stops, task.max_new_tokens) for prompt in prompts]
        try:
            for one in as_completed(waiting):
                one.result()
        except BaseException:
            endpoint.client.close()  # after a failure or Ctrl-C nobody waits for a server
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [one.result() for one in waiting]


def described(answers: Sequence[Served], scores: Sequence[float]) -> Lengths:
    """Means over the answers of one server."""
    tokens = [one.tokens for one in answers if one.tokens is not None]
    mean = fmean(tokens) if len(tokens) == len(answers) else None
    return Lengths(fmean(one.capped for one in answers), mean, fmean(scores))


@dataclass(frozen=True)
class Served:
    """One complete answer."""

    text: str  # the answer, without the text that ended it
    tokens: int | None  # its length in tokens; None where the server does not say it
    capped: bool  # whether it was cut at the longest length


@dataclass(frozen=True)
class Endpoint:
    """A server, one of its models, asked greedily, and what every request to it says beside the prompt."""

    url: str  # address up to the version, such as http://127.0.0.1:8000/v1, without a password
    model: str  # name under which the server knows the model
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of every request's body
    key: str = field(default="", repr=False, compare=False)  # what it asks for; never written
    login: str = field(default="", repr=False, compare=False)  # user and password as HTTP wants them; never written
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)  # other names for the model in its answers

    @cached_property
    def client(self) -> Any:
        """The connections to the server, which threads may share."""
        login = {"Authorization": self.login} if self.login else None
        return openai.OpenAI(
            base_url=self.url, api_key=self.key or "none", default_headers=login, max_retries=RETRIES, timeout=SECONDS
        )

    def described(self) -> dict[str, Any]:
        """What tells this endpoint from others in a certificate."""
        return {"url": self.url, "model": self.model, "extra": dict(self.extra)}

    def answer(self, prompt: str | Messages, stops: Sequence[str], max_tokens: int) -> Served:
        """The greedy answer to a text to continue, or to the messages of a chat."""
        shared: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stop": list(stops)[:MOST_STOPS] or None,
            "extra_body": {**continued(prompt), **self.extra} or None,
        }
        with explained(self.url):
            if isinstance(prompt, str):
                done = self.client.completions.create(prompt=prompt, **shared)
            else:
                done = self.client.chat.completions.create(messages=prompt, **shared)
            return self.whole(done)  # a page of a gateway may come with status 200

    def whole(self, done: Any) -> Served:
        """An answer that came, unless it was cut short or another model gave it."""
        if done.model not in (None, "", self.model, *self.names):
            raise UserError(
                f"{self.url} was asked for the model '{self.model}' and answered with '{done.model}'. If that is "
                f"the same one, add --same-model {done.model}; else name it."
            )
        choice = done.choices[0] if done.choices else None
        if choice is None or choice.finish_reason in BROKEN:
            reason = choice.finish_reason if choice else getattr(done, "error", None) or "no answer at all"
            raise UserError(f"{self.url} ended an answer with '{reason}', so it is not whole. Look into its log.")
        said = choice.message if hasattr(choice, "message") else choice
        text = said.content if hasattr(said, "content") else said.text
        thought = getattr(said, "reasoning_content", None) or getattr(said, "reasoning", None)
        if text is None or (thought and not text.strip()):
            instead = "its reasoning" if thought else "nothing"
            raise UserError(
                f"{self.url} ended an answer with {instead} in place of a text. Switch reasoning off (--strict-body, "
                "--loose-body), or give the task longer answers."
            )
        tokens = done.usage.completion_tokens if done.usage else None
        return Served(text, tokens, choice.finish_reason == "length")


def continued(prompt: str | Messages) -> dict[str, bool]:
    """Entries that let the answer of a chat go on from its beginning; else vLLM and SGLang begin another message."""
    is_begun = not isinstance(prompt, str) and prompt[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if is_begun else {}


def connect(url: str, model: str | None, extra: Mapping[str, Any], key: str, names: tuple[str, ...]) -> Endpoint:
    """The endpoint, if it serves the model; without `model` the only one that it serves. Some servers list none."""
    url, login = without_login(url)
    endpoint = Endpoint(url, model or "", extra, key, login, names)
    with explained(url):
        try:
            known = [one.id for one in endpoint.client.models.list()]
        except (openai.APIConnectionError, openai.AuthenticationError, openai.PermissionDeniedError):
            raise
        except Exception:
            if model is None:
                raise
            known = []
    if model is None and len(known) == 1:
        return replace(endpoint, model=known[0])
    if model is None or (known and model not in known):
        raise UserError(f"{url} does not serve '{model}'. It serves: {', '.join(known) or 'no model'}. Name one.")
    return endpoint


def keys_of(strict: str, loose: str) -> dict[str, str]:
    """The key of each server: nobody's key is sent to somebody else."""
    hosts = {"strict": urlsplit(strict).hostname, "loose": urlsplit(loose).hostname}
    usual, shared = os.environ.get(KEY, ""), hosts["strict"] == hosts["loose"]
    own = {name: usual if shared or host == "api.openai.com" else "" for name, host in hosts.items()}
    return {name: os.environ.get(variable, own[name]).strip() for name, variable in KEYS.items()}


def without_login(url: str) -> tuple[str, str]:
    """An address without user, password, query and last slash, and the header that carries user and password."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    secret = b64encode(unquote(login).encode()).decode()
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), f"Basic {secret}" if login else ""


REMEDIES = {
    "CERTIFICATE_VERIFY_FAILED": "Name the authority that signed it: SSL_CERT_FILE=<file.pem>.",
    "WRONG_VERSION_NUMBER": "It speaks http without TLS: write http:// in place of https://.",
    "record layer failure": "It speaks http without TLS: write http:// in place of https://.",
    "disconnected without": "It may want TLS: write https:// in place of http://.",
    "Name or service": "The name of its machine is not known here: look for a typing error.",
    "proxy": "A proxy of the environment stands between: unset it, or put the machine into NO_PROXY.",
    "timed out": "It answers too slowly: ask for less at a time with --concurrent.",
}  # by what the cause says


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    try:
        yield
    except openai.APIConnectionError as error:  # a timeout is one, too
        cause = str(error.__cause__ or error)
        known = (remedy for sign, remedy in REMEDIES.items() if sign in cause)
        remedy = next(known, "Start or mend the server, and repeat.")
        raise UserError(f"{url} cannot be reached, after {RETRIES} repetitions ({cause}). {remedy}") from error
    except openai.AuthenticationError as error:
        raise UserError(f"{url} wants another key: {first_line(error)}. Set {' or '.join(KEYS.values())}.") from error
    except openai.APIStatusError as error:
        raise UserError(
            f"{url} refused a request with status {error.status_code}: {' '.join(error.response.text.split())[:200]}. "
            "Mend it, and repeat."
        ) from error
    except UserError:
        raise
    except Exception as error:  # an address that is none, or a page of a gateway
        raise UserError(f"{url} does not speak the OpenAI protocol: {first_line(error)}. End it with /v1.") from error
