"""The ways of judging a segment that the study compares: the probes, and controls without probes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification

from gistgate.certificates.judged import level
from gistgate.core.decoder import Decoder
from gistgate.core.files import read_json, write_atomic, write_text
from gistgate.core.gate import Gate
from gistgate.core.reader import num_ids
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.export.write import SEGMENTS, write_code
from gistgate.segments.build import GATE, segment_decoder
from gistgate.segments.judging import (
    Constant,
    MeanLogprob,
    Opinion,
    Reward,
    Score,
    SegmentDraw,
    SegmentRule,
    Semantic,
    same_numbers,
)
from gistgate.segments.judging import Pair as OwnStep
from gistgate.segments.probes import Probes, load_probes
from gistgate.segments.writing import Boundaries, SegmentWriter
from pipeline.decode import gate_folder
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import SegmentParams, read_params, read_segment_params
from pipeline.run import run
from pipeline.segments.collect import load
from pipeline.segments.collect.calibrate import REPORTS, operating
from pipeline.segments.train import FOLDER

GRID = (0.99, 0.97, 0.95, 0.85)
COSTLY = 32
"""Prompts for opinions that read the whole text again for each segment."""


@dataclass(frozen=True)
class OpinionParts:
    """What opinions are made of."""

    pair: Pair
    probes: Probes
    gate: Gate
    own: SegmentParams


@dataclass(frozen=True)
class Method:
    """An opinion on segments and the rule that uses it, with one value to set."""

    opinion: Callable[[OpinionParts, float], Opinion]
    rule: Callable[[float], SegmentRule] = field(default=lambda value: SegmentRule(threshold=value))
    grid: tuple[float, ...] = GRID
    """Values from strict to loose; a single one where nothing is calibrated."""
    certified: bool = True
    """False for a point that is measured as it is."""
    gated: bool = False
    """Whether the token gate speaks inside refused segments."""
    replacement: str = "token"
    """What follows a refused segment."""
    prompts: int = 150
    """Development prompts on which a point is measured that nobody certifies."""
    like: tuple[str, str] | None = None
    """Method and entry of its compared point that is the value here, such as its share of passed segments; None: the
    grid's."""

    def decoder(self, parts: OpinionParts, value: float) -> Decoder:
        """The decoder at this value."""
        pair, probes, own = parts.pair, parts.probes, parts.own
        return segment_decoder(
            pair.target, pair.draft_model, pair.tokenizer, self.opinion(parts, value), self.rule(value),
            style=probes.style, limit=probes.limit, replacement=self.replacement, vocabulary=num_ids(pair.tokenizer),
            token_gate=parts.gate if self.gated else None, risk=own.risk,
        )  # fmt: skip


def target_probe(parts: OpinionParts, _value: float) -> Opinion:
    return Semantic(parts.probes.target)


def both_probes(parts: OpinionParts, _value: float) -> Opinion:
    return Semantic(parts.probes.target, parts.probes.draft)


def logprob(_parts: OpinionParts, _value: float) -> Opinion:
    return MeanLogprob()


def at_rate(_parts: OpinionParts, value: float) -> Opinion:
    return Constant(value)


def score(parts: OpinionParts, _value: float) -> Opinion:
    return Score(parts.pair.target, parts.pair.tokenizer)


def own_step(parts: OpinionParts, _value: float) -> Opinion:
    """The judge of the embedded pair's steps are their numbers: it knows more than a model asked yes or no."""
    pair, ends = parts.pair, eos_ids(parts.pair.target, parts.pair.tokenizer)
    boundaries = Boundaries(pair.tokenizer, parts.probes.style, ends)
    writer = SegmentWriter(pair.target, pair.tokenizer, boundaries, parts.probes.limit, eos_ids=ends)
    return OwnStep(writer, same_numbers)


def reward(parts: OpinionParts, _value: float) -> Opinion:
    if parts.own.reward_model is None:
        raise UserError(
            "The control prm needs a reward model. Name one as reward_model in pipeline/studies/segments/params.yaml."
        )
    tokenizer, model = load(AutoModelForSequenceClassification, parts.own.reward_model)
    return Reward(model, tokenizer, parts.pair.tokenizer)


def drawn(_value: float) -> SegmentRule:
    return SegmentDraw()


def published(_value: float) -> SegmentRule:
    return SegmentDraw(partial=False, shortcut="top2")


METHODS = {
    "probe-gate": Method(target_probe, gated=True),
    "probe": Method(target_probe),
    "logprob": Method(logprob, grid=(0.7,)),
    "gate-only": Method(at_rate, lambda _: SegmentRule(threshold=1.0), (0.0,), certified=False, gated=True),
    "strict": Method(at_rate, lambda _: SegmentRule(threshold=2.0), (1.0,), certified=False),
    "ratio": Method(both_probes, drawn, (1.0,), certified=False),
    "ratio-top2": Method(both_probes, lambda _: SegmentDraw(shortcut="top2"), (1.0,), certified=False),
    "published": Method(both_probes, published, (1.0,), certified=False, replacement="segment"),
    "score": Method(score, grid=(7 / 9,), certified=False, prompts=COSTLY),
    "pair": Method(own_step, grid=(0.5,), certified=False, prompts=COSTLY),
    "prm": Method(reward, grid=(0.7,), certified=False),
    "constant": Method(at_rate, drawn, (), certified=False, like=("probe", "passed")),
    "probe-whole": Method(
        target_probe,
        lambda value: SegmentRule(threshold=value, partial=False),
        (),
        certified=False,
        like=("probe", "value"),
    ),
    "probe-replaced": Method(target_probe, grid=(), certified=False, replacement="segment", like=("probe", "value")),
}
"""By name. `gate-only` and `strict` refuse every segment, so that only the boundaries differ from the token rules;
`score` and `prm` run at the published thresholds; `published` is SemanticSpec as released: ratio, shortcut, nothing of
a refused segment kept, then the target's own. `constant` passes as many segments as the probe does."""


def methods_of(own: SegmentParams) -> dict[str, Method]:
    """Those that can run here: prm only with a reward model."""
    return {name: method for name, method in METHODS.items() if name != "prm" or own.reward_model}


# ---- Both probes, and the token gate beside them, as a folder that decodes with plain transformers.


# isort: split

EXPORT = Path("models/segments-export")
METHOD = "probe-gate"
"""The method that an export runs at, chosen before anything was measured: the probe with the token gate. Another one in
its place, where nothing is certified for it, would be a second test at the full error."""


def main() -> None:
    params, own = read_params(), read_segment_params()
    pair = load_pair(params)
    confidence = level(params.calibrate.confidence, params.calibrate.looks)
    certificate = certificate_of(own, confidence, METHOD, read_json(REPORTS / f"{METHOD}.json"))
    probes = load_probes(FOLDER, pair.target, pair.draft_model)
    notes = read_json(FOLDER / "config.json")["notes"]

    def fill(place: Path) -> None:
        kept = type(probes)(probes.target, probes.draft, probes.style, probes.limit, certificate)
        kept.save(place, pair.target, pair.draft_model, **notes)
        shutil.copytree(gate_folder(own.head), place / GATE)
        write_text(place / "README.md", card(certificate))
        write_code(place, SEGMENTS)

    write_atomic(EXPORT, fill)
    print(f"{EXPORT}: {certificate.get('method', 'nothing certified, decodes strictly')}")


def certificate_of(own: SegmentParams, confidence: float, name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What the folder runs at, from the report of a method; empty where nothing is certified."""
    if found["certified"] is None:
        return {}
    settings = {"opinion": "probe", "risk": own.risk if METHODS[name].gated else None}
    bound = operating(found)["bound"]
    return {
        "method": name,
        "rule": METHODS[name].rule(found["certified"]).id,
        "settings": {"threshold": found["certified"], "replacement": METHODS[name].replacement, **settings},
        "budget": found["budget"],
        "confidence": confidence,
        "n": bound["n"],
        "bound": bound["value"],
    }


def card(certificate: dict[str, Any]) -> str:
    """The text of README.md."""
    proof = (
        f"At most {100 * certificate['budget']:g} % of the prompts are lost against strict verification, with "
        f"confidence {certificate['confidence']:g} ({certificate['n']} prompts, bound {certificate['bound']:.4f})."
        if certificate
        else "Nothing is certified: it decodes strictly until settings are named."
    )
    return f"""---
library_name: transformers
tags: [speculative-decoding, custom_generate]
---
# Segment probes

Probes of a target and a draft model: whole segments of the draft stay where the target finds their meaning probable.
{proof} The token gate for refused segments lies in `{GATE}/`.

```python
parts = {{"draft_model": DRAFT, "segments": FOLDER, "tokenizer": TOKENIZER}}
model.generate(**inputs, custom_generate=FOLDER, trust_remote_code=True, **parts)
```
"""


if __name__ == "__main__":
    run(main)
