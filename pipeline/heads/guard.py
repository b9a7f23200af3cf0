"""Fit the guard that notices prompts unlike those of the task; the stage `export` adds it to the gate.

It is fitted on the split `guard`, because calibration prompts certify and do nothing else. One half of it gives the
mean and the covariance of the target's states, the other half the thresholds of the alarms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.files import read_json
from gistgate.core.gate import Gate
from gistgate.core.guards import DomainGuard, fit, on_the_text
from gistgate.core.identity import gate_hash, identify_model
from gistgate.core.request import Row, Statistics, total
from gistgate.lm_eval.task import Task
from gistgate.rules import RULES
from pipeline.decode import Operating, calibration_file, make_decoder, run_split
from pipeline.pair.pair import Pair
from pipeline.params import Params

ALARMS = 0.05  # share of guard prompts that may be alarmed although nothing is wrong; both statistics take half of it
FEWEST = 2 * math.ceil(2 / ALARMS - 1)
"""Guard prompts from which on half of them have a finite quantile for each of the two thresholds."""
LAYER = "post"
MOST_STATES = 40_000  # states that are kept for the covariance, in rows


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
    """A guard for the setting `point`, from FEWEST or more prompts of the split `guard`."""

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
    if point.knob is None:
        return None
    tested = [setting["knob"] for setting in read_json(calibration_file(params, point.method))["settings"]]
    up = RULES[point.rule].looser == "up"
    below = [value for value in tested if (value < point.knob if up else value > point.knob)]
    return (max(below) if up else min(below)) if below else None
