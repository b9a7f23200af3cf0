"""A headless Chromium for the tests of pages; they are skipped where there is none."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser; `browser.new_page()` begins a fresh profile."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright drives the browser")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


def note_of(page: Any) -> str:
    """What the page shows beside the token that has the focus."""
    code = "() => getComputedStyle(document.activeElement, '::after').content"
    return str(page.evaluate(code)).strip('"')


def underlines(page: Any) -> list[str]:
    """How each reason of the legend is underlined, without the colour of the line."""
    code = "tokens => tokens.map(token => getComputedStyle(token).textDecoration.replace(/rgb.*/, ''))"
    return list(page.locator(".legend .token").evaluate_all(code))


def backgrounds(open_page: Callable[..., Any]) -> dict[str, str]:
    """The background of a page that `open_page` opens, in light and in dark mode."""
    code = "getComputedStyle(document.body).backgroundColor"
    return {scheme: open_page(color_scheme=scheme).evaluate(code) for scheme in ("light", "dark")}


BACKGROUNDS = {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 26)"}
"""What they should be."""


def opener(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """A function that opens the page in a fresh profile with settings of the browser; all are closed at the end."""
    opened = []

    def call(**settings: Any) -> Any:
        opened.append(browser.new_page(**settings))
        opened[-1].goto(address)
        return opened[-1]

    yield call
    for page in opened:
        page.close()
