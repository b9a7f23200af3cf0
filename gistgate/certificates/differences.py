"""Differences d = strict score - loose score of the same prompts, in [-1, 1]: what every bound is about.

Axis letter: N prompts.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from gistgate.certificates.tango import Array
from gistgate.errors import UserError


def checked(differences: ArrayLike) -> Array:
    """The differences as an array [N].

    Raises:
        UserError: there is no prompt, or a difference is no number in [-1, 1].
    """
    d = np.asarray(differences, float).ravel()
    if not len(d):
        raise UserError("A bound needs at least one prompt, and there is none. Raise the size of the split.")
    if not (np.isfinite(d) & (np.abs(d) <= 1)).all():
        raise UserError(
            f"A difference of scores is {d[~(np.abs(d) <= 1)][0]}, outside [-1, 1]. Bounds need scores in [0, 1]: "
            "name a metric of the task that has them (`task_metric` in params.yaml)."
        )
    return d


def right_or_wrong(d: Array) -> bool:
    """Whether all differences are -1, 0 or 1."""
    return bool(np.isin(d, (-1.0, 0.0, 1.0)).all())


def expected_table(loss: float, discordance: float, n: int) -> tuple[int, int]:
    """Losses and gains among n pairs at these rates, rounded against the loose rule."""
    discordance = max(discordance, abs(loss))
    losses = min(n, math.ceil(n * (discordance + loss) / 2 - 1e-9))
    gains = max(0, math.floor(n * (discordance - loss) / 2 + 1e-9))
    return losses, min(gains, n - losses)


def spread_out(losses: int, gains: int, n: int) -> Array:
    """Differences [N] with so many losses and gains, spread as evenly as whole prompts allow."""
    d = np.zeros(n)
    places = np.linspace(0, n, losses + gains, endpoint=False).astype(int)
    share = losses / max(losses + gains, 1)
    is_loss = np.diff(np.floor(np.arange(losses + gains + 1) * share + 1e-9)) > 0
    d[places] = np.where(is_loss, 1.0, -1.0)
    return d
