"""How well the batches of a stage were filled, as its JSON file tells it and as it waits beside finished pieces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gistgate.files import read_json, write_json
from gistgate.request.slots import Usage

SLOTS, USED, IDLE = "slots", "slots_used", "idle_share_of_slots"
"""Entries of a JSON file: slots that the rounds had, those of them that held a row, and the share that held none. The
stages `collect` and `label` name theirs alike."""


def as_json(usage: Usage | None) -> dict[str, int | float | None]:
    """The entries; all are None where the use is not known, and the share is None where nothing was decoded."""
    if usage is None:
        return {SLOTS: None, USED: None, IDLE: None}
    return {SLOTS: usage.available, USED: usage.busy, IDLE: usage.idle if usage.available else None}


def told(entries: Mapping[str, Any]) -> Usage | None:
    """What a JSON file tells; None where it does not, as files that were made before these entries."""
    slots, used = entries.get(SLOTS), entries.get(USED)
    return None if slots is None or used is None else Usage(busy=used, available=slots)


def summed(usages: Iterable[Usage | None]) -> Usage | None:
    """The slots of all of them; None where one is not known, because the rest would say something else."""
    found = Usage()
    for usage in usages:
        if usage is None:
            return None
        found.count(usage.busy, usage.available)
    return found


def keep_beside(piece: Path, usage: Usage) -> None:
    """Write how the slots of a piece were used; called before the piece itself is written."""
    write_json(piece.with_suffix(".json"), as_json(usage))


def kept_beside(piece: Path) -> Usage | None:
    """How the slots of a finished piece were used; None where nobody has kept it."""
    path = piece.with_suffix(".json")
    return told(read_json(path)) if path.exists() else None


class PieceUsage:
    """The use of the slots of one method, whose answers come in pieces that may be asked for many times.

    A piece counts once, in whichever start it was decoded. A start that goes on behind an interruption may decode
    answers that an uninterrupted one shares between settings, and then tells what was spent: more slots.
    """

    def __init__(self) -> None:
        self._fresh = Usage()
        self._pieces: dict[Path, Usage | None] = {}

    def add(self, usage: Usage) -> None:
        """Hear how the slots of a request for the present piece were used."""
        self._fresh.count(usage.busy, usage.available)

    def made(self, piece: Path) -> None:
        """Keep what was added since the piece before; called before this one is written."""
        keep_beside(piece, self._fresh)
        self._fresh = Usage()

    def read(self, piece: Path) -> None:
        """Count a piece whose answers are handed out."""
        if piece not in self._pieces:
            self._pieces[piece] = kept_beside(piece)

    @property
    def total(self) -> Usage | None:
        """The slots of all pieces that were handed out; None where one of them does not tell."""
        return summed(self._pieces.values())
