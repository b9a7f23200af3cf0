"""The page about segments shows what docs/results holds."""

from pathlib import Path

from gistgate.files import read_json
from pipeline.report.markers import part
from pipeline.report.publish import PART
from pipeline.studies.segments.publish import PAGE, RESULTS
from pipeline.studies.segments.tables import content, interval, table

ROOT = Path(__file__).parents[4]


def test_the_page_shows_the_published_results():
    assert part((ROOT / PAGE).read_text(), PART) == content(read_json(ROOT / RESULTS / "summary.json"))


def test_figures_of_the_page_are_published():
    page = (ROOT / PAGE).read_text()
    for figure in (ROOT / RESULTS / "figures").iterdir():
        assert f"results/segments/figures/{figure.name}" in page


def test_tables_are_markdown():
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert interval({"mean": 0.01, "low": -0.02, "high": 0.03}, 100, "{:+.1f}") == "+1.0 (-2.0 to +3.0)"
