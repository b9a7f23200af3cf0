"""Addresses of servers, and what of them, of keys and of requests may be sent and written."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from gistgate.core.utils import UserError

KEY = "OPENAI_API_KEY"
"""Environment variable with the key of both servers, if they are one host, or of OpenAI's."""
KEYS = {"strict": "GISTGATE_STRICT_API_KEY", "loose": "GISTGATE_LOOSE_API_KEY"}
"""Environment variables with the key of one server each."""
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
        """An address without its last slash, with login and query apart."""
        parts = parts_of(text)
        login, _, host = parts.netloc.rpartition("@")
        secret = b64encode(unquote(login).encode()).decode()
        url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
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


def keys_of(strict: str, loose: str) -> dict[str, str]:
    """The key of each server by its side: nobody's key is sent to somebody else."""
    hosts = {"strict": parts_of(strict).hostname, "loose": parts_of(loose).hostname}
    is_shared = hosts["strict"] == hosts["loose"]
    keys = {}
    for side, host in hosts.items():
        usual = os.environ.get(KEY, "") if is_shared or host == "api.openai.com" else ""
        key = os.environ.get(KEYS[side], usual).strip()
        if not (key.isascii() and key.isprintable()):  # a message of HTTP would show it
            raise UserError(
                "A key holds a line end or a letter beyond ASCII. Set"
                f" {' or '.join(KEYS.values())} again."
            )
        keys[side] = key
    return keys


def without_secrets(value: Any) -> Any:
    """Entries of a request as they may be written."""
    if not isinstance(value, Mapping):
        return value
    shown = {}
    for name, entry in value.items():
        shown[name] = "(hidden)" if SECRET.search(name) else without_secrets(entry)
    return shown
