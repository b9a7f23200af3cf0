"""Batches of a run's prompts, for benchmarks that decode rows together."""

from __future__ import annotations

from collections.abc import Sequence

from gistgate.errors import UserError


def batches_of(ids: Sequence[list[int]], size: int, option: str, least: int = 1) -> list[list[list[int]]]:
    """Full batches of the prompts; what fills none is left out, and no prompt comes twice.

    Args:
        ids: token ids of every prompt.
        size: rows of a batch.
        option: the option of the command line that names the size.
        least: batches that are needed.

    Raises:
        UserError: there are too few prompts for them.
    """
    most = len(ids) // least
    if not 1 <= size <= most:
        wanted = f"a batch of {size}" if least == 1 else f"{least} batches of {size}, none of which comes twice"
        remedy = f"Name sizes from 1 to {most} with {option}" if most else "Take more prompts"
        raise UserError(f"{len(ids)} prompts do not fill {wanted}. {remedy}.")
    return [list(ids[first : first + size]) for first in range(0, len(ids) - size + 1, size)]
