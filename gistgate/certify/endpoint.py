"""Servers that speak the OpenAI protocol: finding the model, asking it, and saying what went
wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import openai

from gistgate.core.utils import UserError, first_line, printable

RETRIES = (
    5  # repetitions of a request after a broken connection, a timeout, or status 429 or from 500 on
)
PATIENCE = 180.0  # longest time that one request waits before its repetitions, in seconds
SAID = 2.0  # pauses from so many seconds on are said
SECONDS = 600.0  # longest wait for one answer, and for the list of models
HELLO = 9.0
# environment variable with the key of both servers, if they are one host, or of OpenAI's
KEY = "OPENAI_API_KEY"
KEYS = {
    "strict": "GISTGATE_STRICT_API_KEY",
    "loose": "GISTGATE_LOOSE_API_KEY",
}  # those of one server each
MOST_STOPS = 4  # that the protocol allows; answers are cut at all of them here
BROKEN = (None, "content_filter", "tool_calls", "function_call", "abort", "error")
"""Reasons for which an answer ends that is not what the model would say; servers have several words
for "stop".
"""

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
    extra: Mapping[str, Any] = field(
        default_factory=dict
    )  # further entries of every request's body
    key: str = field(default="", repr=False, compare=False)  # what it asks for; never written
    login: str = field(
        default="", repr=False, compare=False
    )  # user and password as HTTP wants them; never written
    query: str = field(
        default="", repr=False, compare=False
    )  # what stands behind the address, such as a key; neither
    names: tuple[str, ...] = field(
        default=(), repr=False, compare=False
    )  # other names for the model in its answers
    reported: list[str] = field(
        default_factory=list, repr=False, compare=False
    )  # what it says of itself

    @cached_property
    def client(self) -> Any:
        """The connections to the server, of one event loop."""
        login = {"Authorization": self.login} if self.login else None
        key = self.key or "none"
        sent: dict[str, Any] = {
            "default_headers": login,
            "default_query": dict(parse_qsl(self.query)),
        }
        return openai.AsyncOpenAI(
            base_url=self.url, api_key=key, max_retries=0, timeout=SECONDS, **sent
        )

    def described(self) -> dict[str, Any]:
        """What tells this endpoint from others in a certificate."""
        return {"url": self.url, "model": self.model, "extra": without_secrets(self.extra)}

    def report(self, name: str, said: Any) -> None:
        """Keep what the server says of itself, and say where it says something else than before."""
        if said and (text := f"{name} {' '.join(str(said).split())[:100]}") not in self.reported:
            before = [
                one for one in self.reported if one.startswith(f"{name} ") and name != "finish"
            ]
            if before:
                note(
                    f"{self.url} reports {text} after {before[-1]}. If it was changed within the"
                    " run, begin anew."
                )
            self.reported.append(text)

    async def patiently(self, request: Callable[[], Awaitable[Any]], is_first: bool = False) -> Any:
        """What a request gives, repeated where waiting may help; a request that `is_first` may be
        at a wrong door.
        """
        waited = 0.0
        repeated = 0
        while True:
            try:
                return await request()
            except (openai.APIConnectionError, openai.APIStatusError) as error:
                status = getattr(error, "status_code", 0)
                response = getattr(error, "response", None)
                cause = f"status {status}" if status else cause_of(error, self.url)
                most = 0 if said_of(cause, LASTING) and not status else RETRIES
                most = min(most, 1) if is_first and said_of(cause, ASTRAY) else most
                wanted = self.client._parse_retry_after_header(getattr(response, "headers", None))
                pause = wanted or min(0.5 * 2**repeated, 8.0)
                is_final = 0 < status < 500 and status not in (408, 409, 429)
                if is_final or repeated >= most or waited + pause > PATIENCE:
                    if status:
                        raise
                    after = (
                        f", after {repeated} repetition{'s' * (repeated > 1)}" if repeated else ""
                    )
                    cause = f"cannot be reached{after} ({cause}). {said_of(cause, REMEDIES)}"
                    raise UserError(f"{self.url} {cause}") from error
                waited = waited + pause
                repeated = repeated + 1
                if pause >= SAID or "imeout" in cause:
                    note(
                        f"{self.url}: {cause}; repetition {repeated} of {most} in {pause:.0f} s,"
                        " Ctrl-C ends it."
                    )
                await asyncio.sleep(pause)

    async def survey(self) -> tuple[list[str], str]:
        """The models that the server lists, or none and the cause; they are kept, and so is its
        version.
        """
        known = []
        cause = "an empty list"
        listing = partial(self.client.models.list, timeout=HELLO)
        try:
            known = [one.id for one in (await self.patiently(listing, is_first=True)).data]
        except (UserError, openai.AuthenticationError, openai.PermissionDeniedError):
            raise
        except Exception as error:
            if getattr(error, "status_code", 0) == 407:
                raise
            cause = first_line(error)
        self.report("list", ", ".join(sorted(known)))
        with suppress(
            Exception
        ):  # vLLM has a page with its version, and llama.cpp says it in every answer
            page = f"{self.url.removesuffix('/v1')}/version"
            self.report(
                "version",
                (await self.client.get(page, cast_to=object, options={"timeout": 5.0}))["version"],
            )
        return known, cause

    async def answer(
        self, prompt: str | Messages, stops: Sequence[str], max_tokens: int, **sampling: Any
    ) -> Served:
        """The answer to a text to continue, or to the messages of a chat; greedy without other
        `sampling`.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            **sampling,
        }
        body |= (
            {"prompt": prompt}
            if isinstance(prompt, str)
            else {"messages": prompt, **continued(prompt)}
        )
        body |= {**({"stop": list(stops)[:MOST_STOPS]} if stops else {}), **self.extra}
        path = "/completions" if isinstance(prompt, str) else "/chat/completions"
        with explained(self):
            page = await self.patiently(lambda: self.client.post(path, body=body, cast_to=object))
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        return self.whole(page, text, body.get("stop") or (), body.get("max_tokens") or 0)

    def whole(
        self, page: Any, prompt: str = "", stops: str | Sequence[str] = (), most: int = 0
    ) -> Served:
        """The answer in a page that came with status 200, unless it is cut short, another model's
        or none at all.
        """
        with suppress(TypeError, ValueError):  # servers call JSON a text
            page = json.loads(page)
        choices, error = (
            page.get(name) if isinstance(page, dict) else None for name in ("choices", "error")
        )
        choice: Any = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) and not error:
            sent = (
                first_line(ValueError(page if isinstance(page, str) else json.dumps(page)))[:80]
                or "an empty page"
            )
            stream = (
                " Switch streams off (--strict-body, --loose-body)."
                if sent.startswith("data:")
                else ""
            )
            raise UserError(
                f"{self.url} does not speak the OpenAI protocol: it sent {sent}.{stream} {NOT_HERE}"
            )
        model = page.get("model")
        reason = error or choice.get("finish_reason")
        named = str(model or "").removesuffix("@main")  # which `transformers serve` adds
        if not error and named not in ("", self.model, *self.names):
            raise UserError(
                f"{self.url} was asked for the model '{self.model}' and answered with '{model}'. If"
                f" that is the same one, add --same-model {model}; else name it."
            )
        if error or reason in BROKEN:
            raise UserError(
                f"{self.url} ended an answer with '{reason}', so it is not whole. Look into its"
                " log."
            )
        text, instead = text_in(choice.get("message") or choice)
        if instead:
            raise UserError(
                f"{self.url} ended an answer with {instead} in place of a text. Switch reasoning"
                " and tools off (--strict-body, --loose-body), give the task longer answers, or"
                " leave such prompts out."
            )
        self.report("model", model)
        self.report("fingerprint", page.get("system_fingerprint"))
        self.report("finish", None if reason in ("stop", "length") else reason)
        if prompt.strip() and text.startswith(prompt):
            self.report("repeats", "the prompt in front of answers, which was cut off")
            text = text.removeprefix(prompt)
        usage = page.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
        tokens = tokens if isinstance(tokens, int) and tokens >= bool(text) else None
        for stop in [stops] if isinstance(stops, str) else stops:
            text = text.split(stop)[0]  # `transformers serve` leaves it in the text
        return Served(
            text, tokens, capped := reason == "length", capped and 0 < (tokens or 0) < most
        )


THOUGHT = re.compile(
    r".*(</([\w:]*think|thinking|thought|reasoning)>|\[/THINK\]|\|>final<\|message\|>)", re.S | re.I
)
THINKING = re.compile(
    r"\s*(<([\w:]*think|thinking|thought|reasoning)>|\[THINK\]|<\|channel\|>analysis)", re.I
)
"""Reasoning in front of an answer, and the beginning of one that never ends, in the marks of
several families.
"""


def text_in(said: Mapping[str, Any]) -> tuple[str, str]:
    """The text of an answer without its reasoning, and what stands in place of a text."""
    content = said.get("content", said.get("text"))
    parts = content if isinstance(content, list) else [content]
    found = (
        one.get("text") if isinstance(one, dict) and content is parts else one for one in parts
    )
    texts = [one for one in found if isinstance(one, str)]
    whole = "".join(texts)
    text = "" if THINKING.match(rest := THOUGHT.sub("", whole, 1)) else rest
    others = {
        "its reasoning": (
            said.get("reasoning_content") or said.get("reasoning") or len(parts) > len(texts) > 0
        ),
        "a refusal": said.get("refusal"),
        "the call of a tool": said.get("tool_calls") or said.get("function_call"),
        "nothing": not texts,
    }
    instead = (
        "its reasoning"
        if text != whole
        else next((name for name, there in others.items() if there), "")
    )
    return text, "" if text.strip() else instead


def continued(prompt: str | Messages) -> dict[str, bool]:
    """Entries that let the answer of a chat go on from its beginning; else vLLM and SGLang begin
    another message.
    """
    is_begun = not isinstance(prompt, str) and prompt[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if is_begun else {}


async def connect(
    url: str, model: str | None, extra: Mapping[str, Any], key: str, names: tuple[str, ...]
) -> Endpoint:
    """The endpoint, if it serves the model; without `model` the only one that it serves. Some
    servers list none.
    """
    url, login, query = without_login(url)
    endpoint = Endpoint(url, model or "", extra, key, login, query, names)
    with explained(endpoint):
        known, cause = await endpoint.survey()
    if model is None and len(known) == 1:
        return replace(endpoint, model=known[0])
    if model is None or (known and model not in (*known, *names)):
        said = f"serves: {', '.join(known)}" if known else f"lists no model ({cause})"
        wanted = (
            f" It does not serve '{model}'; if it does, add --same-model {model}." if model else ""
        )
        raise UserError(
            f"{url} {said}.{wanted} Name one (--strict-model, --loose-model), or mend the address,"
            " which mostly ends with /v1."
        )
    return endpoint


def note(text: str, stays: bool = True) -> None:
    """A line to standard error; on a terminal it takes the place of one that does not stay."""
    live = sys.stderr.isatty()
    text = printable(text)
    print(
        f"\r\033[K{text}" if live else text,
        end="\n" if stays or not live else "",
        file=sys.stderr,
        flush=True,
    )


def keys_of(strict: str, loose: str) -> dict[str, str]:
    """The key of each server: nobody's key is sent to somebody else."""
    hosts = {"strict": parts_of(strict).hostname, "loose": parts_of(loose).hostname}
    usual = os.environ.get(KEY, "")
    shared = hosts["strict"] == hosts["loose"]
    own = {
        name: usual if shared or host == "api.openai.com" else "" for name, host in hosts.items()
    }
    keys = {name: os.environ.get(variable, own[name]).strip() for name, variable in KEYS.items()}
    if not all(
        key.isascii() and key.isprintable() for key in keys.values()
    ):  # a message of HTTP would show it
        raise UserError(
            f"A key holds a line end or a letter beyond ASCII. Set {' or '.join(KEYS.values())}"
            " again."
        )
    return keys


def parts_of(url: str) -> SplitResult:
    """An address in its parts."""
    with suppress(ValueError):
        if (parts := urlsplit(url)).port != 0:
            return parts
    raise UserError(  # without the address, which may hold a password
        "The address of a server is none. Write one such as http://HOST:8000/v1, with %2F, %40 and"
        " %5B for the signs /, @ and [ of a password."
    )


def without_login(url: str) -> tuple[str, str, str]:
    """An address without user, password, query and last slash, the header that carries the former,
    and the query.
    """
    parts = parts_of(url)
    login, _, host = parts.netloc.rpartition("@")
    secret = b64encode(unquote(login).encode()).decode()
    address = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    return address, f"Basic {secret}" if login else "", parts.query


SECRET = re.compile(
    r"api[_-]?key|secret|passw|authorization|credential|(access|auth)[_-]?token$", re.I
)


def without_secrets(value: Any) -> Any:
    """Entries of a request as they may be written."""
    if isinstance(value, Mapping):
        return {
            name: "(hidden)" if SECRET.search(name) else without_secrets(one)
            for name, one in value.items()
        }
    return value


def body(text: str) -> dict[str, object]:
    """Further entries of a request."""
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise UserError(
        'What --strict-body or --loose-body says is no JSON object. Write one such as {"top_k": 1}.'
    )


NOT_HERE = "Mend the address, which mostly ends with /v1."
HTTP = "It speaks http without TLS: write http:// in place of https://."
NAME = "The name of its machine is not known here: look for a typing error."
DOOR = (
    "It broke off: look into its log. If it wants TLS, write https:// in place of http://; else"
    " another port."
)
LASTING = {  # what no waiting mends, by what the cause says
    "mismatch, certificate": "Write the name that stands in its certificate.",
    "has expired": "Renew its certificate.",
    "CERTIFICATE_VERIFY_FAILED": "Name the authority that signed it: SSL_CERT_FILE=<file.pem>.",
    "WRONG_VERSION_NUMBER": HTTP,
    "record layer failure": HTTP,
    "not known": NAME,
    "No address": NAME,
    "Request URL": "Begin the address with http:// or https://.",
    "decompress": (
        "It, or a proxy between, calls an answer compressed that is not: look into its log."
    ),
    "407 Proxy": (
        "A proxy of the environment wants a password: write it into the variable, or unset that."
    ),
}
ASTRAY = {
    "disconnected": DOOR,
    "ReadError": DOOR,
    "llegal": DOOR,
    "name resolution": NAME,
}  # may be a wrong address
REMEDIES = {
    **LASTING,
    **ASTRAY,
    "roxy": (
        "A proxy of the environment stands between: unset it, or put the machine into NO_PROXY."
    ),
    "imeout": (
        "It says nothing for too long: look whether it works, and ask for less at a time with"
        " --concurrent."
    ),
    "": "Start or mend the server, and repeat.",
}


def said_of(cause: str, signs: Mapping[str, str]) -> str | None:
    """What is said of the first sign that stands in a cause."""
    return next((said for sign, said in signs.items() if sign in cause), None)


def cause_of(error: Exception, url: str) -> str:
    """Why a server was not reached, in a line; a timeout is such an error, too."""
    host = urlsplit(url).hostname or ""
    proxies = getproxies()
    proxy = None if proxy_bypass(host) else proxies.get(urlsplit(url).scheme) or proxies.get("all")
    return first_line(error.__cause__ or error) + (
        f", by the proxy {without_login(proxy)[0]}" if proxy else ""
    )


@contextmanager
def explained(endpoint: Endpoint) -> Iterator[None]:
    """Turn what the client raises into one sentence."""
    url = endpoint.url
    try:
        yield
    except UserError:
        raise
    except openai.APIStatusError as error:
        said = " ".join(error.response.text.split()).replace(endpoint.key or "\0", "(the key)")[
            :200
        ]
        remedy = (
            "Mend that, ask for less at a time (--concurrent), or for other things (--strict-body,"
            " --loose-body)."
        )
        remedy = LASTING["407 Proxy"] if error.status_code == 407 else remedy
        if error.status_code in (401, 403):
            remedy = f"Set {' or '.join(KEYS.values())}, if it wants another key."
        raise UserError(
            f"{url} refused a request with status {error.status_code}: {said}. {remedy}"
        ) from error
    except (
        Exception
    ) as error:  # an address that is none, a page of a gateway, or a proxy of another kind
        remedy = REMEDIES["roxy"] if "roxy" in str(error) else NOT_HERE
        raise UserError(
            f"{url} does not speak the OpenAI protocol: {first_line(error)}. {remedy}"
        ) from error
