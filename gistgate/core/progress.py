"""Progress bars of long work."""

import sys
from typing import Any

from tqdm import tqdm

LOG: dict[str, Any] = {
    "delay": 60,
    "mininterval": 60,
    "miniters": 1,
    "bar_format": "{desc}: {n_fmt} of {total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]\n",
}
"""How a progress bar is written into a log: a line a minute."""


def bar(
    pieces: Any = None,
    *,
    title: str,
    unit: str,
    total: int | None = None,
) -> Any:
    """A progress bar on a terminal; lines in a log."""
    style = {} if sys.stderr.isatty() else LOG
    return tqdm(pieces, desc=title, unit=unit, total=total, **style)
