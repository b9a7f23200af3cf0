"""A policy for the end of drafts, from development prompts: what drafts were like, and how far each
was accepted.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sklearn.isotonic import IsotonicRegression

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.request import Row
from gistgate.core.session import Observer
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import Costs
from gistgate.drafters.stopping import Stopping
from gistgate.measure.outlook import measure

LEAST = 200  # tested draft tokens below which no map from probability to acceptance is fitted


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
        drafts = zip(
            block.draft_q.tolist(),
            block.valid.sum(-1).tolist(),
            acceptance.length.tolist(),
            strict=True,
        )
        self.rounds += [Round(q[:num], length) for q, num, length in drafts if num]


def fit_stopping(decoder: Decoder, prompts: Sequence[Sequence[int]], **request: Any) -> Stopping:
    """Record rounds of a decoder whose drafts have K tokens each, measure costs, and fit the policy
    of its rule.
    """
    drafter = decoder.drafter
    if (
        drafter is None
        or drafter.model is None
        or drafter.stops_early
        or drafter.nodes
        or not decoder.block
    ):
        raise UserError(
            "A policy is fitted to whole chains of a draft model. Name a draft and no end of"
            " drafts."
        )
    recorder = DraftRecorder()
    recording = decoder.having(observer=recorder)
    for ids in prompts:
        recording.generate([ids], **request)
    costs, *_ = measure(
        decoder, prompts, sorted({1, (decoder.block + 1) // 2, decoder.block}), **request
    )
    return fit(recorder.rounds, costs, rule=decoder.rule.id, block=decoder.block)


def fit(rounds: Sequence[Round], costs: Costs, rule: str, block: int) -> Stopping:
    """The policy with the best speed over these rounds, had each draft ended where the policy
    says.
    """
    points = accepted_by_confidence(rounds)
    free = Stopping(0.0, points)
    floors = {0.0}
    for one in rounds:
        survival = 1.0
        for confidence in one.confidences:
            survival = free.after(survival, confidence)
            floors.add(round(survival, 4))
    tried = [Stopping(floor, points) for floor in sorted(floors)[:: max(1, len(floors) // 100)]]
    best = max(tried, key=lambda one: (promise(one, rounds, costs)["speed"], -one.floor))
    expected = {
        name: {key: round(value, 3) for key, value in promise(one, rounds, costs).items()}
        for name, one in (("whole drafts", free), ("policy", best))
    }
    verify = {str(num): round(price, 4) for num, price in sorted(costs.verify.items())}
    measured = {
        "rule": rule,
        "block": block,
        "cost": round(costs.draft, 4),
        "verify": verify,
        "rounds": len(rounds),
    }
    return Stopping(best.floor, points, measured={**measured, "expected": expected})


def accepted_by_confidence(rounds: Sequence[Round]) -> tuple[tuple[float, float], ...]:
    """An isotonic map from the draft's probability of a token to the share accepted once those
    before it were.
    """
    tested = [
        (q, place < r.accepted)
        for r in rounds
        for place, q in enumerate(r.confidences[: r.accepted + 1])
    ]
    if len(tested) < LEAST:
        raise UserError(
            f"Only {len(tested)} draft tokens were tested. Pass more prompts, or raise"
            " --max-new-tokens."
        )
    fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    fitted.fit([min(q, 1.0) for q, _ in tested], [float(stays) for _, stays in tested])
    ends = zip(fitted.X_thresholds_, fitted.y_thresholds_, strict=True)
    return tuple(sorted({round(float(x), 4): round(float(y), 4) for x, y in ends}.items()))


def promise(stopping: Stopping, rounds: Sequence[Round], costs: Costs) -> dict[str, float]:
    """What the policy would have made of these rounds: tau, drafted tokens per round, and speed tau
    / (v + n c).
    """
    lengths = [stopping.length(r.confidences) for r in rounds]
    kept = [min(r.accepted, length) + 1 for r, length in zip(rounds, lengths, strict=True)]
    price = sum(costs.verification(length) + length * costs.draft for length in lengths)
    return {
        "tau": sum(kept) / len(rounds),
        "drafted": sum(lengths) / len(rounds),
        "speed": sum(kept) / price,
    }
