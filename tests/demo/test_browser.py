"""The demo in a browser: type a prompt, see both answers, move the slider, stop."""

import pytest

from tests.demo.chromium import BACKGROUNDS, backgrounds, browser, note_of, opener, underlines
from tests.demo.playing import decoding_threads, playground, served, wait_for

pytest.importorskip("uvicorn")
__all__ = ["browser"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address():
    with served(playground()) as address:
        yield address


@pytest.fixture
def page(browser, address):
    opened = browser.new_page()
    opened.asked = []
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.goto(address)
    yield opened
    opened.close()


@pytest.fixture
def open_page(browser, address):
    yield from opener(browser, address)


def ask(page, prompt="Tom has"):
    """Type a prompt and press the button."""
    page.fill("#prompt", prompt)
    page.click("#go")


def test_a_prompt_is_answered_on_both_sides(page, address):
    ask(page)
    page.get_by_text("Done.").wait_for()
    counts = [page.locator(f"#{side} .token").count() for side in ("loose", "strict")]
    assert counts == [24, 24]
    assert page.locator("#loose .loose").count() and not page.locator("#strict .loose").count()
    assert "tokens per second" in page.inner_text("#loose-numbers") and "tau" in page.inner_text("#strict-numbers")
    assert page.locator(".differs").count()
    assert all(url.startswith(address) for url in page.asked)


def test_keys_show_probabilities_of_tokens_that_arrived(page):
    ask(page)
    page.get_by_text("Done.").wait_for()
    page.locator("#loose .token").first.focus()
    page.keyboard.press("ArrowDown")
    assert note_of(page).startswith("loose, target 0.")


def test_the_slider_names_setting_and_claim_and_turns_strict_at_its_left_end(page):
    assert page.inner_text("#label") == "prob, r 0.002" and page.inner_text("#claim").startswith("Certified")
    page.locator("#setting").focus()
    page.keyboard.press("Home")
    assert page.inner_text("#label") == "strict"
    ask(page)
    page.get_by_text("Done.").wait_for()
    assert page.inner_text("#loose") == page.inner_text("#strict")


def test_stop_ends_decoding(page):
    page.fill("#length", "480")
    ask(page)
    page.locator("#loose .token").first.wait_for()
    page.click("#stop")
    page.get_by_text("Stopped.").wait_for()
    assert wait_for(lambda: not decoding_threads())


def test_an_error_is_shown_as_a_sentence(page):
    page.fill("#length", "4000")
    ask(page)
    page.get_by_text("exceed the context").wait_for()


def test_it_can_be_read_without_colour_and_in_the_dark(open_page):
    assert len(set(underlines(open_page()))) == 5
    assert backgrounds(open_page) == BACKGROUNDS
