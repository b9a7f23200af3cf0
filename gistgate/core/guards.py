"""Guards watch every request and take looseness away: from answers that loop, and from prompts of
another kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Acceptance, Block, Reason
from gistgate.core.files import (
    check_sealed,
    fingerprint,
    load_tensors,
    read_sealed,
    save_tensors,
    write_sealed,
)
from gistgate.core.identity import gate_hash, identify_model
from gistgate.core.request import Row
from gistgate.core.rule import Exact, Rule, State, settle
from gistgate.core.scopes import PROSE, THINKING, Scope
from gistgate.core.utils import UserError, dataclass_from, hints, refusing

CLOSED = "closed"  # verdict: this row is verified strictly
Verdict = (
    float | str | None
)  # in this round: None as the rule says, a number the rule with that stricter knob, CLOSED


class Guards:
    """Several guards as one: every row is judged at the strictest setting that a guard asks for.

    Guards keep a request's state in its row. `layers` are the hidden states that a block has to
    carry, `verdicts` say before anything is accepted what every path may do, and `committed` looks
    at the texts after tokens were counted.
    """

    def __init__(self, guards: Sequence[Guard | Scope]) -> None:
        self.guards = tuple(guard for guard in guards if not isinstance(guard, Scope))
        self.scopes = tuple(guard for guard in guards if isinstance(guard, Scope))
        self.layers = frozenset[str]().union(*(guard.layers for guard in self.guards))

    def settle(self, rule: Rule, block: Block, state: State, rows: Sequence[Row]) -> Acceptance:
        """What of the block stays; `rows` are those of the block, one for every path."""
        if rule.lossless:  # there is nothing to lose
            return settle(rule, block, state)
        for scope in self.scopes:
            block = scope.limit(block, rows)
        acceptance = settle(rule, block, state)
        opinions = [guard.verdicts(rule, block, rows) for guard in self.guards]
        chosen = [strictest(rule, row) for row in zip(*opinions, strict=True)]
        for verdict in {verdict for verdict in chosen if verdict is not None}:
            mask_B = torch.tensor(
                [verdict == other for other in chosen], device=block.draft_ids.device
            )
            acceptance = either(mask_B, settle(narrowed(rule, verdict), block, state), acceptance)
        return acceptance

    def committed(self, rows: Sequence[Row]) -> None:
        for guard in self.guards:
            guard.committed(rows)


def strictest(rule: Rule, verdicts: Sequence[Verdict]) -> Verdict:
    """Of several verdicts on one row the one that permits least."""
    asked = [verdict for verdict in verdicts if verdict is not None]
    if not asked or CLOSED in asked:
        return CLOSED if asked else None
    return min(map(float, asked)) if rule.looser == "up" else max(map(float, asked))


def narrowed(rule: Rule, verdict: Verdict) -> Rule:
    """The rule at a verdict: strict where it is closed, or where the number would be no stricter
    than the rule is.
    """
    if verdict == CLOSED or rule.knob is None:
        return Exact()
    value = float(verdict or 0)
    now = getattr(rule, rule.knob)
    changes: dict[str, Any] = {rule.knob: verdict}
    narrower: Rule = (
        rule.changed(**changes)
        if (value < now if rule.looser == "up" else value > now)
        else Exact()
    )
    return narrower


def either(mask_B: Tensor, a: Acceptance, b: Acceptance) -> Acceptance:
    """Row by row `a` where the mask is set, else `b`."""
    return Acceptance(
        torch.where(mask_B, a.length, b.length),
        torch.where(mask_B, a.own_ids, b.own_ids),
        torch.where(mask_B[:, None], a.reasons, b.reasons),
    )


GRAM = 4  # tokens of a gram whose variety is counted


@dataclass(frozen=True)
class LoopGuard:
    """Strict verification for `window` tokens once an answer with loose tokens has begun to repeat
    itself.

    Draft tokens of closed rounds get the reason `loop`; they count as strict ones. Counters:
    docs/guards.md.
    """

    period: int = 64  # longest period that is looked for, in tokens
    repeats: int = 4  # times a period has to stand in a row
    # tokens over which the variety of grams is taken; shorter answers are judged by their period
    # alone
    span: int = 256
    variety: float = 0.3  # share of distinct grams below which the span counts as a loop
    window: int | None = (
        128  # tokens for which it stays closed; None keeps it closed to the end of the answer
    )
    id: ClassVar[str] = "loop"
    layers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if (
            self.period < 1
            or self.repeats < 2
            or self.span < GRAM
            or not (self.window is None or self.window >= 1)
        ):
            raise UserError(
                "An impossible loop guard: period and window are 1 or more, repeats 2, and span"
                f" {GRAM}."
            )

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        for row in {id(row): row for row in rows}.values():
            row.memory["loop_closed"] = len(row.answer) < row.memory.get(self.id, 0)
            row.statistics.count("loop_rounds", row.memory["loop_closed"])
        return [CLOSED if row.memory["loop_closed"] else None for row in rows]

    def committed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            answer = row.answer
            memory = row.memory
            seen = row.memory.get("loop_seen", 0)
            if memory.pop(
                "loop_closed", False
            ):  # strict accepts of the last round, counted before, are the guard's
                row.reasons[seen:] = [
                    Reason.LOOP if why == Reason.STRICT else why for why in row.reasons[seen:]
                ]
            # The target's own token ends every round and may differ each time, so all new ends are
            # looked at.
            longest = max(self.span, self.period * self.repeats)
            loops = [
                self.is_loop(answer[max(0, end - longest) : end])
                for end in range(seen + 1, len(answer) + 1)
            ]
            memory["loop_seen"] = len(answer)
            row.statistics.extra["loop_open"] = float(bool(loops) and loops[-1])
            if any(loops) and len(answer) >= memory.get(self.id, 0):
                # A loop without a loose token since the last alarm, or at all, is the target's.
                own = Reason.LOOSE not in row.reasons[memory.get("loop_at", 0) :]
                row.statistics.count("loop_target" if own else "loop_alarms")
                memory["loop_at"] = len(answer)
                memory[self.id] = len(answer) + self.window if self.window is not None else math.inf

    def is_loop(self, ids: Sequence[int]) -> bool:
        """Whether the text ends in a period that stands `repeats` times, or is poor in grams over
        its last `span`.
        """
        # Comparing one token first spares nearly all the slices.
        near = [
            p
            for p in range(1, min(self.period, len(ids) // self.repeats) + 1)
            if ids[-1 - p] == ids[-1]
        ]
        if any(ids[-p * (self.repeats - 1) :] == ids[-p * self.repeats : -p] for p in near):
            return True
        num = self.span - GRAM + 1
        last = ids[-self.span :]
        return (
            len(last) == self.span
            and len({tuple(last[i : i + GRAM]) for i in range(num)}) < self.variety * num
        )


CONFIG_FILE = "domain.json"
TENSORS_FILE = "domain.safetensors"
TENSORS = ("mean", "basis", "variances")
# usual states that every request is taken to have shown before its first, each at distance 1
PRIOR = 16.0
SUSPECTED = 2.0  # how many times the calibration's rate of loose tokens the bet is on


@dataclass(frozen=True, eq=False)
class DomainGuard:
    """Two questions to every request, each answered against calibration prompts.

    Is the text strange? The mean Mahalanobis distance of the target's states so far. Are too many
    tokens loose? A bet (CUSUM of a likelihood ratio) that their rate has doubled. One alarm moves
    the rest of the request to the setting `stricter`, or closes it where there is none or the rule
    is not the calibrated one; two close it.
    """

    mean: Tensor  # mean state [D]
    basis: Tensor  # directions of most variance [R, D], orthonormal
    variances: Tensor  # variance along each, and behind them that of all others [R + 1]
    layer: str = "post"  # hidden state that is looked at
    far: float = math.inf  # mean distance above which a text is strange, per dimension
    rate: float = 0.1  # share of loose tokens on calibration prompts
    bet: float = math.inf  # gain of the bet, in nats, above which too many tokens are loose
    stricter: float | None = (
        None  # the knob of the rule that `about` names after one alarm; None closes at once
    )
    about: dict[str, Any] = field(
        default_factory=dict
    )  # how the thresholds were found, and for which "rule"
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
        sure_BR = sure_BR[list(longest)]
        states_BRD = block.hidden[self.layer][list(longest)]
        sums = (self.distance(states_BRD) * sure_BR).sum(-1).tolist()
        numbers = sure_BR.sum(-1).tolist()
        for row, total, number in zip(longest.values(), sums, numbers, strict=True):
            known: Watched = row.memory.setdefault(self.id, Watched())
            was = known.strangest
            known.total = known.total + total
            known.number = known.number + number
            known.strangest = max(known.strangest, known.total / known.number)
            row.statistics.extra["domain_distance"] = known.strangest
            row.statistics.count("domain_far", was <= self.far < known.strangest)
            row.statistics.count("domain_rounds", self._alarms(row) > 0)
        # Another rule's knob has another unit, so the calibrated number means nothing to it.
        known_rule = self.about.get("rule", self.about.get("method")) == rule.id
        after_one = self.stricter if known_rule and self.stricter is not None else CLOSED
        return [(None, after_one, CLOSED)[self._alarms(row)] for row in rows]

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
            row.statistics.count("domain_loose", was <= self.bet < known.highest)

    def save(self, folder: Path) -> None:
        """Write domain.json and domain.safetensors into a gate folder; nothing else of it
        changes.
        """
        save_tensors(folder / TENSORS_FILE, {name: getattr(self, name) for name in TENSORS})
        config = {name: value for name, value in asdict(self).items() if name not in TENSORS}
        # JSON knows no infinity: a threshold that nothing exceeds is left empty.
        value = {name: None if value == math.inf else value for name, value in config.items()}
        write_sealed(folder / CONFIG_FILE, value, fingerprint(folder / TENSORS_FILE))

    @classmethod
    def load(cls, folder: str | Path) -> DomainGuard:
        """Read what `save` wrote."""
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
        finite = {
            name: value
            for name, value in config.items()
            if name not in ("far", "bet") or value is not None
        }
        with refusing(f"{place} is damaged or of another version", "Export the gate again."):
            if {*config, *tensors} != {*hints(cls)}:
                raise ValueError("other entries are expected")
            return dataclass_from(cls, {**tensors, **finite})


def furthest(rows: Sequence[Row], numbers: Sequence[float]) -> dict[int, Row]:
    """Of the paths of every row's tree the first that has most states on the text, by its place in
    the batch.
    """
    best: dict[int, int] = {}
    for place, row in enumerate(rows):
        if id(row) not in best or numbers[place] > numbers[best[id(row)]]:
            best[id(row)] = place
    return {place: rows[place] for place in sorted(best.values())}


@dataclass
class Watched:
    """What is known about one request."""

    # sum of distances; it begins as if some usual states had been seen, so that few cannot alarm
    total: float = PRIOR
    number: float = PRIOR  # states in that sum
    strangest: float = 0.0  # largest mean so far: an alarm stays
    gain: float = 0.0
    highest: float = 0.0  # largest gain so far
    seen: int = 0  # tokens of the answer that the bet knows

    def bet(self, gain: float) -> None:
        """One more round; a bet that lost everything begins anew."""
        self.gain = max(0.0, self.gain + gain)
        self.highest = max(self.highest, self.gain)


def step(loose: int, tokens: int, rate: float) -> float:
    """What a bet on `SUSPECTED` times the rate gains by a round, in nats: a log-likelihood ratio of
    two coins.
    """
    rate = min(max(rate, 1e-3), 0.45)
    other = SUSPECTED * rate
    return loose * math.log(other / rate) + (tokens - loose) * math.log((1 - other) / (1 - rate))


def on_the_text(block: Block) -> Tensor:
    """Rows whose state belongs to the text whatever the rule accepts: up to the first refusal [B, K
    + 1].
    """
    return torch.nn.functional.pad(block.strict.long().cumprod(-1), (1, 0), value=1).bool()


def fit(states_ND: Tensor, directions: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [D], R orthonormal directions [R, D], variances [R + 1], of which all others share the
    last (PPCA).
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


Guard = LoopGuard | DomainGuard


def make_guards(
    names: Sequence[str], gate: Any = None, tokenizer: Any = None
) -> list[Guard | Scope]:
    """Guards and scopes by their ids; `gate` is the folder that "domain" is read from, or a gate
    loaded from it.
    """
    folder = getattr(gate, "folder", gate)
    guards: list[Guard | Scope] = []
    for name in names:
        if name in (PROSE, THINKING):
            guards.append(Scope(name, tokenizer))
        elif name == LoopGuard.id:
            guards.append(LoopGuard())
        elif name != DomainGuard.id:
            known = ", ".join((LoopGuard.id, DomainGuard.id, PROSE, THINKING))
            raise UserError(f"There is no guard '{name}'. Known: {known}.")
        elif folder is None:
            raise UserError(
                "The guard 'domain' compares with a gate's calibration prompts. Name the gate's"
                " folder."
            )
        else:
            guards.append(DomainGuard.load(folder))
    return guards


def check_guards(guards: Sequence[Guard | Scope], gate: Any, target: PreTrainedModel) -> None:
    """Refuse a guard that was fitted with another gate or on other weights; older ones do not say
    the weights.
    """
    for about in [guard.about for guard in guards if isinstance(guard, DomainGuard)]:
        here = {"gate": gate and gate_hash(gate), "target": identify_model(target).fingerprint}
        for part, value in here.items():
            if value is not None and about.get(part) not in (None, value):
                raise UserError(
                    f"The guard 'domain' was fitted with another {part}. Leave it out, or export"
                    " anew."
                )
