"""Progress of long stages: done, rate and time left on a terminal, and nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from tqdm import tqdm

from gistgate.request.slots import Usage


def bar(pieces: Iterable[Any] | None = None, *, title: str | None, unit: str, total: int | None = None) -> Any:
    """A progress bar around `pieces`, or one that the caller updates; silent without a title or a terminal."""
    # tqdm shows itself on a terminal alone where `disable` is None.
    return tqdm(pieces, desc=title, unit=unit, total=total, disable=True if title is None else None)


def decoding(shown: Any, usage: Usage) -> Callable[[int], None]:
    """What hears of finished prompts: it moves the bar and shows the mean accepted length of what is decoded so far."""

    def finished(number: int) -> None:
        shown.set_postfix_str(f"tau {usage.mean_accepted_length:.2f}", refresh=False)
        shown.update(number)

    return finished


def lightning_bar(refresh_rate: int) -> Any:
    """Lightning's bar, refreshed after so many steps; silent for 0 and without a terminal."""
    from pytorch_lightning.callbacks import TQDMProgressBar

    return TQDMProgressBar(refresh_rate=refresh_rate if sys.stdout.isatty() else 0)
