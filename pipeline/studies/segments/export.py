"""Both probes, and the token gate beside them, as a folder that decodes with plain transformers.

    python -m pipeline.studies.segments.export     models/segments, models/heads -> models/segments-export

It runs at the certified value of METHOD, or strictly where nothing is certified for it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.certificates.looks import level
from gistgate.files import read_json, write_atomic, write_text
from gistgate.integrations.transformers.flatten import SEGMENTS, write_code
from gistgate.optional.segments.building import GATE
from gistgate.optional.segments.files import load_probes
from pipeline.common.gates import gate_folder
from pipeline.pairs.pair import load_pair
from pipeline.params import read_params
from pipeline.studies.segments.calibrate import REPORTS, operating
from pipeline.studies.segments.methods import METHODS
from pipeline.studies.segments.params import SegmentParams, read_segment_params
from pipeline.studies.segments.train import FOLDER

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
