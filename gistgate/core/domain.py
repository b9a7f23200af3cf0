"""The guard that notices requests unlike the calibration prompts of a gate.

Axis letters: B rows, R rows of the target's states (K + 1), D width of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Block, Reason
from gistgate.core.files import (
    check_sealed,
    fingerprint,
    load_tensors,
    read_sealed,
    save_tensors,
    write_sealed,
)
from gistgate.core.guard import CLOSED, Guard, Verdict
from gistgate.core.request import Row
from gistgate.core.rule import Rule
from gistgate.core.utils import UserError, dataclass_from, hints, refusing

CONFIG_FILE = "domain.json"
TENSORS_FILE = "domain.safetensors"
TENSORS = ("mean", "basis", "variances")
# usual states that every request is taken to have shown before its first, each at distance 1, so
# that few states cannot alarm
PRIOR = 16.0
SUSPECTED = 2.0  # how many times the calibration's rate of loose tokens the bet is on


@dataclass
class Watched:
    """What the domain guard knows of one request."""

    total: float = PRIOR  # sum of distances
    number: float = PRIOR  # states in that sum
    strangest: float = 0.0  # largest mean so far: an alarm stays
    gain: float = 0.0
    highest: float = 0.0  # largest gain so far
    seen: int = 0  # tokens of the answer that the bet knows

    def add(self, total: float, number: float) -> None:
        """Add the distances of further states."""
        self.total += total
        self.number += number
        self.strangest = max(self.strangest, self.total / self.number)

    def bet(self, gain: float) -> None:
        """One more round; a bet that lost everything begins anew."""
        self.gain = max(0.0, self.gain + gain)
        self.highest = max(self.highest, self.gain)


@dataclass(frozen=True, eq=False)
class DomainGuard(Guard):
    """Two questions to every request, each answered against calibration prompts.

    Is the text strange? The mean Mahalanobis distance of the target's states so far. Are too many
    tokens loose? A bet (CUSUM of a likelihood ratio) that their rate has doubled. One alarm moves
    the rest of the request to the setting `stricter`, or closes it where there is none or the rule
    is not the calibrated one; two close it.
    """

    mean: Tensor  # mean state [D]
    basis: Tensor  # directions of most variance [P, D], orthonormal
    variances: Tensor  # variance along each, and behind them that of all others [P + 1]
    layer: str = "post"  # hidden state that is looked at
    far: float = math.inf  # mean distance above which a text is strange, per dimension
    rate: float = 0.1  # share of loose tokens on calibration prompts
    bet: float = math.inf  # gain of the bet, in nats, above which too many tokens are loose
    # the knob of the rule that `about` names after one alarm; None closes at once
    stricter: float | None = None
    # how the thresholds were found, and for which "rule"
    about: dict[str, Any] = field(default_factory=dict)
    id = "domain"
    memory = Watched

    @property
    def layers(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({self.layer})

    def distance(self, states: Tensor) -> Tensor:
        """Squared Mahalanobis distance of states `[..., D]`, divided by D."""
        x = states.float() - self.mean.to(states.device)
        squares = (x @ self.basis.to(states.device).T).square()
        variances = self.variances.to(states.device)
        outside = (x.square().sum(-1) - squares.sum(-1)).clamp_min(0)
        inside = (squares / variances[:-1]).sum(-1)
        return (inside + outside / variances[-1]) / states.shape[-1]

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        is_sure_BR = on_the_text(block)
        places = furthest(rows, is_sure_BR.sum(-1).tolist())
        is_sure_BR = is_sure_BR[places]
        distances_BR = self.distance(block.hidden[self.layer][places]) * is_sure_BR
        sums = zip(distances_BR.sum(-1).tolist(), is_sure_BR.sum(-1).tolist())
        for place, (total, number) in zip(places, sums):
            row = rows[place]
            watched = self.known(row)
            before = watched.strangest
            watched.add(total, number)
            row.statistics.extra["domain_distance"] = watched.strangest
            row.statistics.count("domain_far", before <= self.far < watched.strangest)
            row.statistics.count("domain_rounds", self._alarms(row) > 0)
        # Another rule's knob has another unit, so the calibrated number means nothing to it.
        is_calibrated = self.about.get("rule") == rule.id
        after_one = self.stricter if is_calibrated and self.stricter is not None else CLOSED
        return [(None, after_one, CLOSED)[self._alarms(row)] for row in rows]

    def _alarms(self, row: Row) -> int:
        watched: Watched = self.known(row)
        return (watched.strangest > self.far) + (watched.highest > self.bet)

    def committed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            watched = self.known(row)
            reasons = row.reasons[watched.seen :]
            watched.seen = len(row.reasons)
            before = watched.highest
            watched.bet(step(reasons.count(Reason.LOOSE), len(reasons), self.rate))
            row.statistics.extra["domain_bet"] = watched.highest
            row.statistics.count("domain_loose", before <= self.bet < watched.highest)

    def save(self, folder: Path) -> None:
        """Write domain.json and domain.safetensors into a gate folder; nothing else of it
        changes.
        """
        save_tensors(folder / TENSORS_FILE, {name: getattr(self, name) for name in TENSORS})
        # JSON knows no infinity: a threshold that nothing exceeds is left empty.
        config = {
            name: None if value == math.inf else value
            for name, value in vars(self).items()
            if name not in TENSORS
        }
        write_sealed(folder / CONFIG_FILE, config, fingerprint(folder / TENSORS_FILE))

    @classmethod
    def load(cls, folder: str | Path | None) -> DomainGuard:
        """Read what `save` wrote into the folder of a gate."""
        if folder is None:
            raise UserError(
                "The guard 'domain' compares with a gate's calibration prompts. Name the gate's"
                " folder."
            )
        place = Path(folder) / CONFIG_FILE
        weights = Path(folder) / TENSORS_FILE
        if not place.exists():
            raise UserError(
                f"{folder} does not know which prompts its gate was calibrated on. Leave the guard"
                " out."
            )
        config, sealed = read_sealed(place, "guard", "Export the gate again.")
        tensors = load_tensors(weights)
        check_sealed(place, sealed, config, fingerprint(weights))
        settings = {name: value for name, value in config.items() if value is not None}
        with refusing(f"{place} is damaged or of another version", "Export the gate again."):
            if {*config, *tensors} != {*hints(cls)}:
                raise ValueError("other entries are expected")
            return dataclass_from(cls, {**tensors, **settings})


def on_the_text(block: Block) -> Tensor:
    """Rows whose state belongs to the text whatever the rule accepts: up to the first refusal [B, K
    + 1].
    """
    is_kept_BK = block.strict.long().cumprod(-1)
    return torch.nn.functional.pad(is_kept_BK, (1, 0), value=1).bool()


def furthest(rows: Sequence[Row], numbers: Sequence[float]) -> list[int]:
    """Of the paths of every row's tree the place in the batch of the first whose number is
    largest.
    """
    best: dict[int, int] = {}
    for place, row in enumerate(rows):
        if numbers[place] > numbers[best.setdefault(id(row), place)]:
            best[id(row)] = place
    return sorted(best.values())


def step(loose: int, tokens: int, rate: float) -> float:
    """What a bet on `SUSPECTED` times the rate gains by a round, in nats: a log-likelihood ratio of
    two coins.
    """
    rate = min(max(rate, 1e-3), 0.45)
    suspected = SUSPECTED * rate
    by_loose = math.log(suspected / rate)
    by_strict = math.log((1 - suspected) / (1 - rate))
    return loose * by_loose + (tokens - loose) * by_strict


def fit(states_ND: Tensor, directions: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [D], P orthonormal directions [P, D], variances [P + 1], of which all others share the
    last (PPCA).
    """
    x = states_ND.double()
    mean = x.mean(0)
    _, singular, basis = torch.linalg.svd(x - mean, full_matrices=False)
    num = min(directions, len(singular) - 1, x.shape[1] - 1)
    variances = singular.square() / max(len(x) - 1, 1)
    outside = variances[num:].sum() / (x.shape[1] - num)
    variances = torch.cat([variances[:num], outside[None]])
    variances = variances.clamp_min(torch.finfo(torch.float32).eps)
    basis = basis[:num].float().contiguous()
    return mean.float(), basis, variances.float()
