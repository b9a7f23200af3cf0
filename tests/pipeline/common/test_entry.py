"""How a stage ends: one sentence and a status, whatever went wrong."""

import errno

import pytest

from gistgate.errors import UserError
from pipeline.common import entry as stage


def fail_with(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    "error, status, sentence",
    [
        (UserError("The pair is missing.\nTrain it."), 1, "The pair is missing. Train it."),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "The disk is full."),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_mendable_failures_are_one_line(error, status, sentence, capsys):
    with pytest.raises(SystemExit) as left:
        stage.run(fail_with(error))
    said = capsys.readouterr().err
    assert left.value.code == status and said.startswith(sentence) and said.count("\n") == 1


def test_a_bug_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        stage.run(fail_with(ZeroDivisionError()))


def test_the_item_is_the_only_argument(monkeypatch):
    monkeypatch.setattr("sys.argv", ["pipeline.stages.evaluate", "fly"])
    assert stage.item() == "fly"
    monkeypatch.setattr("sys.argv", ["pipeline.stages.evaluate"])
    with pytest.raises(UserError, match="exactly one name"):
        stage.item()
