"""The headline gate as a folder that decodes with plain transformers, registered as a model:
`python -m pipeline.stages.export` writes models/export with the certificate and, unless
`prompts.guard` is 0, a domain guard. `export segments` writes the probes of segments to
models/segments-export on demand. Equal inputs give equal bytes.
"""

import math
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.domain import DomainGuard, fit, on_the_text
from gistgate.core.files import read_json, write_atomic, write_text
from gistgate.core.identity import gate_hash, identify_model
from gistgate.core.request import Row, Statistics, total
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import certificate_from
from gistgate.export.write import SEGMENTS as SEGMENT_CODE
from gistgate.export.write import write_code
from gistgate.gate import Gate
from gistgate.segments.probes import GATE, load_probes
from pipeline.decode import decode_split, load_gate, make_decoder
from pipeline.operating import Operating, at_budget, operating_point
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.paths import EXPORT, HEADS, SEGMENTS, SEGMENTS_EXPORT, calibration_file
from pipeline.report.tables import card, evaluations, markdown_page
from pipeline.run import run
from pipeline.task import read_prompts
from pipeline.tracking import register_gate

ALARMS = 0.05
"""Share of guard prompts that may be alarmed although nothing is wrong, half of it by either
statistic.
"""
FEWEST = 2 * math.ceil(2 / ALARMS - 1)
"""Guard prompts whose half has a finite quantile for each threshold."""
LAYER = "post"
STRICTLY = "nothing certified, decodes strictly"
MOST_STATES = 40_000  # states that are kept for the covariance, in rows


def main(part: Annotated[str, typer.Argument()] = "gate") -> None:
    export = export_segments if part == "segments" else export_gate
    export(read_params())


def export_gate(params: Params) -> None:
    """The headline gate with the certificate of its method, the first of several that ask it."""
    head = params.train.headline_head
    methods = params.methods.items()
    names = [name for name, method in methods if method.head == head and method.knob]
    if not names:
        raise UserError(
            f"No method of params.yaml asks the head '{head}'. Add one, or change"
            " 'train.headline_head'."
        )
    name = names[0]
    report = read_json(calibration_file(name))
    gate = Gate.load(HEADS / head)
    certificate = certificate_from(report["proof"])
    if certificate.scope["gate"] != gate_hash(gate):
        raise UserError(
            f"'{name}' was calibrated with other weights than the gate's. Run `calibrate` again."
        )
    guard = guard_for(params, name)
    text = card(gate.config, certificate, report, evaluations(name))

    def write(folder: Path) -> None:
        gate.save(folder, card=text)
        certificate.save(folder)
        if guard:
            guard.save(folder)
        write_code(folder)

    write_atomic(EXPORT, write)
    metrics = {}
    sentences = []
    for point in certificate.certified:
        knob = point.settings[str(certificate.knob)]
        tau = point.mean_accepted_length
        metrics[f"budget_{point.budget:g}"] = {"bound": point.bound, "knob": knob, "tau": tau}
        sentences.append(f"{point.budget:.0%} at {knob:g}")
    version = register_gate(params, EXPORT, metrics)
    if version:
        sentences = ["; ".join(sentences) or STRICTLY, f"registered as version {version}"]
    print(f"{EXPORT}: {'; '.join(sentences) or STRICTLY}")


def export_segments(params: Params) -> None:
    """Both probes at what was certified for the method `segments` at the headline budget, else
    strict.
    """
    report = read_json(calibration_file("segments"))
    method = params.method("segments")
    entry = at_budget(report["budgets"], params.headline_budget)
    certificate: dict[str, Any] = {}
    if entry and entry["certified"]:
        certificate = {
            "method": "segments",
            "rule": method.rule,
            "settings": {**entry["fixed"], method.knob: entry["knob"]},
            "budget": params.headline_budget,
            "confidence": report["confidence"],
            "n": entry["n"],
            "bound": entry["bound"],
        }
    pair = load_pair(params)
    probes = replace(load_probes(SEGMENTS, pair.target, pair.draft_model), certificate=certificate)
    notes = read_json(SEGMENTS / "config.json")["notes"]
    text = markdown_page("segments", certificate=certificate, gate=GATE)

    def write(folder: Path) -> None:
        probes.save(folder, pair.target, pair.draft_model, **notes)
        shutil.copytree(SEGMENTS / GATE, folder / GATE)
        write_text(folder / "README.md", text)
        write_code(folder, SEGMENT_CODE)

    write_atomic(SEGMENTS_EXPORT, write)
    print(f"{SEGMENTS_EXPORT}: {certificate.get('method', STRICTLY)}")


def guard_for(params: Params, name: str) -> DomainGuard | None:
    """The domain guard of the method at its certified setting; where there is none, it says why."""
    if not params.prompts.guard:
        return None
    point = operating_point(params, name)
    if not point.certified:
        print(
            f"No domain guard: '{name}' has no certified setting, so it runs strictly and needs"
            " none."
        )
        return None
    prompts = read_prompts("guard")
    if len(prompts) < FEWEST:
        print(
            f"No domain guard: {len(prompts)} guard prompts do not say what is usual. Raise"
            f" prompts.guard to {FEWEST} or more."
        )
        return None
    pair = load_pair(params)
    return fit_domain(params, pair, load_gate(point, pair), point, prompts)


@dataclass
class StateRecorder:
    """An observer that keeps the target's states along the texts, up to a limit."""

    layers: Collection[str] = (LAYER,)
    wants_q: bool = False
    states: list[Tensor] = field(default_factory=list)

    def __call__(
        self,
        block: Block,
        acceptance: Acceptance,
        rows: list[Row],
    ) -> None:
        if sum(map(len, self.states)) < MOST_STATES:
            self.states.append(block.hidden[LAYER][on_the_text(block)].float().cpu())


def fit_domain(
    params: Params,
    pair: Pair,
    gate: Gate | None,
    point: Operating,
    prompts: Sequence[dict[str, Any]],
) -> DomainGuard:
    """A guard for the setting `point`, from FEWEST or more prompts of the split `guard`, since
    calibration prompts only certify: one half gives the mean and the covariance of the target's
    states, the other half the thresholds.
    """

    def decode(half: int, **parts: Any) -> list[Statistics]:
        decoder = make_decoder(pair, point.choice, gate, **parts)
        answers = decode_split(decoder, pair, prompts[half::2], params, f"domain, half {half + 1}")
        return [answer.statistics for answer in answers]

    recorder = StateRecorder()
    counted = total(decode(0, observer=recorder))
    rate = counted.loose / counted.tokens
    open_guard = DomainGuard(*fit(torch.cat(recorder.states)), layer=LAYER, rate=rate)
    usual = [statistics.extra for statistics in decode(1, guards=[open_guard])]
    return replace(
        open_guard,
        far=quantile([extra["domain_distance"] for extra in usual], 1 - ALARMS / 2),
        bet=quantile([extra["domain_bet"] for extra in usual], 1 - ALARMS / 2),
        stricter=stricter_setting(point),
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
    """The value that at least `share` of new ones stay below, on average (split conformal
    prediction).
    """
    place = math.ceil((len(values) + 1) * share)
    return sorted(values)[place - 1] if place <= len(values) else math.inf


def stricter_setting(point: Operating) -> Any:
    """The next stricter value that calibration tested; None where `point` is the strictest."""
    settings = read_json(calibration_file(point.method))["settings"]  # from strict to loose
    tested = [setting["knob"] for setting in settings]
    place = tested.index(point.knob)
    return tested[place - 1] if place else None


if __name__ == "__main__":
    run(main)
