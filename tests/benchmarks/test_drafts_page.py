"""Tables of docs/drafts.md come from result files and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bench import RESULTS
from benchmarks.drafts_page import NOTHING, content_of
from gistgate.files import write_json
from pipeline.report.markers import part
from pipeline.report.publish import PART

ROOT = Path(__file__).parents[2]
RATIO = {"mean": 1.5, "low": 1.25, "high": 1.75}
MACHINE = {"machine": {"threads": 2, "device": "cpu"}}


def drafting() -> dict[str, Any]:
    parts = {"draft": 0.5, "verify": 0.4, "accept": 0.06, "rest": 0.04}
    plain = {"block": 0, "n": 52, "loops": 8, "tokens_per_second": 10.0}
    strict = {**plain, "block": 4, "tokens_per_second": 15.25, "vs_plain": RATIO, "vs_assisted": RATIO}
    more = {"tau": 3.21, "limit": 1.66, "parts": parts}
    contenders = {"plain": plain, "strict: whole": strict | more, "strict: texts": strict | more | {"vs_before": RATIO}}
    about = {"pair": "real", "batch": 1, "max_new_tokens": 64, "kind": "int4", "left_out": {"csd": "it is not here."}}
    return {**about, "contenders": contenders, **MACHINE}


def test_the_page_shows_the_published_results():
    assert part((ROOT / "docs/drafts.md").read_text(), PART) == content_of(RESULTS)


def test_every_step_has_a_line(tmp_path: Path):
    assert content_of(tmp_path) == NOTHING
    write_json(tmp_path / "drafting-cpu.json", drafting())
    lines = content_of(tmp_path).splitlines()
    assert "Pair `real`, batch 1, up to 64 new tokens, 2 threads of cpu" in lines[0]
    assert "| plain | – | 52 | 10.0 |  |  |  |  |  |  |" in lines
    ratio = "1.50 [1.25, 1.75]"
    assert f"| strict: whole | 4 | 52 | 15.2 | {ratio} | {ratio} |  | 3.21 | 1.66 | 4.0 |" in lines
    assert f"| strict: texts | 4 | 52 | 15.2 | {ratio} | {ratio} | {ratio} | 3.21 | 1.66 | 4.0 |" in lines
    assert lines[-1] == "Left out: csd (it is not here)."


def test_overlap_has_a_table_of_its_own(tmp_path: Path):
    seconds = {"serial": 0.5, "both": 0.4, "draft": 0.2}
    found = {"pair": "real", "block": 4, "n": 30, "prompts": 8, "share_kept": 0.25, "most": RATIO, "strict": RATIO}
    write_json(tmp_path / "overlap-cpu.json", {**found, "seconds": seconds, **MACHINE})
    row = "| 500.0 ms | 400.0 ms | 200.0 ms | 25.0 | 1.50 [1.25, 1.75] | 1.50 [1.25, 1.75] |"
    assert content_of(tmp_path).endswith(row)
