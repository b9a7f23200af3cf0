"""Figures of the documentation have a file in the repository that holds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import sources

PAGES = sorted(page for page in (sources.ROOT / "docs").glob("*.md") if page.name != "log.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_figure_of_a_table_and_every_interval_has_a_source(page: Path):
    claims = list(sources.claims(page.read_text()))
    assert not [claim for files, claim in claims if not sources.has_source(files, claim, page.name)]


def test_a_figure_without_a_source_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    rows = {"x": {"tau": 4.126, "low": 0.0315, "n": 200}, "y": {"tau": 5.0, "low": 0.5}}
    (tmp_path / "a.json").write_text(json.dumps({**rows, "seconds": [9999.5] * sources.ENTRY}))
    (tmp_path / "test_it.py").write_text("docs/page.md")
    right = "<!-- source: a.json -->\n| x | 4.13 | 3.15 % | 200 |\nIt is 4.13 [0.03,\n4.13] long."
    for page, found in {
        right: [True, True],
        right.replace("| x | 4.13", "| x | 4.12"): [False, True],
        right.replace("4.13] long", "5.00] long"): [True, False],
        right.partition("\n")[2]: [False, False],
        "<!-- source: a.json -->\n| 4.13 | 5.0 |": [False],
        "<!-- source: a.json cells -->\n| 4.13 | 5.0 |": [True],
        "<!-- source: a.json cells -->\n| 4.13 | 5.1 |": [False],
        "<!-- source: test_it.py -->\n| 7.77 |": [True],
        "<!-- source: settings -->\n| 7.77 |": [True],
    }.items():
        sources.entries.cache_clear()
        assert [sources.has_source(files, claim, "page.md") for files, claim in sources.claims(page)] == found
    assert not sources.has_source(["test_it.py"], "7.77", "other.md")
    assert list(sources.claims("arXiv 2504.07891\n| 12 | `0.5` | [a](b-1.5.json) |")) == []
