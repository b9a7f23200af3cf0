"""A headless Chromium for the tests of pages; they are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
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
