"""The page of a trace in a browser: keyboard, dark mode, small screens, and no request but for the file itself."""

import socket

import pytest

from gistgate.demo.page import trace_page
from tests.demo.answers import LOOSE, STRICT
from tests.demo.chromium import BACKGROUNDS, backgrounds, browser, note_of, opener, underlines

__all__ = ["browser"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    file = tmp_path_factory.mktemp("pages") / "trace.html"
    file.write_text(trace_page("Tom has", LOOSE, STRICT), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def open_page(browser, address):
    yield from opener(browser, address)


def test_keys_move_between_tokens_and_show_their_probabilities(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    assert note_of(page) == "strict, gate 0.991, target 0.912"
    page.keyboard.press("ArrowRight")
    assert note_of(page) == "loose, gate 0.934, target 0.081"
    page.keyboard.press("End")
    assert note_of(page) == "own, target 0.703"
    page.keyboard.press("ArrowUp")
    assert note_of(page) == "loose, gate 0.934, target 0.081"
    page.keyboard.press("Tab")
    assert note_of(page) == "strict, target 0.912"


def test_the_pointer_shows_probabilities(open_page):
    token = open_page().locator(".answer .loose").first
    token.hover()
    assert "gate 0.934" in token.evaluate("token => getComputedStyle(token, '::after').content")


def test_reasons_differ_without_colour(open_page):
    styles = underlines(open_page())
    assert len(styles) == 5 and len(set(styles)) == 5


def test_dark_mode_turns_the_page_dark(open_page):
    assert backgrounds(open_page) == BACKGROUNDS


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(open_page, width):
    page = open_page(viewport={"width": width, "height": 800})
    page.keyboard.press("Tab")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_connection_leaves_the_page_even_if_a_script_tries(open_page):
    """A server that would answer is never asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        there = f"http://127.0.0.1:{server.getsockname()[1]}/"
        page = open_page()
        assert page.evaluate("there => fetch(there).then(() => 'sent', () => 'refused')", there) == "refused"
        code = (
            "there => new Promise(done => { const it = new Image(); it.onload = it.onerror = done; it.src = there; })"
        )
        page.evaluate(f"there => ({code})(there).then(() => null)", there)
        with pytest.raises(BlockingIOError):
            server.accept()
