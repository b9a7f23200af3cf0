"""Servers that speak the OpenAI protocol: finding the model, asking it, and saying what went wrong."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import openai

from gistgate.core.utils import UserError, first_line, printable

RETRIES = 5  # repetitions of a request after a broken connection, a timeout, or status 429 or from 500 on
PATIENCE = 180.0  # longest time that one request waits before its repetitions, in seconds
SAID = 2.0  # pauses from so many seconds on are said
SECONDS = 600.0  # longest wait for one answer
KEY = "OPENAI_API_KEY"  # environment variable with the key of both servers, if they are one host, or of OpenAI's
KEYS = {"strict": "GISTGATE_STRICT_API_KEY", "loose": "GISTGATE_LOOSE_API_KEY"}  # those of one server each
MOST_STOPS = 4  # that the protocol allows; answers are cut at all of them here
BROKEN = (None, "content_filter", "tool_calls", "function_call", "abort", "error")
"""Reasons for which an answer ends that is not what the model would say; servers have several words for "stop"."""

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Served:
    """One complete answer."""

    text: str  # the answer, without the text that ended it
    tokens: int | None  # its length in tokens; None where the server does not say it
    capped: bool  # whether it was cut at the longest length
    limited: bool = False  # whether the server cut it at a limit of its own before that


@dataclass(frozen=True)
class Endpoint:
    """A server, one of its models, and what every request to it says beside the prompt."""

    url: str  # address up to the version, such as http://127.0.0.1:8000/v1, without a password
    model: str  # name under which the server knows the model
    extra: Mapping[str, Any] = field(default_factory=dict)  # further entries of every request's body
    key: str = field(default="", repr=False, compare=False)  # what it asks for; never written
    login: str = field(default="", repr=False, compare=False)  # user and password as HTTP wants them; never written
    names: tuple[str, ...] = field(default=(), repr=False, compare=False)  # other names for the model in its answers
    reported: list[str] = field(default_factory=list, repr=False, compare=False)  # what it says of itself

    @cached_property
    def client(self) -> Any:
        """The connections to the server, of one event loop."""
        login, key = {"Authorization": self.login} if self.login else None, self.key or "none"
        return openai.AsyncOpenAI(base_url=self.url, api_key=key, default_headers=login, max_retries=0, timeout=SECONDS)

    def described(self) -> dict[str, Any]:
        """What tells this endpoint from others in a certificate."""
        return {"url": self.url, "model": self.model, "extra": dict(self.extra)}

    def report(self, name: str, said: Any) -> None:
        """Keep what the server says of itself, and say where it says something else than before."""
        if said and (text := f"{name} {' '.join(str(said).split())[:100]}") not in self.reported:
            if before := [one for one in self.reported if one.startswith(f"{name} ")]:
                note(f"{self.url} reports {text} after {before[-1]}. If it was changed within the run, begin anew.")
            self.reported.append(text)

    async def patiently(self, request: Callable[[], Awaitable[Any]]) -> Any:
        """What a request gives, repeated where the server is busy or the connection breaks; long pauses are said."""
        waited, repeated = 0.0, 0
        while True:
            try:
                return await request()
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                status, response = getattr(error, "status_code", 0), getattr(error, "response", None)
                wanted = self.client._parse_retry_after_header(getattr(response, "headers", None))
                pause = wanted or min(0.5 * 2**repeated, 8.0)
                waited, repeated = waited + pause, repeated + 1
                is_final = 0 < status < 500 and status not in (408, 409, 429)
                if is_final or repeated > RETRIES or waited > PATIENCE:
                    raise
                if pause >= SAID:
                    cause = f"status {status}" if status else first_line(error.__cause__ or error)
                    note(f"{self.url}: {cause}; repetition {repeated} of {RETRIES} in {pause:.0f} s, Ctrl-C ends it.")
                await asyncio.sleep(pause)

    async def survey(self) -> tuple[list[str], str]:
        """The models that the server lists, or none and the cause; they are kept, and so is its version."""
        known, cause, listing = [], "an empty list", self.client.models.list
        try:
            known = [one.id for one in (await self.patiently(listing)).data]
        except (openai.APIConnectionError, openai.AuthenticationError, openai.PermissionDeniedError):
            raise
        except Exception as error:
            cause = first_line(error)
        self.report("list", ", ".join(sorted(known)))
        with suppress(Exception):  # vLLM has a page with its version, and llama.cpp says it in every answer
            page = f"{self.url.removesuffix('/v1')}/version"
            self.report("version", (await self.client.get(page, cast_to=object, options={"timeout": 5.0}))["version"])
        return known, cause

    async def answer(self, prompt: str | Messages, stops: Sequence[str], max_tokens: int, **sampling: Any) -> Served:
        """The answer to a text to continue, or to the messages of a chat; greedy without other `sampling`."""
        shared: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stop": list(stops)[:MOST_STOPS] or None,
            "extra_body": {**continued(prompt), **self.extra} or None,
            **sampling,
        }
        with explained(self.url):
            if isinstance(prompt, str):
                done = await self.patiently(lambda: self.client.completions.create(prompt=prompt, **shared))
            else:
                done = await self.patiently(lambda: self.client.chat.completions.create(messages=prompt, **shared))
            # A page of a gateway may come with status 200.
            return self.whole(done, self.extra.get("stop") or stops, self.extra.get("max_tokens") or max_tokens)

    def whole(self, done: Any, stops: str | Sequence[str], max_tokens: int) -> Served:
        """An answer that came, without its end, unless it was cut short or another model gave it."""
        named = (done.model or "").removesuffix("@main")  # which `transformers serve` adds
        if named not in ("", self.model, *self.names):
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
        self.report("model", done.model)
        self.report("fingerprint", getattr(done, "system_fingerprint", None))
        for stop in [stops] if isinstance(stops, str) else stops:  # `transformers serve` leaves it in the text
            text = text.split(stop)[0]
        tokens, capped = done.usage.completion_tokens if done.usage else None, choice.finish_reason == "length"
        return Served(text, tokens if tokens or not text else None, capped, capped and 0 < (tokens or 0) < max_tokens)


def continued(prompt: str | Messages) -> dict[str, bool]:
    """Entries that let the answer of a chat go on from its beginning; else vLLM and SGLang begin another message."""
    is_begun = not isinstance(prompt, str) and prompt[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if is_begun else {}


async def connect(url: str, model: str | None, extra: str, key: str, names: tuple[str, ...]) -> Endpoint:
    """The endpoint, if it serves the model; without `model` the only one that it serves. Some servers list none."""
    url, login = without_login(url)
    endpoint = Endpoint(url, model or "", body(extra), key, login, names)
    with explained(url):
        known, cause = await endpoint.survey()
    if model is None and len(known) == 1:
        return replace(endpoint, model=known[0])
    if model is None or (known and model not in (*known, *names)):
        said = f"serves: {', '.join(known)}" if known else f"lists no model ({cause})"
        wanted = f" It does not serve '{model}'; if it does, add --same-model {model}." if model else ""
        raise UserError(
            f"{url} {said}.{wanted} Name one (--strict-model, --loose-model), or mend the address, which mostly ends "
            "with /v1."
        )
    return endpoint


def note(text: str, stays: bool = True) -> None:
    """A line to standard error; on a terminal it takes the place of one that does not stay."""
    live = sys.stderr.isatty()
    text = printable(text)
    print(f"\r\033[K{text}" if live else text, end="\n" if stays or not live else "", file=sys.stderr, flush=True)


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


def body(text: str) -> dict[str, object]:
    """Further entries of a request."""
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise UserError(f"'{text}' is no JSON object. Write one such as {{\"top_k\": 1}}.")


REMEDIES = {
    "CERTIFICATE_VERIFY_FAILED": "Name the authority that signed it: SSL_CERT_FILE=<file.pem>.",
    "WRONG_VERSION_NUMBER": "It speaks http without TLS: write http:// in place of https://.",
    "record layer failure": "It speaks http without TLS: write http:// in place of https://.",
    "disconnected without": "It may want TLS: write https:// in place of http://.",
    "ReadError": "It broke off: look into its log. If it wants TLS, write https:// in place of http://.",
    "Name or service": "The name of its machine is not known here: look for a typing error.",
    "roxy": "A proxy of the environment stands between: unset it, or put the machine into NO_PROXY.",
    "timed out": "It answers too slowly: ask for less at a time with --concurrent.",
    "": "Start or mend the server, and repeat.",
}  # by what the cause says


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    try:
        yield
    except openai.APIConnectionError as error:  # a timeout is one, too
        host, proxies = urlsplit(url).hostname or "", getproxies()
        proxy = None if proxy_bypass(host) else proxies.get(urlsplit(url).scheme) or proxies.get("all")
        cause = first_line(error.__cause__ or error) + (f", by the proxy {without_login(proxy)[0]}" if proxy else "")
        remedy = next(remedy for sign, remedy in REMEDIES.items() if sign in cause)
        raise UserError(f"{url} cannot be reached, after {RETRIES} repetitions ({cause}). {remedy}") from error
    except openai.AuthenticationError as error:
        raise UserError(f"{url} wants another key: {first_line(error)}. Set {' or '.join(KEYS.values())}.") from error
    except openai.APIStatusError as error:
        raise UserError(
            f"{url} refused a request with status {error.status_code}: {' '.join(error.response.text.split())[:200]}. "
            "Mend that, ask for less at a time (--concurrent), or for something else (--strict-body, --loose-body)."
        ) from error
    except UserError:
        raise
    except Exception as error:  # an address that is none, a page of a gateway, or a proxy of another kind
        remedy = REMEDIES["roxy"] if "roxy" in str(error) else "End it with /v1."
        raise UserError(f"{url} does not speak the OpenAI protocol: {first_line(error)}. {remedy}") from error
