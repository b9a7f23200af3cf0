"""Tables of docs/performance.md come from the result of benchmarks.speed and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.speed_page import PAGE, RESULT, parts_of
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.report.markers import part

RATIO = {"mean": 1.5, "low": 1.25, "high": 1.75}


def entry(rate: float, block: int = 0, n: int = 100, **ratios: dict[str, float]) -> dict[str, Any]:
    return {"tokens_per_second": rate, "block": block, "n": n, "occasions": 2, **ratios}


def result() -> dict[str, Any]:
    own = {"vs_generate": RATIO, "vs_assisted": RATIO, "vs_plain-eager": RATIO, "vs_strict-compiled": RATIO}
    single = {
        "strict-eager": entry(20.4, 4, **own),
        "plain-eager": entry(10.0, **own),
        "strict-compiled": entry(30.0, 4, **own),
        "assisted": entry(5.0, vs_generate=RATIO),
        "generate": entry(4.0),
        "generate-static-compiled": entry(6.0, vs_generate=RATIO),
    }
    wide = {name: entry(50.0, n=6, vs_batch_1=RATIO) for name in ("strict-eager", "generate-static-compiled")}
    return {"batches": {"16": {"contenders": wide}, "1": {"contenders": single}}}


def test_the_page_shows_the_published_result():
    page = PAGE.read_text()
    for name, content in parts_of(read_json(RESULT)).items():
        assert part(page, name) == content


def test_each_engine_has_a_table_with_the_slowest_first():
    about, eager, compiled = parts_of(result())["speed"].split("\n\n")
    assert about == "n = 100 prompts, on 2 occasions."
    ratio = "1.50 [1.25, 1.75]"
    assert eager.splitlines()[2:] == [
        "| transformers `generate` | – | 4 |  |  |  |  |",
        f"| the same, static cache, compiled | – | 6 | {ratio} |  |  |  |",
        f"| assisted generation | – | 5 | {ratio} |  |  |  |",
        f"| plain, eager | – | 10 | {ratio} | {ratio} | {ratio} |  |",
        f"| strict, eager | 4 | 20 | {ratio} | {ratio} | {ratio} |  |",
    ]
    assert compiled.splitlines()[2:] == [f"| strict, compiled | 4 | 30 | {ratio} | {ratio} |  | {ratio} |"]


def test_a_result_without_single_requests_is_refused():
    with pytest.raises(UserError, match="no single requests"):
        parts_of({"batches": {"16": result()["batches"]["16"]}})


def test_batches_say_how_few_they_are():
    lines = parts_of(result())["batches"].splitlines()
    assert lines[0] == "| decoding | batch 1 | batch 16 | 16 to its rows |"
    assert lines[2:] == [
        "| the same, static cache, compiled | 6 | 50 | 1.50 [1.25, 1.75] (n = 6) |",
        "| strict, eager | 20 | 50 | 1.50 [1.25, 1.75] (n = 6) |",
    ]
