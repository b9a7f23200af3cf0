"""Decimals of pages are rewritten from their places, and everything else on the page stays."""

from __future__ import annotations

import json

import pytest

from tests import prose, renew, sources

PAGE = "At 3.5 nats (`1.25` in code) the rate is 12.5 %, of 0.42 before.\n\n| a 0.42 |\n"
LIST = 'page.md:\n- "3.5 = set"\n- "12.5 = result.json > rate"\n- "0.42 = result.json > sizes > 1"\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / renew.LIST).write_text(LIST)
    (tmp_path / "page.md").write_text(PAGE)
    (tmp_path / "result.json").write_text(json.dumps({"rate": 0.1349, "sizes": [1, -0.3]}))
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    for kept in (prose.listed, prose.content):
        kept.cache_clear()
    yield tmp_path
    for kept in (prose.listed, prose.content):
        kept.cache_clear()


def test_figures_come_from_their_places_in_their_unit(project):
    renew.main(["page.md"])
    text = "At 3.5 nats (`1.25` in code) the rate is 13.5 %, of 0.30 before.\n\n| a 0.42 |\n"
    assert (project / "page.md").read_text() == text
    prose.listed.cache_clear()
    assert [figure for figure, _ in prose.listed()["page.md"]] == ["3.5", "13.5", "0.30"]
    assert prose.problems("page.md", text) == []


def test_a_page_that_the_list_does_not_fit_is_left_alone(project):
    (project / "page.md").write_text("New: 7.1. " + PAGE)
    with pytest.raises(SystemExit, match=r"figure 1: the page has \['7\.1'"):
        renew.main(["page.md"])
    assert (project / "page.md").read_text() == "New: 7.1. " + PAGE
