"""How rollouts end, whoever makes them."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.labels.rollouts import Answered, Ended, Listed, Rollout, Serves, decided


def ends(
    roller: Serves, rollouts: Sequence[Rollout], rejoin: int | None = None, answered: Answered | None = None
) -> list[Ended]:
    """In the order of the rollouts; `rejoin` and `answered` as of `decided`."""
    return Listed(
        rollouts,
        lambda rollout, answer: decided(rollout, answer, rejoin, answered),
        lambda _rollout, ended: ended,
    ).made_by(roller)
