"""The tables of block lengths come from the results of benchmarks.block and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.block_page import PAGE, SWEEPS, methods_of, sweep
from gistgate.errors import UserError
from gistgate.files import write_json
from pipeline.report.markers import part


@pytest.mark.parametrize("name", SWEEPS)
def test_the_page_shows_the_published_sweep(name: str):
    assert part(PAGE.read_text(), name) == sweep(methods_of(SWEEPS[name]))


def test_the_fastest_k_is_bold_and_the_proposed_one_stands_last():
    methods = {
        "strict": {"tokens_per_second": {"10": 8.0, "2": 10.4}, "fastest": 2, "proposed": 2},
        "gate": {"tokens_per_second": {"10": 21.0, "2": 19.6}, "fastest": 10, "proposed": 2},
    }
    head, _, *rows = sweep(methods).splitlines()
    assert head == "| method | K = 2 | K = 10 | proposed |"
    assert rows == ["| gate | 20 | **21** | 2 |", "| strict | **10** | 8 | 2 |"]


def test_a_table_refuses_the_result_of_another_engine(tmp_path: Path):
    write_json(tmp_path / "block-cpu.json", {"engine": "compiled", "methods": {}})
    with pytest.raises(
        UserError, match="is about the engine 'compiled'. Run `python -m benchmarks.block --engine eager`"
    ):
        methods_of("eager", tmp_path)
