"""A bar is for a terminal: elsewhere nothing is printed, and the work is done all the same."""

import sys

import pytest

from pipeline.common.progress import bar, lightning_bar


class Terminal:
    """A stream that says whether it is a terminal, and keeps what is written to it."""

    def __init__(self, is_terminal):
        self.is_terminal, self.said = is_terminal, ""

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.said += text

    def flush(self):
        pass


@pytest.mark.parametrize(
    "is_terminal, title, shown", [(True, "label", True), (False, "label", False), (True, None, False)]
)
def test_a_bar_needs_a_terminal_and_a_title(monkeypatch, is_terminal, title, shown):
    stream = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    assert list(bar([1, 2, 3], title=title, unit="shard")) == [1, 2, 3]
    assert ("label" in stream.said and "3/3" in stream.said) == shown and bool(stream.said) == shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_lightnings_bar_needs_a_terminal(monkeypatch, is_terminal):
    monkeypatch.setattr(sys, "stdout", Terminal(is_terminal))
    assert lightning_bar(10).is_enabled == is_terminal
