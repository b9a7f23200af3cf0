"""The table of docs/reliability.md shows what benchmarks/results/reliability.json holds."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_shows_the_counted_figures():
    found = json.loads((ROOT / "benchmarks/results/reliability.json").read_text())
    page = (ROOT / "docs/reliability.md").read_text()
    assert f"{found['damaged_cases']} cases, {found['damaged_unclear']} unclear" in page
    assert f"{found['kills']} disturbances up to the stage `{found['kills_target']}`" in page
    assert f"{found['kills_lost']} lost" in page
    assert (
        f"{found['soak_requests']:,} requests: {found['soak_growth_mib']} MiB of growth after the first fifth, "
        f"{found['soak_differing']} of the last 100 answers differ" in page
    )
