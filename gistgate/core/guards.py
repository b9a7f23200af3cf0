"""Notice prompts unlike those a gate was calibrated on, and take looseness away from them.

Axis letters: B rows, D width of a state, R kept directions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Acceptance, Block, Reason
from gistgate.core.files import (
    check_sealed,
    checksum,
    fingerprint,
    load_tensors,
    read_json,
    save_tensors,
    write_json,
)
from gistgate.core.gate import Gate
from gistgate.core.identity import gate_hash, identify_model
from gistgate.core.request import Row
from gistgate.core.rule import Exact, Rule, State, settle
from gistgate.core.utils import UserError, fits, hints

# ---- What a guard is, and how its verdict narrows what a rule may do.


CLOSED = "closed"
"""Verdict: this row is verified strictly."""

Verdict = float | str | None
"""What a row may do in this round: None as the rule says, a number the rule with that stricter knob, or CLOSED."""


class Guard(Protocol):
    """Watches every request and takes looseness away; it never adds any.

    Guards are frozen dataclasses shared by all sessions; what they know about a request lies in its row, under their
    id, and what they count goes to the row's `statistics.extra`.
    """

    id: ClassVar[str]

    @property
    def layers(self) -> Collection[str]:
        """Hidden states that a block has to carry for it."""
        ...

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        """What every row may do in this round [B], before anything is accepted.

        A row stands there once for every path of its tree, and counts once.
        """
        ...

    def committed(self, rows: Sequence[Row]) -> None:
        """Look at the texts after the accepted tokens were appended and counted."""
        ...


class Guards:
    """Several guards as one: every row is judged at the strictest setting that a guard asks for."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self.layers = frozenset().union(*(guard.layers for guard in guards))

    def settle(self, rule: Rule, block: Block, state: State, rows: Sequence[Row]) -> Acceptance:
        """What of the block stays; `rows` are those of the block, one for every path."""
        acceptance = settle(rule, block, state)
        if rule.lossless:  # there is nothing to lose
            return acceptance
        opinions = [guard.verdicts(rule, block, rows) for guard in self.guards]
        chosen = [strictest(rule, row) for row in zip(*opinions, strict=True)]
        for verdict in {verdict for verdict in chosen if verdict is not None}:
            mask_B = torch.tensor([verdict == other for other in chosen], device=block.draft_ids.device)
            acceptance = either(mask_B, settle(narrowed(rule, verdict), block, state), acceptance)
        return acceptance

    def committed(self, rows: Sequence[Row]) -> None:
        """Look at the texts after the accepted tokens were appended and counted."""
        for guard in self.guards:
            guard.committed(rows)


def firsts(rows: Sequence[Row]) -> dict[int, Row]:
    """Where every row stands first, by its place in the batch."""
    places = {id(row): place for place, row in reversed(list(enumerate(rows)))}
    return {place: rows[place] for place in sorted(places.values())}


def strictest(rule: Rule, verdicts: Sequence[Verdict]) -> Verdict:
    """Of several verdicts on one row the one that permits least."""
    asked = [verdict for verdict in verdicts if verdict is not None]
    if not asked:
        return None
    values = [float(verdict) for verdict in asked if verdict != CLOSED]
    if len(values) < len(asked):
        return CLOSED
    return min(values) if rule.looser == "up" else max(values)


def narrowed(rule: Rule, verdict: Verdict) -> Rule:
    """The rule at a verdict: strict where it is closed, or where the number would be no stricter than the rule is."""
    if verdict == CLOSED or rule.knob is None or not is_stricter(rule, float(verdict or 0)):
        return Exact()
    changes: dict[str, Any] = {rule.knob: verdict}
    narrower: Rule = rule.changed(**changes)
    return narrower


def is_stricter(rule: Rule, value: float) -> bool:
    """Whether the rule accepts less with its knob at `value` than it does now."""
    now = getattr(rule, rule.knob or "")
    return bool(value < now if rule.looser == "up" else value > now)


def either(mask_B: torch.Tensor, a: Acceptance, b: Acceptance) -> Acceptance:
    """Row by row `a` where the mask is set, else `b`."""
    return Acceptance(
        torch.where(mask_B, a.length, b.length),
        torch.where(mask_B, a.own_ids, b.own_ids),
        torch.where(mask_B[:, None], a.reasons, b.reasons),
    )


# ---- Close the gate when an answer repeats itself: loops are easy to draft, so broken output looks fastest.


GRAM = 4
"""Tokens of a gram whose variety is counted."""


@dataclass(frozen=True)
class LoopGuard:
    """Strict verification for `window` tokens once an answer with loose tokens has begun to repeat itself.

    Draft tokens of closed rounds get the reason `loop`; they count as strict ones. Counted in `statistics.extra`:
    `loop_alarms` (times it closed), `loop_rounds` (rounds it kept closed), `loop_target` (windows at whose end the
    strict text looped still, or loops without any loose token before: the target's own) and `loop_open` (1 where the
    answer ends in a loop).
    """

    period: int = 64
    """Longest period that is looked for, in tokens."""
    repeats: int = 4
    """Times a period has to stand in a row."""
    span: int = 256
    """Tokens over which the variety of grams is taken; shorter answers are judged by their period alone."""
    variety: float = 0.3
    """Share of distinct grams below which the span counts as a loop."""
    window: int | None = 128
    """Tokens for which it stays closed; None keeps it closed to the end of the answer."""
    id: ClassVar[str] = "loop"
    layers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.period < 1 or self.repeats < 2 or self.span < GRAM or not (self.window is None or self.window >= 1):
            raise UserError(
                f"A loop guard with period {self.period}, repeats {self.repeats}, span {self.span} and window "
                f"{self.window} is impossible: at least 1, 2, {GRAM} and 1 tokens."
            )

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        for row in firsts(rows).values():
            row.memory["loop_closed"] = self._is_closed(row)
            count(row, "loop_rounds", row.memory["loop_closed"])
        return [CLOSED if self._is_closed(row) else None for row in rows]

    def _is_closed(self, row: Row) -> bool:
        return bool(len(row.answer) < row.memory.get(self.id, 0))

    def committed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._look(row)

    def _look(self, row: Row) -> None:
        answer, until = row.answer, row.memory.get(self.id, 0)
        if row.memory.pop("loop_closed", False):
            mark(row, row.memory["loop_seen"])
        # The target's own token ends every round and may differ each time, so all new ends are looked at.
        new = range(row.memory.get("loop_seen", 0) + 1, len(answer) + 1)
        row.memory["loop_seen"] = len(answer)
        longest = max(self.span, self.period * self.repeats)
        loops = [self.is_loop(answer[max(0, end - longest) : end]) for end in new]
        row.statistics.extra["loop_open"] = float(bool(loops) and loops[-1])
        if not any(loops) or len(answer) < until:
            return
        # A loop without a loose token since the last alarm, or at all, is the target's.
        own = Reason.LOOSE not in row.reasons[row.memory.get("loop_at", 0) :]
        count(row, "loop_target", own)
        count(row, "loop_alarms", not own)
        row.memory["loop_at"] = len(answer)
        row.memory[self.id] = len(answer) + self.window if self.window is not None else float("inf")

    def is_loop(self, ids: Sequence[int]) -> bool:
        """Whether the text ends in a period that stands `repeats` times, or is poor in grams over its last `span`."""
        return self._periodic(ids) or self._poor(ids)

    def _periodic(self, ids: Sequence[int]) -> bool:
        # Comparing one token first spares nearly all the slices.
        longest = min(self.period, len(ids) // self.repeats)
        near = [p for p in range(1, longest + 1) if ids[-1 - p] == ids[-1]]
        return any(ids[-p * (self.repeats - 1) :] == ids[-p * self.repeats : -p] for p in near)

    def _poor(self, ids: Sequence[int]) -> bool:
        if len(ids) < self.span:
            return False
        last = ids[-self.span :]
        grams = {tuple(last[i : i + GRAM]) for i in range(self.span - GRAM + 1)}
        return len(grams) < self.variety * (self.span - GRAM + 1)


def mark(row: Row, start: int) -> None:
    """Give the strict accepts from `start` on the guard's reason: the last round, which was counted before."""
    row.reasons[start:] = [Reason.LOOP if why == Reason.STRICT else why for why in row.reasons[start:]]


def count(row: Row, name: str, number: float) -> None:
    """Add to a row's own counter; nothing appears that never happened."""
    if number:
        row.statistics.extra[name] = row.statistics.extra.get(name, 0.0) + float(number)


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
        place = folder / CONFIG_FILE
        if not place.exists():
            raise UserError(
                f"{folder} does not know which prompts its gate was calibrated on. Use a gate that was "
                "exported with its guard, or leave the guard 'domain' out."
            )
        config: dict[str, Any] = read_json(place)
        weights = folder / TENSORS_FILE
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


# ---- Guards by the names that a command line knows.


def make_guards(names: Sequence[str], gate: Any = None) -> list[Guard]:
    """Guards by their ids; `gate` is the folder that "domain" is read from, or a gate that was loaded from it.

    Raises:
        UserError: there is no such guard, or no folder to read it from.
    """
    return [make_guard(name, gate) for name in names]


def check_guards(guards: Sequence[Guard], gate: Gate | None, target: PreTrainedModel) -> None:
    """Refuse a guard that was fitted with another gate or on other weights; older ones do not say the weights.

    Raises:
        UserError: which of the two it is.
    """
    for about in [guard.about for guard in guards if isinstance(guard, DomainGuard)]:
        here = {"gate": gate and gate_hash(gate), "target": identify_model(target).fingerprint}
        for part, value in here.items():
            if value is not None and about.get(part) not in (None, value):
                raise UserError(
                    f"The guard 'domain' was fitted with another {part}, so that it knows other states. Leave the "
                    "guard out, or run the pipeline for these models and export the gate again."
                )


def make_guard(name: str, gate: Any = None) -> Guard:
    """One guard by its id.

    Raises:
        UserError: there is no such guard, or no folder to read it from.
    """
    if name == LoopGuard.id:
        return LoopGuard()
    if name != DomainGuard.id:
        raise UserError(f"There is no guard '{name}'. Known: {LoopGuard.id}, {DomainGuard.id}.")
    folder = gate.folder if isinstance(gate, Gate) else gate
    if folder is None:
        raise UserError("The guard 'domain' compares with the prompts of a gate's calibration. Name the gate's folder.")
    return DomainGuard.load(folder)
