"""The report in a browser: one file, keyboard, dark mode, reasons without colour, certificates and what they bind."""

import pytest

from pipeline.report.tables import explained, page
from tests.demo.chromium import BACKGROUNDS, backgrounds, browser, note_of, opener, underlines

__all__ = ["browser"]
pytestmark = pytest.mark.slow


def token(text, reason, kept, probability):
    return {"text": text, "reason": reason, "kept": kept, "probability": probability}


TRACE = {
    "id": "test-0",
    "context": "How many?",
    "method": "judge",
    "knob": 0.2,
    "loose": {
        "score": 1,
        "mean_accepted_length": 5.0,
        "tokens": [token("in ", "strict", 0.99, 0.9), token("red", "loose", 0.97, 0.01)],
    },
    "strict": {"score": 1, "mean_accepted_length": 3.0, "tokens": [token("blue", "own", None, 0.8)]},
}
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
    content = {"machine": None, "judgements": None, "table": "", "figures": {}, "described": {}}
    facts = {"judge": {"scope.block": "8"}}
    html = page("report", summary=SUMMARY, trace=explained(TRACE), provenance=facts, **content)
    file.write_text(html, encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def open_page(browser, address):
    yield from opener(browser, address)


def test_it_can_be_read_without_colour_and_in_the_dark(open_page):
    assert len(set(underlines(open_page()))) == 5
    assert backgrounds(open_page) == BACKGROUNDS


def test_keys_show_probabilities_and_numbers_mark_the_differences(open_page):
    shown = open_page()
    shown.locator(".answer .token").first.focus()
    shown.keyboard.press("ArrowDown")
    assert note_of(shown) == "loose, gate 0.970, target 0.010"
    assert shown.locator("mark[data-difference='1']").count() == 2
    assert shown.locator(".differences td").all_inner_texts() == ["1", "in red", "blue"]


def test_it_shows_certificates_and_what_they_depend_on(open_page):
    shown = open_page()
    cells = shown.locator("h2:has-text('Certificates') ~ .wide").first.locator("td").all_inner_texts()
    assert cells == ["3.0", "0.2", "2.10", "1000", "14", "3", "2.0", "refused", "2.10", "1000", "14", "3"]
    shown.click("summary")
    assert "scope.block" in shown.inner_text(".facts")


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(open_page, width):
    shown = open_page(viewport={"width": width, "height": 800})
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
