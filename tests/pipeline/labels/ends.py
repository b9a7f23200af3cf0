"""How rollouts end, whoever makes them."""

from collections.abc import Sequence
from typing import Any

from pipeline.labels.rollouts import FinishedRollout, Rollout, RolloutList, decided


def ends(
    runner: Any,
    rollouts: Sequence[Rollout],
    rejoin: int | None = None,
) -> list[FinishedRollout]:
    """In the order of the rollouts; `rejoin` as of `decided`."""
    return RolloutList(
        rollouts,
        lambda rollout, answer: decided(rollout, answer, rejoin),
        lambda _rollout, ended: ended,
    ).made_by(runner)
