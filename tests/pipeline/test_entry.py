"""How a stage ends: one sentence and a status, whatever went wrong."""

import errno

import pytest

from gistgate.core.utils import UserError
from pipeline import run as entry


def fail_with(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    "error, status, sentence",
    [
        (UserError("The pair is missing.\nTrain it."), 1, "The pair is missing. Train it."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "The disk is full."),
        (MemoryError(), 1, "Memory ran out. Set decoding.workers"),
        (RuntimeError("CUDA out of memory. Tried to allocate"), 1, "Memory ran out."),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_mendable_failures_are_one_line(error, status, sentence, capsys, monkeypatch):
    with pytest.raises(SystemExit) as left:
        start(monkeypatch, fail_with(error))
    said = capsys.readouterr().err
    assert left.value.code == status and said.startswith(sentence) and said.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch):
    with pytest.raises(ZeroDivisionError):
        start(monkeypatch, fail_with(ZeroDivisionError()))


def start(monkeypatch, main, *words):
    monkeypatch.setattr("sys.argv", ["stage", *words])
    entry.run(main)


def test_arguments_are_those_of_the_signature(monkeypatch):
    given = []

    def main(name: str, rows: int = 3) -> None:
        given.append((name, rows))

    start(monkeypatch, main, "fly")
    start(monkeypatch, main, "fly", "--rows", "5")
    assert given == [("fly", 3), ("fly", 5)]


@pytest.mark.parametrize("words", [[], ["fly", "exact"], ["fly", "--rows", "many"]])
def test_other_arguments_are_refused_with_one_line(monkeypatch, capsys, words):
    def main(name: str, rows: int = 3) -> None:
        raise AssertionError("the arguments do not fit")

    with pytest.raises(SystemExit) as left:
        start(monkeypatch, main, *words)
    said = capsys.readouterr().err
    assert left.value.code == 1 and said.count("\n") == 1 and said.endswith("See --help.\n")
