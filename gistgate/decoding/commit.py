"""What of a settled block reaches a text: cut at the stop first, then count."""

from __future__ import annotations

from collections.abc import Sequence

from gistgate.block import Reason
from gistgate.request.rows import Row
from gistgate.request.stopping import Stop


def commit(
    row: Row, accepted: Sequence[int], reasons: Sequence[int], own: int, stop: Stop, draft_forwards: int
) -> None:
    """Append the accepted tokens and the target's own one to the row, as far as its stop allows, and count them."""
    new, why = [*accepted, own], [*reasons, int(Reason.OWN)]
    kept, row.finish = stop.cut(row.answer, new)
    row.text += new[:kept]
    row.reasons += why[:kept]
    counts = row.statistics
    counts.forwards += 1
    counts.draft_forwards += draft_forwards
    counts.strict += why[:kept].count(Reason.STRICT)
    counts.loose += why[:kept].count(Reason.LOOSE)
    counts.carried += why[:kept].count(Reason.CARRIED)
    counts.own += why[:kept].count(Reason.OWN)
    length = min(kept, len(accepted))
    counts.histogram[length] = counts.histogram.get(length, 0) + 1
