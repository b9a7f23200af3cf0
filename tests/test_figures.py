"""Figures of the documentation have a place in a file of the repository, and a changed digit is noticed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import binding, prose, sources

DOCS = sorted(page for page in (sources.ROOT / "docs").glob("*.md") if page.name != "log.md")
PAGES = [sources.ROOT / "README.md", *DOCS]
NOTICED = 0.97
"""Least share of changed figures that must be noticed."""


def name_of(page: Path) -> str:
    return page.relative_to(sources.ROOT).as_posix()


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_every_figure_of_a_table_has_a_place(page: Path):
    tables = sources.tables(page.read_text())
    assert not [rows for words, rows in tables if not binding.has_source(words, rows, page.name)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_decimal_in_the_text_has_a_place(page: Path):
    assert prose.problems(name_of(page), page.read_text()) == []


def changed(text: str, start: int = 0) -> Iterator[tuple[str, str]]:
    """The text with another last digit in one figure after the other, each with the figure."""
    for found in re.compile(sources.FIGURE).finditer(text, start):
        last = found.end() - 1
        other = f"{text[:last]}{(int(text[last]) + 1) % 10}{text[found.end() :]}"
        if sources.figures_of(other) != sources.figures_of(text):  # not in code, nor in a link
            yield found.group(), other


def table_mutants(page: Path) -> Iterator[tuple[str, bool]]:
    """Every figure of the page's measured tables, and whether its change is noticed."""
    for words, rows in sources.tables(page.read_text()):
        if not any(word.endswith(".json") for word in words):
            continue  # a test of its own compares the table, or nothing was measured
        for at, row in enumerate(rows):
            for figure, other in changed(row, row.index("|", 1)):
                mutant = [*rows[:at], other, *rows[at + 1 :]]
                yield f"{figure} in {row}", not binding.has_source(words, mutant, page.name)


def text_mutants(page: Path) -> Iterator[tuple[str, bool]]:
    """Every decimal of the page's text, and whether its change is noticed."""
    text = page.read_text()
    for found in sources.decimals(text):
        other = f"{text[: found.end() - 1]}{(int(found.group()[-1]) + 1) % 10}{text[found.end() :]}"
        yield f"{found.group()} in the text", prose.problems(name_of(page), other) != []


@pytest.mark.slow
def test_a_changed_digit_is_noticed():
    found = [(page.name, *one) for page in DOCS for one in table_mutants(page)]
    found += [(page.name, *one) for page in PAGES for one in text_mutants(page)]
    missed = [f"{page}: {figure}" for page, figure, noticed in found if not noticed]
    print(*missed, f"{len(found) - len(missed)} of {len(found)} changed figures are noticed", sep="\n")
    assert len(found) >= 1250 and len(missed) <= (1 - NOTICED) * len(found), missed


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two methods in a.json, and a list of the text's figures."""
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    rows = {"x": {"tau": 4.126, "low": 0.0315, "n": 200}, "y": {"tau": 5.0, "low": 0.5, "n": 300}}
    (tmp_path / "tests").mkdir()
    (tmp_path / "a.json").write_text(json.dumps({"methods": rows, "other": {"tau": 4.126, "low": 0.5}}))
    (tmp_path / "test_it.py").write_text("docs/page.md")
    lines = ["4.13 = a.json > methods > x > tau", "0.83 = a.json > methods > x > tau / a.json > methods > y > tau"]
    (tmp_path / "tests/prose.yaml").write_text(json.dumps({"page.md": [*lines, "0.7 = set"]}))
    caches = binding.leaves, binding.places, prose.listed, prose.content
    for cached in caches:
        cached.cache_clear()
    yield tmp_path
    for cached in caches:
        cached.cache_clear()


HEAD = "| method | tau | low | n |\n|---|---|---|---|\n"


@pytest.mark.parametrize(
    "words, rows, is_right",
    [
        ("a.json", "| x | 4.13 | 3.15 % | 200 |\n| y | 5.0 | 50.0 % | 300 |\n", True),
        ("a.json", "| x | 4.12 | 3.15 % | 200 |\n| y | 5.0 | 50.0 % | 300 |\n", False),
        ("a.json", "| x | 5.0 | 3.15 % | 200 |\n| y | 4.13 | 50.0 % | 300 |\n", False),
        ("a.json", "| x | 4.13 | 50.0 % | 200 |\n| y | 5.0 | 3.15 % | 300 |\n", False),
        ("a.json apart", "| x | 4.13 | 50.0 % | 200 |\n| y | 5.0 | 3.15 % | 300 |\n", True),
        ("a.json", "| x | 4.13 | 4.13 | 200 |\n| y | 5.0 | 0.5 | 300 |\n", False),
        ("a.json loose:3", "| x | 4.13 | 4.13 | 200 |\n| y | 5.0 | 0.5 | 300 |\n", True),
        ("a.json loose:3", "| x | 4.13 | 0.5 | 200 |\n| y | 5.0 | 0.5 | 300 |\n", False),
        ("test_it.py", "| x | 7.77 |\n", True),
        ("settings", "| x | 7.77 |\n", True),
        ("", "| x | 4.13 |\n", False),
    ],
)
def test_tables_with_wrong_figures_are_found(files: Path, words: str, rows: str, is_right: bool):
    page = f"<!-- source: {words} -->\n\n{HEAD}{rows}"
    assert [binding.has_source(*table, "page.md") for table in sources.tables(page)] == [is_right]


def test_wrong_missing_and_additional_decimals_in_the_text_are_found(files: Path):
    text = "It is 4.13 long, 0.83 of the other, at 0.7.\n\n| 9.9 |\n\n`8.8` (arXiv 2504.07891)\n\n    7.7\n"
    assert prose.problems("page.md", text) == []
    assert "figure 1" in prose.problems("page.md", text.replace("4.13", "4.12"))[0]
    assert "figure 4" in prose.problems("page.md", text + "And 3.3.")[0]
    assert prose.problems("page.md", "") and prose.problems("other.md", "0.7")
    (files / "a.json").write_text((files / "a.json").read_text().replace("4.126", "4.2"))
    prose.content.cache_clear()
    assert [line.partition(" ")[0] for line in prose.problems("page.md", text)] == ["4.13", "0.83"]
