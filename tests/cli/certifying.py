"""How tests certify one scripted server against another."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gistgate.certify import endpoint
from gistgate.certify.card import Card
from gistgate.certify.joint import Row
from gistgate.cli.certify import Options
from gistgate.cli.servers import compare
from tests.certify.scripted import Script, serving
from tests.tiny import write_task


def certifying(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Card, Path]]:
    """A function that certifies one script against another, with 80 documents, in a folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(endpoint, "RETRIES", 2)
    Path("data").mkdir()
    write_task(folder / "data", num_train=80)

    def certified(strict: Script, loose: Script, /, **changes: Any) -> tuple[Card, Path]:
        with ExitStack() as servers:
            first, second = (servers.enter_context(serving(script)) for script in (strict, loose))
            asked: dict[str, Any] = {
                "strict": first,
                "loose": second,
                "budget": 0.1,
                "prompts": 80,
                "stop": "lost",
                "task": "sums",
                "control": 0,
            }
            return compare(Options(**{**asked, **changes}, out=folder / "out"))

    return certified


def row(made: tuple[Card, Path]) -> Row:
    """The only row of a card."""
    [only] = made[0].rows
    return only
