"""Which methods of an evaluation go together: those that decode alike, and those that may share strict answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gistgate.rules import make_rule
from pipeline.certification.agreement import DRAFTER, forgets
from pipeline.common.operating_point import Operating, operating_point
from pipeline.params import Params

STRICT = "exact"
"""Id of the strict rule, and the name of its method."""

Job = tuple[Operating, Path]
"""A method at its setting, and the folder of its verdict."""


def pieces_of(missing: Sequence[Job], params: Params) -> list[list[Job]]:
    """What a worker takes at once: methods that decode alike, and strict decoding with all that may share its answers.

    Strict decoding comes first in its piece.
    """
    point = operating_point(params, STRICT) if STRICT in params.methods else None
    strict = decoding_of(point) if point is not None and may_share(point, params) else None
    pieces: dict[str, list[Job]] = {}
    for job in missing:
        shares = strict is not None and may_share(job[0], params)
        pieces.setdefault(str(strict) if shares else decoding_of(job[0]), []).append(job)
    return [sorted(piece, key=lambda job: decoding_of(job[0]) != strict) for piece in pieces.values()]


def may_share(point: Operating, params: Params) -> bool:
    """Whether a method may take over answers of strict decoding: same drafts, and nothing remembered."""
    same = point.drafter == DRAFTER and point.block == params.decoding.block and point.head is None
    return same and forgets(make_rule(point.rule, **point.settings))


def decoding_of(point: Operating) -> str:
    """A name for what a method's decoder does; all that run strictly share it."""
    return repr((point.rule, point.drafter, point.block, point.settings, point.head))
