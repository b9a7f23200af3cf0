"""The README and docs/rules.md show what docs/results holds; links, commands and targets that the pages name exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from gistgate.cli.main import app
from pipeline.report import headline
from pipeline.report.markers import part
from pipeline.report.publish import PART, content_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_table_is_the_published_summary():
    results = ROOT / "docs" / "results"
    expected = content_of(results) if (results / "summary.json").exists() else ""
    assert part(README, PART) == expected


def test_the_paragraph_at_the_head_follows_the_published_results():
    assert part(README, headline.PART) == headline.headline(ROOT / "docs/results")


def test_the_large_table_is_the_published_one():
    results = ROOT / "docs" / "results" / "table"
    expected = content_of(results) if (results / "summary.json").exists() else ""
    assert part((ROOT / "docs" / "rules.md").read_text(), PART) == expected


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    named = set(re.findall(r"`make ([a-z]+)", README)) | set(re.findall(r"^make ([a-z]+)", README, flags=re.M))
    assert {"repro", "test"} <= named <= targets


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_linked_file_exists(page: Path):
    links = re.findall(r"\]\((?!http|#)([^)#\s]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_index_names_every_page():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    named = set(re.findall(r"^\| \[.*?\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(), flags=re.M))
    assert pages <= named


def commands():
    """Every line of the documents that calls our command line, without its comment."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for line in re.findall(r"^gistgate .*", page.read_text(), flags=re.M):
            yield pytest.param(shlex.split(line, comments=True)[1:], id=f"{page.stem}: {line[:60]}")


@pytest.mark.parametrize("arguments", commands())
def test_every_command_line_is_one_that_the_parser_takes(arguments: list[str]):
    """Missing and unknown options raise; nothing is run."""
    name, *rest = arguments
    command = typer.main.get_command(app).commands[name]
    assert command.make_context(name, rest).params is not None
