"""The report in a browser: one file, dark mode, certificates and what they bind, any width."""

import pytest

from pipeline.report.tables import page
from tests.demo.chromium import BACKGROUNDS, backgrounds, browser, opener

__all__ = ["browser"]
pytestmark = pytest.mark.slow


LINE = {"certified": True, "knob": 0.2, "bound": 0.021, "n": 1000, "losses": 14, "gains": 3}
METHOD = {"certificates": {"0.03": LINE, "0.02": {**LINE, "certified": False}}}
SUMMARY = {
    "pair": "embedded",
    "task": "wordproblems",
    "seed": 1,
    "headline_budget": 0.03,
    "plain": {"accuracy": 0.95},
    "heads": {"logistic": {"auc": 0.9, "ap": 0.4, "brier": 0.1, "ece": None}},
    "methods": {"judge": METHOD},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("report") / "index.html"
    content = {"machine": None, "table": "", "figures": {}, "described": {}}
    html = page("report", summary=SUMMARY, provenance={"judge": {"scope.block": "8"}}, **content)
    file.write_text(html, encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def open_page(browser, address):
    yield from opener(browser, address)


def test_it_shows_certificates_and_what_they_depend_on_in_the_dark_too(open_page):
    assert backgrounds(open_page) == BACKGROUNDS
    shown = open_page()
    cells = shown.locator("h2:has-text('Certificates') ~ .wide").first.locator("td").all_inner_texts()
    assert cells == ["3.0", "0.2", "2.10", "1000", "14", "3", "2.0", "refused", "2.10", "1000", "14", "3"]
    shown.click("summary")
    assert "scope.block" in shown.inner_text(".facts")


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(open_page, width):
    shown = open_page(viewport={"width": width, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
