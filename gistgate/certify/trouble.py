"""What goes wrong between a client and a server, and what helps."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import openai

from gistgate.certify.address import KEYS, Address
from gistgate.core.utils import PromptError, UserError, first_line

if TYPE_CHECKING:
    from gistgate.certify.endpoint import Endpoint

NOT_HERE = "Mend the address, which mostly ends with /v1."
HTTP = "It speaks http without TLS: write http:// in place of https://."
NAME = "The name of its machine is not known here: look for a typing error."
DOOR = (
    "It broke off: look into its log. If it wants TLS, write https:// in place of http://; else"
    " another port."
)
PROXY = "A proxy of the environment stands between: unset it, or put the machine into NO_PROXY."
PASSWORD = "A proxy of the environment wants a password: write it into the variable, or unset that."
REMEDIES = {  # by a sign in the cause; the first counts
    "mismatch, certificate": "Write the name that stands in its certificate.",
    "has expired": "Renew its certificate.",
    "CERTIFICATE_VERIFY_FAILED": "Name the authority that signed it: SSL_CERT_FILE=<file.pem>.",
    "WRONG_VERSION_NUMBER": HTTP,
    "record layer failure": HTTP,
    "not known": NAME,
    "No address": NAME,
    "name resolution": NAME,
    "Request URL": "Begin the address with http:// or https://.",
    "decompress": (
        "It, or a proxy between, calls an answer compressed that is not: look into its log."
    ),
    "407 Proxy": PASSWORD,
    "disconnected": DOOR,
    "ReadError": DOOR,
    "llegal": DOOR,
    "roxy": PROXY,
    "imeout": (
        "It says nothing for too long: look whether it works, and ask for less at a time with"
        " --concurrent."
    ),
    "": "Start or mend the server, and repeat.",
}

OF_A_PROMPT = (400, 413, 422)
"""Statuses with which servers refuse a request for what it holds, such as a prompt too long."""


def cause_of(error: Exception, url: str) -> str:
    """Why a server was not reached, in a line; a timeout is such an error, too."""
    cause = first_line(error.__cause__ or error)
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(parts.hostname or ""):
        cause += f", by the proxy {Address.parse(proxy).url}"
    return cause


def remedy_by_entry(error: openai.APIStatusError, side: str) -> str:
    """What helps where the refusal of a request names an entry that a server need not take; empty
    where it names none.
    """
    sent = json.loads(error.request.content or "{}")
    for name in sent:
        is_named = re.search(rf"\b{re.escape(name)}\b", error.response.text)
        if is_named and name not in ("model", "prompt", "messages"):
            body = {name: None}
            if name == "max_tokens":
                body["max_completion_tokens"] = sent[name]
            return (
                f"If it does not take '{name}', leave that out: --{side}-body '{json.dumps(body)}'."
            )
    return ""


def remedy_for(error: openai.APIStatusError, side: str) -> str:
    """What helps after the refusal of a request by the server of a side."""
    status = error.status_code
    if status == 407:
        return PASSWORD
    if status in (401, 403):
        return f"Set {KEYS[side][0]}, if it wants another key, or add --{side}-header."
    if status == 404:
        return f"{NOT_HERE} Some servers know chats alone (--chat), or none (--no-chat)."
    if status == 503:
        return "If its model still loads, wait for that, and repeat."
    remedy = remedy_by_entry(error, side) if status in OF_A_PROMPT else ""
    return remedy or (
        f"Mend that, ask for less at a time (--concurrent), or for other things (--{side}-body)."
    )


@contextmanager
def explained(endpoint: Endpoint) -> Iterator[None]:
    """Turn what the client raises into one sentence, without what opens the server."""
    url = endpoint.url
    try:
        yield
    except openai.APIConnectionError as error:
        cause = cause_of(error, url)
        remedy = next(remedy for sign, remedy in REMEDIES.items() if sign in cause)
        raise UserError(f"{url} cannot be reached ({cause}). {remedy}") from error
    except openai.APIStatusError as error:
        reply = endpoint.hidden(" ".join(error.response.text.split()))[:200]
        kind = PromptError if error.status_code in OF_A_PROMPT else UserError
        raise kind(
            f"{url} refused a request with status {error.status_code}: {reply}."
            f" {remedy_for(error, endpoint.side)}"
        ) from error
    except OSError as error:  # the client reads certificates before it asks for anything
        names = [name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)]
        name = (names or ["SSL_CERT_FILE"])[0]
        place = os.environ.get(name, "")
        raise UserError(
            f"{name} names '{place}', of which no certificates can be read ({first_line(error)})."
            " Correct or unset that variable."
        ) from error
    # An address that is none, a page of a gateway, or a proxy of another kind.
    except Exception as error:
        remedy = PROXY if "roxy" in str(error) else NOT_HERE
        raise UserError(
            f"{url} does not speak the OpenAI protocol: {first_line(error)}. {remedy}"
        ) from error
