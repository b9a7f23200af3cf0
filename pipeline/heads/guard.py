"""Fit the guard that notices prompts unlike those of the task: `models/domain`, which the stage `export` adds.

It is fitted on the split `guard`, because calibration prompts certify and do nothing else. One half of it gives the
mean and the covariance of the target's states, the other half the thresholds of the alarms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.files import read_json, write_atomic, write_json
from gistgate.core.gate import Gate
from gistgate.core.guards import CONFIG_FILE, DomainGuard, fit, on_the_text
from gistgate.core.identity import gate_hash, identify_model
from gistgate.core.request import Row, Statistics, total
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import Task
from gistgate.rules import RULES
from pipeline.decode import Operating, calibration_file, make_decoder, run_split
from pipeline.pair.pair import Pair
from pipeline.params import Params
from pipeline.paths import DOMAIN

ALARMS = 0.05
"""Guard prompts that may be alarmed although nothing is wrong, as a share; both statistics take half of it."""
FEWEST = 2 * math.ceil(2 / ALARMS - 1)
"""Guard prompts from which on half of them have a finite quantile for each of the two thresholds."""
LAYER = "post"
MOST_STATES = 40_000
"""States that are kept for the covariance, in rows."""


class NothingToGuardError(UserError):
    """There is no loose setting to guard, or too few prompts say what is usual: a run may go on without a guard."""


@dataclass
class StateRecorder:
    """An observer that keeps the target's states along the texts, up to a limit."""

    layers: Collection[str] = (LAYER,)
    wants_q: bool = False
    states: list[Tensor] = field(default_factory=list)
    number: int = 0

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        if self.number < MOST_STATES:
            self.states.append(block.hidden[LAYER][on_the_text(block)].float().cpu())
            self.number += len(self.states[-1])


def fit_domain(
    params: Params, pair: Pair, task: Task, gate: Gate | None, point: Operating, prompts: Sequence[dict[str, Any]]
) -> DomainGuard:
    """A guard for the setting `point`, from these prompts of the split `guard`.

    Raises:
        NothingToGuardError: so few prompts that no threshold could be exceeded.
    """
    if len(prompts) < FEWEST:
        raise NothingToGuardError(
            f"{len(prompts)} guard prompts do not say what is usual. Raise prompts.guard to {FEWEST} or more."
        )

    def decode(half: int, **parts: Any) -> list[Statistics]:
        decoder = make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate, **parts)
        outcomes = run_split(decoder, task, pair, prompts[half::2], params, f"domain, half {half + 1}")
        return [outcome.statistics for outcome in outcomes]

    recorder = StateRecorder()
    counted = total(decode(0, observer=recorder))
    open_guard = DomainGuard(*fit(torch.cat(recorder.states)), layer=LAYER, rate=counted.loose / counted.tokens)
    usual = [one.extra for one in decode(1, guards=[open_guard])]
    return replace(
        open_guard,
        far=quantile([extra["domain_distance"] for extra in usual], 1 - ALARMS / 2),
        bet=quantile([extra["domain_bet"] for extra in usual], 1 - ALARMS / 2),
        stricter=stricter_setting(params, point),
        about={
            "prompts": len(prompts),
            "alarms": ALARMS,
            "method": point.method,
            "rule": point.rule,
            "knob": point.knob,
            "gate": gate and gate_hash(gate),
            "target": identify_model(pair.target).fingerprint,
        },
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that at least `share` of new ones stay below, on average (split conformal prediction)."""
    place = math.ceil((len(values) + 1) * share)
    return sorted(values)[place - 1] if place <= len(values) else math.inf


def stricter_setting(params: Params, point: Operating) -> float | None:
    """The next stricter value that calibration tested; None where `point` is the strictest."""
    rule = RULES[point.rule]
    if point.knob is None or rule.knob is None:
        return None
    tested = [setting["knob"] for setting in read_json(calibration_file(params, point.method))["settings"]]
    up = rule.looser == "up"
    below = [value for value in tested if (value < point.knob if up else value > point.knob)]
    return (max(below) if up else min(below)) if below else None


def save(guard: DomainGuard | None, why: str = "", folder: Path = DOMAIN) -> None:
    """Write the folder whole: the guard, or the reason why there is none."""

    def write(part: Path) -> None:
        part.mkdir(parents=True)
        if guard is None:
            write_json(part / "none.json", {"reason": why})
        else:
            guard.save(part)

    write_atomic(folder, write)


def saved_for(gate: Gate, folder: Path = DOMAIN) -> DomainGuard | None:
    """The guard that was fitted for this gate; None where there is none."""
    if not (folder / CONFIG_FILE).is_file():
        return None
    guard = DomainGuard.load(folder)
    return guard if guard.about.get("gate") == gate_hash(gate) else None
