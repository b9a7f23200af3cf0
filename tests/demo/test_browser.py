"""The demo and the page of a trace in a browser: prompts, keys, slider, dark mode, and no request to elsewhere."""

import socket

import pytest

from gistgate.demo.page import trace_page
from tests.demo.answers import LOOSE, STRICT
from tests.demo.chromium import BACKGROUNDS, backgrounds, browser, note_of, opener, underlines
from tests.demo.playing import decoding_threads, demo_session, served, wait_for

__all__ = ["browser"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo():
    """The address of the demo."""
    pytest.importorskip("uvicorn")
    with served(demo_session()) as address:
        yield address


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The address of the page of a trace."""
    file = tmp_path_factory.mktemp("pages") / "trace.html"
    file.write_text(trace_page("Tom has", LOOSE, STRICT), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser, demo):
    opened = browser.new_page()
    opened.asked = []
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto(demo)
    yield opened
    opened.close()


@pytest.fixture
def open_page(browser, trace):
    yield from opener(browser, trace)


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
    assert "tokens per second" in page.inner_text("#loose-numbers") and "tau" in page.inner_text("#strict-numbers")
    assert page.locator(".differs").count()
    assert all(url.startswith(demo) for url in page.asked)
    page.locator("#loose .token").first.focus()
    page.keyboard.press("ArrowDown")
    assert note_of(page).startswith("loose, target 0.")


def test_the_slider_names_setting_and_claim_and_turns_strict_at_its_left_end(page):
    assert page.inner_text("#label") == "prob, r 0.002" and page.inner_text("#claim").startswith("Certified")
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


@pytest.mark.parametrize("address", ["demo", "trace"])
def test_it_can_be_read_without_colour_and_in_the_dark(browser, request, address):
    opened = opener(browser, request.getfixturevalue(address))
    open_page = next(opened)
    styles = underlines(open_page())
    assert len(styles) == len(set(styles)) == 5
    assert backgrounds(open_page) == BACKGROUNDS
    assert next(opened, None) is None  # closes the pages


def test_keys_and_the_pointer_show_the_probabilities_of_tokens(open_page):
    page = open_page()
    for key, note in (
        ("Tab", "strict, gate 0.991, target 0.912"),
        ("ArrowRight", "loose, gate 0.934, target 0.081"),
        ("End", "own, target 0.703"),
        ("ArrowUp", "loose, gate 0.934, target 0.081"),
        ("Tab", "strict, target 0.912"),
    ):
        page.keyboard.press(key)
        assert note_of(page) == note
    token = page.locator(".answer .loose").first
    token.hover()
    assert "gate 0.934" in token.evaluate("token => getComputedStyle(token, '::after').content")


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
