"""Ask a server whether the plug-in really runs in it: `python -m gistgate.integrations.vllm.client URL`.

vLLM goes on without a plug-in that it cannot import, and would then be strict where a gate was expected, or lossy by an
option of its own where strictness was promised.
"""

from __future__ import annotations

import re
import sys
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import urlopen

from gistgate.errors import UserError
from gistgate.plain import printable

TIMEOUT = 10.0
"""Seconds to wait for the server."""


def check(url: str, strict: bool | None = None) -> dict[str, str]:
    """What the workers of a server say about themselves; `strict` demands that nothing (or something) lossy runs.

    Raises:
        UserError: the server does not answer, the plug-in does not run, or not as demanded.
    """
    try:
        with urlopen(f"{url.rstrip('/').removesuffix('/v1')}/metrics", timeout=TIMEOUT) as answer:
            text = answer.read().decode()
    except (URLError, OSError, ValueError, HTTPException) as error:
        raise UserError(
            f"The server at {url} gave no metrics ({error}). Check the address and that it runs."
        ) from error
    return read(text, url, strict)


def read(text: str, url: str, strict: bool | None = None) -> dict[str, str]:
    """The labels of `gistgate_active` in a page of metrics."""
    found = re.search(r"^gistgate_active\{(.*)\} [1-9]", text, re.MULTILINE)
    if found is None:
        raise UserError(
            f"The gistgate plug-in does not run in the server at {url}: look for 'gistgate' in the server's log, and "
            'check that --additional-config names "gistgate" and that VLLM_PLUGINS, where set, does too.'
        )
    about = dict(re.findall(r'(\w+)="([^"]*)"', found.group(1)))
    if strict is not None and strict != (about["rule"] == "strict"):
        wanted = "strict" if strict else "a gate"
        raise UserError(f"The server at {url} runs the rule '{about['rule']}', but {wanted} was expected.")
    return about


def main(arguments: list[str]) -> int:
    """Print the answer; 1 where the plug-in does not run."""
    strict = "--strict" in arguments
    places = [value for value in arguments if value != "--strict"]
    if len(places) != 1:
        print("Usage: python -m gistgate.integrations.vllm.client URL [--strict]", file=sys.stderr)
        return 2
    try:
        about = check(places[0], strict or None)
    except UserError as error:
        print(printable(str(error)), file=sys.stderr)
        return 1
    print(printable(" ".join(f"{name}={value}" for name, value in about.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
