"""What goes wrong between a client and a server, and what helps."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import openai

from gistgate.certify.address import KEYS, Address
from gistgate.core.utils import UserError, first_line

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


class PromptError(UserError):
    """A server refuses one prompt, or gives it no whole answer; others may go well."""


def cause_of(error: Exception, url: str) -> str:
    """Why a server was not reached, in a line; a timeout is such an error, too."""
    cause = first_line(error.__cause__ or error)
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(parts.hostname or ""):
        cause += f", by the proxy {Address.parse(proxy).url}"
    return cause


@contextmanager
def explained(url: str, key: str) -> Iterator[None]:
    """Turn what the client raises into one sentence, without the key."""
    try:
        yield
    except openai.APIConnectionError as error:
        cause = cause_of(error, url)
        remedy = next(remedy for sign, remedy in REMEDIES.items() if sign in cause)
        raise UserError(f"{url} cannot be reached ({cause}). {remedy}") from error
    except openai.APIStatusError as error:
        reply = " ".join(error.response.text.split())
        if key:
            reply = reply.replace(key, "(the key)")
        remedy = (
            "Mend that, ask for less at a time (--concurrent), or for other things (--strict-body,"
            " --loose-body)."
        )
        if error.status_code == 407:
            remedy = PASSWORD
        if error.status_code in (401, 403):
            remedy = f"Set {' or '.join(KEYS.values())}, if it wants another key."
        kind = PromptError if error.status_code in OF_A_PROMPT else UserError
        raise kind(
            f"{url} refused a request with status {error.status_code}: {reply[:200]}. {remedy}"
        ) from error
    # An address that is none, a page of a gateway, or a proxy of another kind.
    except Exception as error:
        remedy = PROXY if "roxy" in str(error) else NOT_HERE
        raise UserError(
            f"{url} does not speak the OpenAI protocol: {first_line(error)}. {remedy}"
        ) from error
