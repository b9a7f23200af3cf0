"""Servers that speak the OpenAI protocol: finding the model, and asking it."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import openai

from gistgate.certify.address import Address, without_secrets
from gistgate.certify.answers import Served
from gistgate.certify.page import (
    BROKEN,
    beginning_of,
    first_choice,
    parsed_page,
    text_in,
    tokens_in,
)
from gistgate.certify.trouble import NOT_HERE, PromptError, explained
from gistgate.core.utils import UserError, first_line, printable
from gistgate.tasks.task import Messages

RETRIES = 5
"""Repetitions of a request after a broken connection, a timeout, or status 429 or from 500 on."""
SECONDS = 600.0
"""Longest wait for one answer."""
HELLO = 9.0
"""Longest wait for the list of models, in seconds."""
MOST_STOPS = 4
"""Stops that the protocol allows; answers are cut at all of them here."""


@dataclass(frozen=True)
class Endpoint:
    """A server, one of its models, and what every request to it says beside the prompt."""

    address: Address
    model: str
    """Name under which the server knows the model."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of every request's body."""
    key: str = field(default="", repr=False)
    """What it asks for; never written."""
    names: tuple[str, ...] = ()
    """Other names for the model in its answers."""
    reported: list[str] = field(default_factory=list)
    """What it says of itself."""

    @cached_property
    def client(self) -> Any:
        """The connections to the server, of one event loop."""
        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self.key or "none",
            max_retries=RETRIES,
            timeout=SECONDS,
            default_headers=self.address.headers,
            default_query=self.address.parameters,
        )

    @property
    def url(self) -> str:
        """The address without what opens it."""
        return self.address.url

    @property
    def identity(self) -> tuple[str, str, Mapping[str, Any]]:
        """What is equal for one server, model and request."""
        return self.url.lower().replace("localhost", "127.0.0.1"), self.model, self.extra

    def described(self) -> dict[str, Any]:
        """What tells this endpoint from others in a certificate."""
        return {"url": self.url, "model": self.model, "extra": without_secrets(self.extra)}

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
            models = [model.id for model in (await client.models.list()).data]
        except (
            openai.APIConnectionError,
            openai.AuthenticationError,
            openai.PermissionDeniedError,
        ):
            raise
        except Exception as error:
            if getattr(error, "status_code", 0) == 407:
                raise
            cause = first_line(error)
        self.report("list", ", ".join(sorted(models)))
        # vLLM has a page with its version, and llama.cpp says it in every answer.
        with suppress(Exception):
            place = f"{self.url.removesuffix('/v1')}/version"
            page = await self.client.get(place, cast_to=object, options={"timeout": 5.0})
            self.report("version", page["version"])
        return models, cause

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
        if isinstance(prompt, str):
            path = "/completions"
            text = prompt
            body["prompt"] = prompt
        else:
            path = "/chat/completions"
            text = prompt[-1]["content"]
            body |= {"messages": prompt, **continued(prompt)}
        if stops:
            body["stop"] = list(stops)[:MOST_STOPS]
        body |= self.extra
        with explained(self.url, self.key):
            page = await self.client.post(path, body=body, cast_to=object)
        return self.whole(page, text, body.get("stop") or (), body.get("max_tokens") or 0)

    def whole(
        self, page: Any, prompt: str = "", stops: str | Sequence[str] = (), limit: int = 0
    ) -> Served:
        """The answer in a page that came with status 200, unless it is cut short, another model's
        or none at all.
        """
        page = parsed_page(page)
        choice = self.choice_in(page)
        reason = choice.get("finish_reason")
        text, instead = text_in(choice.get("message") or choice)
        if instead:
            raise PromptError(
                f"{self.url} ended an answer with {instead} in place of a text. Switch reasoning"
                " and tools off (--strict-body, --loose-body), give the task longer answers, or"
                " leave such prompts out."
            )
        self.report("model", page.get("model"))
        self.report("fingerprint", page.get("system_fingerprint"))
        self.report("finish", None if reason in ("stop", "length") else reason)
        if prompt.strip() and text.startswith(prompt):
            self.report("repeats", "the prompt in front of answers, which was cut off")
            text = text.removeprefix(prompt)
        tokens = tokens_in(page, text)
        for stop in [stops] if isinstance(stops, str) else stops:
            text = text.split(stop)[0]  # `transformers serve` leaves it in the text
        is_capped = reason == "length"
        return Served(text, tokens, is_capped, is_capped and 0 < (tokens or 0) < limit)

    def choice_in(self, page: Any) -> Mapping[str, Any]:
        """The choice of a page that holds one, of this model, that ends as an answer should."""
        error = page.get("error") if isinstance(page, dict) else None
        choice = first_choice(page) or {}
        if not choice and not error:
            beginning = beginning_of(page)
            stream = ""
            if beginning.startswith("data:"):
                stream = " Switch streams off (--strict-body, --loose-body)."
            raise PromptError(
                f"{self.url} does not speak the OpenAI protocol: it sent {beginning}.{stream}"
                f" {NOT_HERE}"
            )
        reason = error or choice.get("finish_reason")
        if error or reason in BROKEN:
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
    print(f"{start}{printable(text)}", end=end, file=sys.stderr, flush=True)


def continued(messages: Messages) -> dict[str, bool]:
    """Entries that let the answer of a chat go on from its beginning; else vLLM and SGLang begin
    another message.
    """
    if messages[-1]["role"] != "assistant":
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


async def connect(
    url: str, model: str | None, extra: Mapping[str, Any], key: str, names: tuple[str, ...]
) -> Endpoint:
    """The endpoint, if it serves the model; without `model` the only one that it serves. Some
    servers list none.
    """
    endpoint = Endpoint(Address.parse(url), model or "", extra, key, names)
    with explained(endpoint.url, key):
        models, cause = await endpoint.survey()
    if model is None and len(models) == 1:
        return replace(endpoint, model=models[0])
    if model is not None and (not models or model in (*models, *names)):
        return endpoint
    listed = f"serves: {', '.join(models)}" if models else f"lists no model ({cause})"
    missing = ""
    if model:
        missing = f" It does not serve '{model}'; if it does, add --same-model {model}."
    raise UserError(
        f"{endpoint.url} {listed}.{missing} Name one (--strict-model, --loose-model), or mend the"
        " address, which mostly ends with /v1."
    )
