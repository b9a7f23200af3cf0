"""A policy for the end of drafts, from development prompts: what drafts were like, and how far each
was accepted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sklearn.isotonic import IsotonicRegression

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.parts import Observer
from gistgate.core.request import Row
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.drafters.stopping import Stopping
from gistgate.measure.costs import measure

LEAST = 200
"""Tested draft tokens below which no map from probability to acceptance is fitted."""
FLOORS = 100
"""About so many floors are tried."""


class Round(NamedTuple):
    """One whole draft."""

    confidences: list[float]  # the draft's probability of each of its tokens
    accepted: int  # tokens of it that stayed


class DraftRecorder(Observer):
    """Notes every round."""

    wants_q = True

    def __init__(self) -> None:
        self.rounds: list[Round] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        lengths = block.valid.sum(-1).tolist()
        drafts = zip(block.draft_q.tolist(), lengths, acceptance.length.tolist(), strict=True)
        self.rounds += [Round(q[:num], accepted) for q, num, accepted in drafts if num]


def fit_stopping(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> Stopping:
    """Record rounds of a decoder whose drafts have K tokens each, measure costs, and fit the policy
    of its rule.
    """
    drafter = decoder.drafter
    block = decoder.block
    if (
        drafter is None
        or drafter.model is None
        or drafter.stopping is not None
        or drafter.nodes
        or not block
    ):
        raise UserError(
            "A policy is fitted to whole chains of a draft model. Name a draft and no end of"
            " drafts."
        )
    recorder = DraftRecorder()
    recording = decoder.watched_by(recorder)
    for ids in prompts:
        recording.generate([ids], **request)
    costs = measure(decoder, prompts, sorted({1, (block + 1) // 2, block}), **request)[0]
    return fit(recorder.rounds, costs, rule=decoder.rule.id, block=block)


def fit(rounds: Sequence[Round], costs: Costs, rule: str, block: int) -> Stopping:
    """The policy with the best speed over these rounds, had each draft ended where the policy
    says.
    """
    points = accepted_by_confidence(rounds)
    free = Stopping(0.0, points)
    floors = survivals(free, rounds)
    policies = [Stopping(floor, points) for floor in floors[:: max(1, len(floors) // FLOORS)]]
    best = max(policies, key=lambda policy: promise(policy, rounds, costs)["speed"])
    expected = {}
    for name, policy in (("whole drafts", free), ("policy", best)):
        figures = promise(policy, rounds, costs)
        expected[name] = {key: round(value, 3) for key, value in figures.items()}
    measured = {
        "rule": rule,
        "block": block,
        "cost": round(costs.draft, 4),
        "verify": {str(num): round(price, 4) for num, price in sorted(costs.verify.items())},
        "rounds": len(rounds),
        "expected": expected,
    }
    return Stopping(best.floor, points, measured=measured)


def survivals(free: Stopping, rounds: Sequence[Round]) -> list[float]:
    """The estimated chances that drafts up to a token are accepted, in rising order: floors that
    end drafts at different places; 0 ends none.
    """
    floors = {0.0}
    for confidences, _ in rounds:
        survival = 1.0
        for confidence in confidences:
            survival = free.after(survival, confidence)
            floors.add(round(survival, 4))
    return sorted(floors)


def accepted_by_confidence(rounds: Sequence[Round]) -> tuple[tuple[float, float], ...]:
    """An isotonic map from the draft's probability of a token to the share accepted once those
    before it were.
    """
    confidences: list[float] = []
    stays: list[float] = []
    for drafted, accepted in rounds:
        tested = drafted[: accepted + 1]
        confidences += [min(q, 1.0) for q in tested]
        stays += [float(place < accepted) for place in range(len(tested))]
    if len(stays) < LEAST:
        raise UserError(
            f"Only {len(stays)} draft tokens were tested. Pass more prompts, or raise"
            " --max-new-tokens."
        )
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(confidences, stays)
    ends = zip(fitted.X_thresholds_, fitted.y_thresholds_, strict=True)
    return tuple(sorted({round(float(x), 4): round(float(y), 4) for x, y in ends}.items()))


def promise(stopping: Stopping, rounds: Sequence[Round], costs: Costs) -> dict[str, float]:
    """What the policy would have made of these rounds: tau, drafted tokens per round, and speed tau
    / (v + n c).
    """
    tokens = 0
    drafted = 0
    price = 0.0
    for confidences, accepted in rounds:
        length = stopping.length(confidences)
        tokens += min(accepted, length) + 1
        drafted += length
        price += costs.verification(length) + length * costs.draft
    num = len(rounds)
    return {"tau": tokens / num, "drafted": drafted / num, "speed": tokens / price}
