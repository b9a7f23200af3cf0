"""Drafters by id: the library's own, and those that a study brings along because they need its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gistgate.build import drafters as library
from gistgate.drafters import DRAFTERS
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from pipeline.common.reading import nearest
from pipeline.pairs.pair import Pair
from pipeline.pairs.source import MODEL


@dataclass(frozen=True)
class StudyDrafter:
    """A drafter that knows more than the request."""

    make: Callable[[Pair], Drafter]
    """Builds the drafter for a pair."""
    files: tuple[Path, ...] = ()
    """What the drafter knows besides the request: a certificate holds for no other content."""
    asks_draft: bool = False
    """Whether the drafter drafts with the pair's draft model among other sources."""


OF_STUDIES: dict[str, StudyDrafter] = {}
"""Drafters of studies by id. A study's module adds its own when it is imported, so this module knows no study."""


def make_drafter(pair: Pair, drafter_id: str) -> Drafter | None:
    """A fresh drafter by id, of which "model" is the pair's own; None, which decodes plainly, for "none".

    Raises:
        UserError: there is no such drafter, or it lacks what it is made of.
    """
    if drafter_id in OF_STUDIES:
        return OF_STUDIES[drafter_id].make(pair)
    if drafter_id not in ("none", *DRAFTERS):
        known = ["none", *DRAFTERS, *OF_STUDIES]
        raise UserError(f"There is no drafter '{drafter_id}'. {nearest(drafter_id, known, 'drafters')}")
    own = pair.drafter if drafter_id == MODEL else drafter_id
    return library.make_drafter(own, library.Sources(pair.target, pair.tokenizer, pair.draft))


def asks_draft(drafter_id: str) -> bool:
    """Whether a drafter drafts with the pair's draft model, alone or among others."""
    if drafter_id in OF_STUDIES:
        return OF_STUDIES[drafter_id].asks_draft
    return library.asks_draft(drafter_id)


def files_behind(drafter_id: str) -> list[Path]:
    """What a drafter knows besides the request, as files and folders."""
    return list(OF_STUDIES[drafter_id].files) if drafter_id in OF_STUDIES else []
