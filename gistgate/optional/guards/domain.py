"""Notice prompts unlike those a gate was calibrated on, and take looseness away from them.

Axis letters: B rows, D width of a state, R kept directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from gistgate.block import Block, Reason
from gistgate.errors import UserError
from gistgate.files import check_sealed, checksum, fingerprint, load_tensors, read_json, save_tensors, write_json
from gistgate.optional.guards.base import CLOSED, Verdict
from gistgate.optional.guards.loop import count
from gistgate.plain import inside
from gistgate.request.rows import Row
from gistgate.rules.base import Rule
from gistgate.typed import fits, hints

CONFIG_FILE = "domain.json"
TENSORS_FILE = "domain.safetensors"
TENSORS = ("mean", "basis", "variances")
PRIOR = 16.0
"""Usual states that every request is taken to have shown before its first, each at distance 1."""
SUSPECTED = 2.0
"""How many times the calibration's rate of loose tokens the bet is on."""


@dataclass(frozen=True, eq=False)
class DomainGuard:
    """Two questions to every request, each answered against calibration prompts.

    Is the text strange? The mean Mahalanobis distance of the target's states so far, with a covariance of R directions
    and one variance for all others. Are too many tokens loose? A bet (CUSUM of a likelihood ratio) that their rate has
    doubled. One alarm moves the rest of the request to the setting `stricter`, or closes it where there is none or the
    rule is not the calibrated one; two close it. Counted in `statistics.extra`: `domain_far`, `domain_loose` (requests
    with that alarm), `domain_rounds` (rounds made stricter), `domain_distance` and `domain_bet` (the largest values of
    the two).
    """

    mean: Tensor
    """Mean state [D]."""
    basis: Tensor
    """Directions of most variance [R, D], orthonormal."""
    variances: Tensor
    """Variance along each, and behind them that of all others [R + 1]."""
    layer: str = "post"
    """Hidden state that is looked at."""
    far: float = math.inf
    """Mean distance above which a text is strange, per dimension."""
    rate: float = 0.1
    """Share of loose tokens on calibration prompts."""
    bet: float = math.inf
    """Gain of the bet, in nats, above which too many tokens are loose."""
    stricter: float | None = None
    """The knob of the rule that `about` names after one alarm; None closes at once."""
    about: dict[str, Any] = field(default_factory=dict)
    """How the thresholds were found; "rule" is the id of the rule that was calibrated."""
    id: ClassVar[str] = "domain"

    @property
    def layers(self) -> frozenset[str]:
        return frozenset({self.layer})

    def distance(self, states: Tensor) -> Tensor:
        """Squared Mahalanobis distance of states `[..., D]`, divided by D."""
        x = states.float() - self.mean.to(states.device)
        along = x @ self.basis.to(states.device).T
        variances = self.variances.to(states.device)
        rest = (x.square().sum(-1) - along.square().sum(-1)).clamp_min(0)
        return ((along.square() / variances[:-1]).sum(-1) + rest / variances[-1]) / states.shape[-1]

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        sure_BR = on_the_text(block)
        longest = furthest(rows, sure_BR.sum(-1).tolist())
        sure_BR, states_BRD = sure_BR[list(longest)], block.hidden[self.layer][list(longest)]
        sums, numbers = (self.distance(states_BRD) * sure_BR).sum(-1).tolist(), sure_BR.sum(-1).tolist()
        for row, total, number in zip(longest.values(), sums, numbers, strict=True):
            known: Watched = row.memory.setdefault(self.id, Watched())
            was = known.strangest
            known.see(total, number)
            row.statistics.extra["domain_distance"] = known.strangest
            count(row, "domain_far", was <= self.far < known.strangest)
            count(row, "domain_rounds", self._alarms(row) > 0)
        return [self._verdict(row, rule) for row in rows]

    def _verdict(self, row: Row, rule: Rule) -> Verdict:
        alarms = self._alarms(row)
        if not alarms:
            return None
        # Another rule's knob has another unit, so the calibrated number means nothing to it.
        known = self.about.get("rule", self.about.get("method")) == rule.id
        return self.stricter if known and alarms == 1 and self.stricter is not None else CLOSED

    def _alarms(self, row: Row) -> int:
        known: Watched = row.memory[self.id]
        return (known.strangest > self.far) + (known.highest > self.bet)

    def committed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            known: Watched = row.memory.setdefault(self.id, Watched())
            reasons = row.reasons[known.seen :]
            known.seen = len(row.reasons)
            was = known.highest
            known.bet(step(reasons.count(Reason.LOOSE), len(reasons), self.rate))
            row.statistics.extra["domain_bet"] = known.highest
            count(row, "domain_loose", was <= self.bet < known.highest)

    def save(self, folder: Path) -> None:
        """Write domain.json and domain.safetensors into a gate folder; nothing else of it changes."""
        save_tensors(folder / TENSORS_FILE, {name: getattr(self, name) for name in TENSORS})
        config = {name: value for name, value in asdict(self).items() if name not in TENSORS}
        # JSON knows no infinity: a threshold that nothing exceeds is left empty.
        value = {name: None if value == math.inf else value for name, value in config.items()}
        sealed = checksum(value, fingerprint(folder / TENSORS_FILE))
        write_json(folder / CONFIG_FILE, {**value, "checksum": sealed})

    @classmethod
    def load(cls, folder: str | Path) -> DomainGuard:
        """Read what `save` wrote.

        Raises:
            UserError: the gate folder holds none, or a damaged one.
        """
        folder = Path(folder)
        place = inside(folder, CONFIG_FILE)
        if not place.exists():
            raise UserError(
                f"{folder} does not know which prompts its gate was calibrated on. Use a gate that was "
                "exported with its guard, or leave the guard 'domain' out."
            )
        config: dict[str, Any] = read_json(place)
        weights = inside(folder, TENSORS_FILE)
        tensors = load_tensors(weights)
        sealed = config.pop("checksum", None) if isinstance(config, dict) else None
        known = {name: hint for name, hint in hints(cls).items() if name not in TENSORS}
        known |= dict.fromkeys(("far", "bet"), float | None)
        if (
            not isinstance(config, dict)
            or set(config) != set(known)
            or not all(fits(config[name], hint) for name, hint in known.items())
            or not are_moments(tensors)
        ):
            raise UserError(f"{place} is damaged or of another version. Export the gate again.")
        check_sealed(place, sealed, config, fingerprint(weights))
        config |= {name: math.inf for name in ("far", "bet") if config[name] is None}
        mean, basis, variances = (tensors[name] for name in TENSORS)
        return cls(mean, basis, variances, **config)


def furthest(rows: Sequence[Row], numbers: Sequence[float]) -> dict[int, Row]:
    """Of the paths of every row's tree the first that has most states on the text, by its place in the batch."""
    best: dict[int, int] = {}
    for place, row in enumerate(rows):
        if id(row) not in best or numbers[place] > numbers[best[id(row)]]:
            best[id(row)] = place
    return {place: rows[place] for place in sorted(best.values())}


def are_moments(tensors: dict[str, Tensor]) -> bool:
    """Whether tensors from a file are a mean [D], directions [R, D] and positive variances [R + 1], float32."""
    if set(tensors) != set(TENSORS) or any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        return False
    mean, basis, variances = (tensors[name] for name in TENSORS)
    if mean.ndim != 1 or basis.shape != (len(basis), len(mean)) or variances.shape != (len(basis) + 1,):
        return False
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values()) and bool((variances > 0).all())


@dataclass
class Watched:
    """What is known about one request."""

    total: float = PRIOR
    """Sum of distances; it begins as if some usual states had been seen, so that few cannot alarm."""
    number: float = PRIOR
    """States in that sum."""
    strangest: float = 0.0
    """Largest mean so far: an alarm stays."""
    gain: float = 0.0
    highest: float = 0.0
    """Largest gain so far."""
    seen: int = 0
    """Tokens of the answer that the bet knows."""

    def see(self, total: float, number: float) -> None:
        """Distances of one more round."""
        self.total, self.number = self.total + total, self.number + number
        self.strangest = max(self.strangest, self.total / self.number)

    def bet(self, gain: float) -> None:
        """One more round; a bet that lost everything begins anew."""
        self.gain = max(0.0, self.gain + gain)
        self.highest = max(self.highest, self.gain)


def step(loose: int, tokens: int, rate: float) -> float:
    """What a bet on `SUSPECTED` times the rate gains by a round, in nats: a log-likelihood ratio of two coins."""
    rate = min(max(rate, 1e-3), 0.45)
    other = SUSPECTED * rate
    return loose * math.log(other / rate) + (tokens - loose) * math.log((1 - other) / (1 - rate))


def on_the_text(block: Block) -> Tensor:
    """Rows whose state belongs to the text whatever the rule accepts: up to the first refusal [B, K + 1]."""
    return torch.nn.functional.pad(block.strict.long().cumprod(-1), (1, 0), value=1).bool()


def fit(states_ND: Tensor, directions: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [D], orthonormal directions [R, D] of most variance and the variances [R + 1] of states.

    Fewer states than dimensions leave many directions unseen; one common variance for those behind the first R keeps
    them from counting for nothing or for everything (probabilistic PCA).
    """
    x = states_ND.double()
    mean = x.mean(0)
    _, singular, basis = torch.linalg.svd(x - mean, full_matrices=False)
    kept = min(directions, len(singular) - 1, x.shape[1] - 1)
    variances = singular.square() / max(len(x) - 1, 1)
    rest = variances[kept:].sum() / (x.shape[1] - kept)
    floor = torch.finfo(torch.float32).eps
    all_of = torch.cat([variances[:kept], rest[None]]).clamp_min(floor)
    return mean.float(), basis[:kept].float().contiguous(), all_of.float()
