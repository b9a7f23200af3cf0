"""Servers that speak the OpenAI protocol: finding the model, and asking it."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import monotonic
from types import MappingProxyType
from typing import Any

import openai

from gistgate.certify.address import Address, withheld_headers, without_secrets
from gistgate.certify.answers import Served
from gistgate.certify.page import (
    BROKEN,
    CALLED,
    beginning_of,
    first_choice,
    instead_of,
    parsed_page,
    thought_tokens_in,
    tokens_in,
)
from gistgate.certify.thoughts import reply_in
from gistgate.certify.trouble import NOT_HERE, explained
from gistgate.core.utils import PromptError, UserError, first_line, printable
from gistgate.tasks.task import Messages
from gistgate.tasks.tool_calls import calls_of, written

RETRIES = 5
"""Repetitions of a request after a broken connection, a timeout, or status 429 or from 500 on."""
SECONDS = 600.0
"""Longest wait for one answer."""
HELLO = 9.0
"""Longest wait for the list of models, in seconds."""
LOADING = 180.0
"""Longest wait for a server that loads its model, in seconds."""
PAUSE = 3.0
"""Seconds between two questions to such a server."""
DOORS = (401, 403, 407, 503)
"""Statuses of a server that would list its models to somebody else, or later."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
MOST_STOPS = 4
"""Stops that the protocol allows; answers are cut at all of them here."""


@dataclass(frozen=True)
class Endpoint:
    """A server, one of its models, and what every request to it says beside the prompt."""

    address: Address
    model: str
    """Name under which the server knows the model; empty until it has listed its only one."""
    side: str = "candidate"
    """Baseline or candidate."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of every request's body; None leaves an entry out."""
    key: str = field(default="", repr=False)
    """What it asks for; never written."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What every request says beside its body; only the names are written."""
    names: tuple[str, ...] = ()
    """Other names for the model in its answers."""
    reported: list[str] = field(default_factory=list)
    """What it says of itself."""
    notes: set[str] = field(default_factory=set)
    """What was said of it once."""

    @cached_property
    def client(self) -> Any:
        """The connections to the server, of one event loop."""
        withheld: dict[str, Any] = dict.fromkeys(withheld_headers(self.key), openai.Omit())
        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self.key or "none",
            max_retries=RETRIES,
            timeout=SECONDS,
            default_headers={**withheld, **self.address.headers, **self.headers},
            default_query=self.address.parameters,
        )

    @property
    def url(self) -> str:
        """The address without what opens it."""
        return self.address.url

    @property
    def identity(self) -> tuple[str, str, Mapping[str, Any]]:
        """What is equal for one server, model and request."""
        url = self.url.lower().replace("localhost", "127.0.0.1")
        return url, self.model, {**self.extra, **self.headers}

    def described(self) -> dict[str, Any]:
        """What tells this endpoint from others in a certificate."""
        entries = {"url": self.url, "model": self.model, "extra": without_secrets(self.extra)}
        return {**entries, "headers": sorted(self.headers)} if self.headers else entries

    def hidden(self, text: str) -> str:
        """A text of the server without what opens it."""
        secrets = [self.key, *self.headers.values(), *self.address.parameters.values()]
        for secret in filter(None, [*secrets, self.address.login.removeprefix("Basic ")]):
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "(hidden)", text)
        return text

    async def patiently(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """What `ask` gives, once the server no longer says that it loads its model (status 503)."""
        deadline = monotonic() + LOADING
        while True:
            try:
                return await ask()
            except openai.InternalServerError as error:
                if error.status_code != 503 or monotonic() > deadline:
                    raise
                if "loads" not in self.notes:
                    self.notes.add("loads")
                    note(
                        f"{self.url} says: {self.hidden(first_line(error))}. Its model may still"
                        f" load: waiting for it, at most {LOADING / 60:.0f} minutes."
                    )
            await asyncio.sleep(PAUSE)

    def report(self, name: str, value: Any) -> None:
        """Keep what the server says of itself, and say where it says something else than before."""
        text = f"{name} {' '.join(str(value).split())[:100]}"
        if not value or text in self.reported:
            return
        before = [line for line in self.reported if line.startswith(f"{name} ")]
        if before and name != "finish":
            note(
                f"{self.url} reports {text} after {before[-1]}. If it was changed within the run,"
                " begin anew."
            )
        self.reported.append(text)

    async def survey(self) -> tuple[list[str], str]:
        """The models that the server lists, or none and the cause; they are kept, and so is its
        version.
        """
        models = []
        cause = "an empty list"
        client = self.client.with_options(max_retries=2, timeout=HELLO)  # perhaps a wrong door
        try:
            page = await self.patiently(client.models.list)
            models = list(dict.fromkeys(model.id for model in page.data if model.id))
        except (openai.APIConnectionError, OSError):
            raise
        except (AttributeError, TypeError):  # of what the client makes of another page
            cause = "it sent no list of them"
        except Exception as error:
            if getattr(error, "status_code", 0) in DOORS:
                raise
            cause = self.hidden(first_line(error))
        self.report("list", ", ".join(sorted(models)))
        # vLLM has a page with its version, and llama.cpp says it in every answer.
        with suppress(Exception):
            place = f"{self.url.removesuffix('/v1')}/version"
            page = await self.client.get(place, cast_to=object, options={"timeout": 5.0})
            self.report("version", page["version"])
        return models, cause

    async def answer(
        self,
        prompt: str | Messages,
        stops: Sequence[str],
        max_tokens: int,
        entries: Mapping[str, Any] = NOTHING,
        **sampling: Any,
    ) -> Served:
        """The answer to a text to continue, or to the messages of a chat, perhaps with tools among
        further `entries`; greedy without other `sampling`.
        """
        path, body = self.request(prompt, stops, max_tokens, entries, **sampling)
        with explained(self):
            page = await self.patiently(partial(self.client.post, path, body=body, cast_to=object))
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 0
        stops = body.get("stop") or ()
        return self.whole(page, continued_text(prompt), stops, limit, "tools" in body)

    def request(
        self,
        prompt: str | Messages,
        stops: Sequence[str],
        max_tokens: int,
        entries: Mapping[str, Any] = NOTHING,
        **sampling: Any,
    ) -> tuple[str, dict[str, Any]]:
        """Path and body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            **entries,
            **sampling,
        }
        if isinstance(prompt, str):
            path = "/completions"
            body["prompt"] = prompt
        else:
            path = "/chat/completions"
            body |= {"messages": prompt, **continued(prompt)}
        if stops:
            body["stop"] = list(stops)[:MOST_STOPS]
        body |= self.extra
        return path, {name: entry for name, entry in body.items() if entry is not None}

    def whole(
        self,
        page: Any,
        prompt: str = "",
        stops: str | Sequence[str] = (),
        limit: int = 0,
        may_call: bool = False,
    ) -> Served:
        """The answer in a page that came with status 200, unless it is cut short, another model's
        or none at all; with the calls of tools, if it may call some.
        """
        page = parsed_page(page)
        choice = self.choice_in(page, may_call)
        reason = choice.get("finish_reason")
        message = choice.get("message") or choice
        is_capped = reason == "length"
        reply = reply_in(message, is_capped)
        text = reply.answer
        calls = calls_of(message) if may_call else []
        instead = instead_of(message, reply, may_call)
        if instead and not calls:
            raise PromptError(
                f"{self.url} ended an answer with {instead} in place of a text. Switch tools off"
                f" (--{self.side}-body), or leave such prompts out."
            )
        self.report("model", page.get("model"))
        self.report("fingerprint", page.get("system_fingerprint"))
        self.report("finish", None if reason in ("stop", "length", *CALLED) else reason)
        if prompt.strip() and text.startswith(prompt):
            self.report("repeats", "the prompt in front of answers, which was cut off")
            text = text.removeprefix(prompt)
        tokens = tokens_in(page, text or reply.thought)
        for stop in [stops] if isinstance(stops, str) else stops:
            text = text.split(stop)[0]  # `transformers serve` leaves it in the text
        return Served(
            written(text, calls),
            tokens,
            is_capped,
            limited=is_capped and 0 < (tokens or 0) < limit,
            thought=len(reply.thought),
            thought_tokens=thought_tokens_in(page),
            is_open=reply.is_open and not calls,
        )

    def choice_in(self, page: Any, may_call: bool = False) -> Mapping[str, Any]:
        """The choice of a page that holds one, of this model, that ends as an answer should."""
        error = page.get("error") if isinstance(page, dict) else None
        choice = first_choice(page) or {}
        if not choice and not error:
            beginning = self.hidden(beginning_of(page))
            stream = ""
            if beginning.startswith("data:"):
                stream = f" Switch streams off (--{self.side}-body)."
            raise PromptError(
                f"{self.url} does not speak the OpenAI protocol: it sent {beginning}.{stream}"
                f" {NOT_HERE}"
            )
        reason = error or choice.get("finish_reason")
        if error or reason in BROKEN or (reason in CALLED and not may_call):
            raise PromptError(
                f"{self.url} ended an answer with '{reason}', so it is not whole. Look into its"
                " log."
            )
        self.check_model(page.get("model"))
        return choice

    def check_model(self, model: Any) -> None:
        """Refuse an answer of another model."""
        name = str(model or "").removesuffix("@main")  # which `transformers serve` adds
        if name not in ("", self.model, *self.names):
            raise UserError(
                f"{self.url} was asked for the model '{self.model}' and answered with '{model}'. If"
                f" that is the same one, add --same-model {model}; else name it."
            )


def note(text: str, stays: bool = True) -> None:
    """A line to standard error; on a terminal it takes the place of one that does not stay."""
    is_terminal = sys.stderr.isatty()
    start = "\r\033[K" if is_terminal else ""
    end = "\n" if stays or not is_terminal else ""
    with suppress(OSError):  # a full disk
        print(f"{start}{printable(text)}", end=end, file=sys.stderr, flush=True)


def continued(messages: Messages) -> dict[str, bool]:
    """Entries that let the answer of a chat go on from its beginning; else vLLM and SGLang begin
    another message.
    """
    if messages[-1]["role"] != "assistant":
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def continued_text(prompt: str | Messages) -> str:
    """What an answer goes on from, which some servers repeat in front of it; nothing in most
    chats.
    """
    if isinstance(prompt, str):
        return prompt
    return str(prompt[-1]["content"]) if prompt[-1]["role"] == "assistant" else ""


async def with_model(endpoint: Endpoint) -> Endpoint:
    """The endpoint, if it serves its model; without one, with the only one that it serves. Some
    servers list none.
    """
    with explained(endpoint):
        models, cause = await endpoint.survey()
    model = endpoint.model
    if not model and len(models) == 1:
        return replace(endpoint, model=models[0])
    if model and (not models or model in (*models, *endpoint.names)):
        return endpoint
    listed = f"serves: {', '.join(models)}" if models else f"lists no model ({cause})"
    missing = ""
    if model:
        missing = f" It does not serve '{model}'; if it does, add --same-model {model}."
    raise UserError(
        f"{endpoint.url} {listed}.{missing} Name one (--{endpoint.side}-model), or mend the"
        " address, which mostly ends with /v1."
    )
