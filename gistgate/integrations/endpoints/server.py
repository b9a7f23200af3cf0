"""One model behind an OpenAI-compatible server, asked greedily, one request for one answer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import openai

from gistgate.errors import UserError

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
class Asked:
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

    def answer(self, asked: Asked) -> Served:
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
