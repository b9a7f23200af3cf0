"""Tables of docs/drafts.md come from result files and from nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bench import RESULTS
from benchmarks.drafts_page import NOTHING, SHARES, content_of, filled
from gistgate.files import write_json
from pipeline.report.markers import part
from pipeline.report.publish import PART

ROOT = Path(__file__).parents[2]
RATIO = {"mean": 1.5, "low": 1.25, "high": 1.75}
MACHINE = {"machine": {"threads": 2, "device": "cpu"}}


def drafting() -> dict[str, Any]:
    parts = {"draft": 0.5, "verify": 0.4, "accept": 0.06, "rest": 0.04}
    plain = {"block": 0, "n": 52, "loops": 8, "tokens_per_second": 10.0}
    strict = {**plain, "block": 4, "tokens_per_second": 15.25, "vs_plain": RATIO}
    strict |= {"vs_generate": RATIO, "vs_assisted": RATIO}
    more = {"tau": 3.21, "limit": 1.66, "parts": parts}
    contenders = {"plain": plain, "strict: whole": strict | more, "strict: texts": strict | more | {"vs_before": RATIO}}
    about = {"pair": "real", "batch": 1, "max_new_tokens": 64, "kind": "int4", "left_out": {"csd": "it is not here."}}
    tried = [{"size": size, "coverage": 0.975, "tau": 4.5, "draft": 0.125, "strict": 2.25} for size in (16384, 32768)]
    subset = {"size": 32768, "coverage": 0.975, "tried": tried}
    return {**about, "contenders": contenders, "subset": subset, **MACHINE}


def test_the_page_shows_the_published_results():
    assert part((ROOT / "docs/drafts.md").read_text(), PART) == content_of(RESULTS)


def test_every_step_has_a_line(tmp_path: Path):
    assert content_of(tmp_path) == NOTHING
    write_json(tmp_path / "drafting-cpu.json", drafting())
    lines = content_of(tmp_path).splitlines()
    assert "Pair `real`, batch 1, up to 64 new tokens, 2 threads of cpu" in lines[0]
    assert "| plain | – | 52 | 10.0 |  |  |  |  |  |  |  |" in lines
    ratio = "1.50 [1.25, 1.75]"
    assert f"| strict: whole | 4 | 52 | 15.2 | {ratio} | {ratio} | {ratio} |  | 3.21 | 1.66 | 4.0 |" in lines
    assert f"| strict: texts | 4 | 52 | 15.2 | {ratio} | {ratio} | {ratio} | {ratio} | 3.21 | 1.66 | 4.0 |" in lines
    named = [line.split(" | ")[0] for line in lines if line.startswith(("| plain", "| strict"))]
    assert named == ["| plain", "| strict: whole", "| strict: texts"]  # files hold them by the alphabet
    assert "| 32,768 | 97.5 | 4.50 | 0.12 | 2.25 |" in lines
    assert lines[-1] == "Left out: csd (it is not here)."
    write_json(tmp_path / "drafting-cpu.json", {**drafting(), "subset": None})
    assert "32,768" not in content_of(tmp_path)


def test_columns_that_say_nothing_are_left_out():
    assert filled(("a", "b", "c"), [["1", "", "2"], ["3", "", ""]]) == (["a", "c"], [["1", "2"], ["3", ""]])


def test_overlap_has_a_table_of_its_own(tmp_path: Path):
    seconds = {"serial": 0.5, "both": 0.4, "draft": 0.2}
    found = {"pair": "real", "block": 4, "n": 30, "prompts": 8, "share_kept": 0.25, "most": RATIO, "strict": RATIO}
    write_json(tmp_path / "overlap-cpu.json", {**found, "seconds": seconds, **MACHINE})
    row = "| 500.0 ms | 400.0 ms | 200.0 ms | 25.0 | 1.50 [1.25, 1.75] | 1.50 [1.25, 1.75] |"
    assert content_of(tmp_path).endswith(row)


def test_editing_and_rounds_have_tables_of_their_own(tmp_path: Path):
    entry = {"block": 4, "n": 20, "tokens_per_second": 12.5, "tau": 3.5, "vs_plain": RATIO}
    about = {"pair": "real", "functions": 6, "max_new_tokens": 256, "tried": [4, 8]}
    contenders = {name: {**entry, "vs_model": RATIO} for name in ("hybrid", "model", "plain", "suffix")}
    write_json(tmp_path / "editing-cpu.json", {**about, "contenders": contenders, **MACHINE})
    assert content_of(tmp_path).endswith("| suffix | 4 | 20 | 12.5 | 1.50 [1.25, 1.75] | 1.50 [1.25, 1.75] | 3.50 |")
    del contenders["hybrid"]
    left_out = {"hybrid": "it does not run."}
    write_json(tmp_path / "editing-cpu.json", {**about, "left_out": left_out, "contenders": contenders, **MACHINE})
    assert content_of(tmp_path).endswith("Left out: hybrid (it does not run).")
    assert "| hybrid |" not in content_of(tmp_path)
    shares = {name: {"mean": share} for name, share in zip(SHARES, (0.5, 0.3, 0.1, 0.1, 0.02), strict=True)}
    profiled = {"strict": {"block": 4, "n": 2, "tau": 3.25, "shares": shares}}
    faster = {"strict": {**profiled["strict"], "vs_eager": RATIO}}
    engines = {"eager": {"8": profiled, "1": profiled}, "compiled": {"1": faster}}
    write_json(tmp_path / "rounds-cpu.json", {"pair": "real", "max_new_tokens": 64, "engines": engines} | MACHINE)
    lines = content_of(tmp_path).splitlines()
    cells = "strict | 4 | 2 | 3.25 | 50.0 | 30.0 | 10.0 | 10.0 | 2.0"
    assert lines[-3] == f"| compiled, 1, {cells} | 1.50 [1.25, 1.75] |"
    assert lines[-2:] == [f"| eager, {number}, {cells} |  |" for number in (1, 8)]
