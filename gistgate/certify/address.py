"""Addresses of servers, and what of them, of keys and of requests may be sent and written."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from gistgate.core.utils import UserError

KEY = "OPENAI_API_KEY"
"""Environment variable with the key of both servers, if they are one host, or of OpenAI's."""
KEYS = {
    "baseline": ("GISTGATE_BASELINE_API_KEY", "GISTGATE_STRICT_API_KEY"),
    "candidate": ("GISTGATE_CANDIDATE_API_KEY", "GISTGATE_LOOSE_API_KEY"),
    "judge": ("GISTGATE_JUDGE_API_KEY",),
}
"""Environment variables with the key of one server each; the first that is set counts."""
OF_OPENAI = ("OpenAI-Organization", "OpenAI-Project")
"""Headers that the client takes from the environment (`OPENAI_ORG_ID`, `OPENAI_PROJECT_ID`)."""
ENDS = ("/chat/completions", "/completions", "/models")
"""What stands behind the address of a server in that of a request."""
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
"""A variable of the environment in the value of a header."""
SECRET = re.compile(
    r"api[_-]?key|secret|passw|authorization|credential|(access|auth)[_-]?token$", re.I
)


@dataclass(frozen=True)
class Address:
    """Where a server is, and what opens it."""

    url: str
    """Address up to the version, such as http://127.0.0.1:8000/v1, without a password."""
    login: str = field(default="", repr=False)
    """User and password as HTTP wants them; never written."""
    query: str = field(default="", repr=False)
    """What stands behind the address, such as a key; never written."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """An address without its last slash, with login and query apart; UserError where it is that
        of a request.
        """
        parts = parts_of(text)
        path = parts.path.rstrip("/")
        for end in ENDS:
            if path.endswith(end):
                raise UserError(
                    f"The address of a server ends at its version, such as /v1. Leave '{end}' out."
                )
        login, _, host = parts.netloc.rpartition("@")
        secret = b64encode(unquote(login).encode()).decode()
        url = urlunsplit((parts.scheme, host, path, "", ""))
        return cls(url, f"Basic {secret}" if login else "", parts.query)

    @property
    def headers(self) -> dict[str, str]:
        """What every request says of the user."""
        return {"Authorization": self.login} if self.login else {}

    @property
    def parameters(self) -> dict[str, Any]:
        """The entries of the query."""
        return dict(parse_qsl(self.query))


def parts_of(url: str) -> SplitResult:
    """An address in its parts."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.port != 0:
            return parts
    raise UserError(  # without the address, which may hold a password
        "The address of a server is none. Write one such as http://HOST:8000/v1, with %2F, %40 and"
        " %5B for the signs /, @ and [ of a password."
    )


def keys_of(baseline: str, candidate: str, judge: str = "") -> dict[str, str]:
    """The key of each server by its side: nobody's key is sent to somebody else."""
    hosts = {"baseline": parts_of(baseline).hostname, "candidate": parts_of(candidate).hostname}
    if judge:
        hosts["judge"] = parts_of(judge).hostname
    is_shared = len(set(hosts.values())) == 1
    keys = {}
    for side, host in hosts.items():
        key = os.environ.get(KEY, "") if is_shared or host == "api.openai.com" else ""
        for name in reversed(KEYS[side]):
            key = os.environ.get(name, key)
        keys[side] = key.strip()
        if not is_sendable(keys[side]):
            raise UserError(
                f"A key holds a line end or a letter beyond ASCII. Set {KEYS[side][0]} again."
            )
    return keys


def is_sendable(value: str) -> bool:
    """Whether HTTP takes a value; its message about another one would show it."""
    return value.isascii() and value.isprintable()


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Headers in lines such as `X-Api-Key: $NAME`, where $NAME is a variable of the environment."""
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        name = name.strip()
        try:
            value = VARIABLE.sub(lambda match: os.environ[match[1]], value).strip()
        except KeyError as error:
            raise UserError(
                f"A header names the variable {error}, which the environment does not have. Set it."
            ) from error
        if not (re.fullmatch(r"[\w-]+", name, re.A) and value and is_sendable(value)):
            raise UserError("A header is none. Write it as in 'X-Api-Key: $NAME'.")
        headers[name] = value
    return headers


def withheld_headers(key: str) -> list[str]:
    """Names of headers in the environment that are OpenAI's, unless the server gets its key."""
    if key and key == os.environ.get(KEY, "").strip():
        return []
    lines = os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines()
    return [*OF_OPENAI, *(line.partition(":")[0].strip() for line in lines)]


def without_secrets(value: Any) -> Any:
    """Entries of a request as they may be written."""
    if not isinstance(value, Mapping):
        return value
    shown = {}
    for name, entry in value.items():
        shown[name] = "(hidden)" if SECRET.search(name) else without_secrets(entry)
    return shown
