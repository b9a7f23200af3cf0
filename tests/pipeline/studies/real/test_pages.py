"""The pages of the project show what is published of pretrained pairs."""

from __future__ import annotations

import pytest

from pipeline.report.gates import gates_table
from pipeline.report.markers import part
from pipeline.smoke import ROOT
from pipeline.studies.real import publish


def test_the_pages_of_the_project_have_their_comments() -> None:
    part((ROOT / publish.PAGE).read_text(), publish.PART)


def test_the_readme_shows_the_published_tables() -> None:
    assert part((ROOT / publish.README).read_text(), publish.SHORT) == publish.short(ROOT / "docs/results/real")


def test_the_readme_lists_the_gates_that_lie_in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert part(publish.README.read_text(), publish.LIST) == gates_table()
