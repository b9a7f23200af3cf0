"""What appears while an answer is decoded, and that nothing is lost where pieces do not fit
together.
"""

import sys

import pytest

from gistgate.cli.decode import Writer
from gistgate.cli.show import coloured
from gistgate.measure.trace import TracedToken


@pytest.mark.parametrize(
    ("texts", "rest"),
    [(["", "a", "a", "abc"], "bc\n"), (["", "a", "b", "b"], "\nb\n")],
    ids=["grows", "changes"],
)
def test_text_appears_piece_by_piece_and_one_that_changes_is_printed_again(capsys, texts, rest):
    writer = Writer(lambda ids: texts[len(ids)])
    writer.show(writer.text([1]))
    writer.show(writer.text([1, 1]))
    assert capsys.readouterr().out == "a"
    writer.finish([1, 1, 1])
    assert capsys.readouterr().out == rest


@pytest.mark.parametrize(
    ("terminal", "shown"), [(True, "a\\x1b[2Jb\té\u200d\n"), (False, "a\x1b[2Jb\té\u200d\n")]
)
def test_an_answer_cannot_steer_a_terminal(capsys, monkeypatch, terminal, shown):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    Writer(lambda ids: "a\x1b[2Jb\té\u200d").finish([1])
    assert capsys.readouterr().out == shown


def test_a_traced_answer_cannot_steer_a_terminal():
    shown = coloured(
        [TracedToken("a\x1b[2J", "strict", None, 0.5), TracedToken("\x9bé\n", "loose", 0.9, 0.5)]
    ).plain
    assert "a\\x1b[2J\\x9bé\n" in shown and not {"\x1b", "\x9b"} & set(shown)
