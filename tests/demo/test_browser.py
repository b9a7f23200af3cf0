"""The demo and the page of a trace in a browser: prompts, keys, slider, dark mode, and no request
to elsewhere.
"""

import contextlib
import shutil
import socket

import pytest

from gistgate.demo.page import trace_page
from tests.demo.answers import LOOSE, STRICT
from tests.demo.playing import decoding_threads, demo_session, served, wait_for

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


@pytest.fixture(scope="module")
def demo():
    """The address of the demo."""
    pytest.importorskip("uvicorn")
    with served(demo_session()) as address:
        yield address


@pytest.fixture
def page(browser, demo):
    opened = browser.new_page()
    opened.asked = []
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto(demo)
    yield opened
    opened.close()


def ask(page, until=None, prompt="Tom has"):
    """Type a prompt, press the button, and wait for a text."""
    page.fill("#prompt", prompt)
    page.click("#go")
    if until:
        page.get_by_text(until).wait_for()


def test_a_prompt_is_answered_on_both_sides_and_keys_show_probabilities(page, demo):
    ask(page, "Done.")
    assert [page.locator(f"#{side} .token").count() for side in ("loose", "strict")] == [24, 24]
    assert page.locator("#loose .loose").count() and not page.locator("#strict .loose").count()
    assert "tokens per second" in page.inner_text("#loose-numbers") and "tau" in page.inner_text(
        "#strict-numbers"
    )
    assert page.locator(".differs").count()
    assert all(url.startswith(demo) for url in page.asked)
    page.locator("#loose .token").first.focus()
    page.keyboard.press("ArrowDown")
    note = page.evaluate("getComputedStyle(document.activeElement, '::after').content")
    assert note.strip('"').startswith("loose, target 0.")


def test_the_slider_names_setting_and_claim_and_turns_strict_at_its_left_end(page):
    assert page.inner_text("#label") == "prob, r 0.002" and page.inner_text("#claim").startswith(
        "Certified"
    )
    page.locator("#setting").focus()
    page.keyboard.press("Home")
    assert page.inner_text("#label") == "strict"
    ask(page, "Done.")
    assert page.inner_text("#loose") == page.inner_text("#strict")


def test_stop_ends_decoding_and_an_error_is_shown_as_a_sentence(page):
    page.fill("#length", "480")
    ask(page)
    page.locator("#loose .token").first.wait_for()
    page.click("#stop")
    page.get_by_text("Stopped.").wait_for()
    assert wait_for(lambda: not decoding_threads())
    page.fill("#length", "4000")
    ask(page, "exceed the context")


def test_it_can_be_read_without_colour_and_in_the_dark(page):
    code = (
        "tokens => tokens.map(token => getComputedStyle(token).textDecoration.replace(/rgb.*/, ''))"
    )
    underlines = page.locator(".legend .token").evaluate_all(code)
    assert len(underlines) == len(set(underlines)) == 5
    for scheme, background in {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 26)"}.items():
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background


def test_no_connection_leaves_the_page_of_a_trace_even_if_a_script_tries(browser, tmp_path):
    """A server that would answer is never asked."""
    page = trace_page("Tom has", LOOSE, STRICT, None, {})
    (tmp_path / "trace.html").write_text(page, encoding="utf-8")
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        contextlib.closing(browser.new_page()) as page,
    ):
        server.setblocking(False)
        there = f"http://127.0.0.1:{server.getsockname()[1]}/"
        page.goto((tmp_path / "trace.html").as_uri())
        assert (
            page.evaluate("there => fetch(there).then(() => 'sent', () => 'refused')", there)
            == "refused"
        )
        image = "const it = new Image(); it.onload = it.onerror = done; it.src = there;"
        page.evaluate(f"there => new Promise(done => {{ {image} }}).then(() => null)", there)
        with pytest.raises(BlockingIOError):
            server.accept()
