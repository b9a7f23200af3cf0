"""The page of a trace in a browser: keys, dark mode, and no request to elsewhere."""

import contextlib
import shutil
import socket

import pytest

from gistgate.measure.trace_page import trace_page
from tests.measure.answers import LOOSE, STRICT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; the tests are skipped where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright drives the browser"
    )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser, tmp_path):
    """The page of a trace, opened from its file."""
    file = tmp_path / "trace.html"
    file.write_text(trace_page("Tom has", LOOSE, STRICT, None), encoding="utf-8")
    with contextlib.closing(browser.new_page()) as opened:
        opened.goto(file.as_uri())
        yield opened


def test_keys_go_to_loose_tokens_and_show_probabilities(page):
    page.locator(".answer .token").first.focus()
    page.keyboard.press("ArrowDown")
    note = page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert note.strip('"') == "loose, gate 0.934, target 0.081"


def test_it_can_be_read_without_colour_and_in_the_dark(page):
    code = (
        "tokens => tokens.map(token => getComputedStyle(token).textDecoration.replace(/rgb.*/, ''))"
    )
    underlines = page.locator(".legend .token").evaluate_all(code)
    assert len(underlines) == len(set(underlines)) == 5
    for scheme, background in {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 26)"}.items():
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background


def test_no_connection_leaves_the_page_even_if_a_script_tries(page):
    """A server that would answer is never asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        there = f"http://127.0.0.1:{server.getsockname()[1]}/"
        fetched = page.evaluate("there => fetch(there).then(() => 'sent', () => 'refused')", there)
        assert fetched == "refused"
        image = "const it = new Image(); it.onload = it.onerror = done; it.src = there;"
        page.evaluate(f"there => new Promise(done => {{ {image} }}).then(() => null)", there)
        with pytest.raises(BlockingIOError):
            server.accept()
