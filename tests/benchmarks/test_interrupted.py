"""What an interrupted command says of finished work is true: most benchmarks begin anew."""

from __future__ import annotations

import ast
import errno
from pathlib import Path

import pytest

from pipeline.common import entry

ROOT = Path(__file__).parents[2]
GOING_ON = {"drafting", "mutants", "rounds", "served"}
"""Benchmarks that take up what an earlier start has finished."""


@pytest.mark.parametrize(
    ("error", "kept", "anew"),
    [
        (KeyboardInterrupt(), "Interrupted. Start again to go on; finished", "Interrupted. Start again; what was"),
        (MemoryError(), "Set decoding.workers to 1", "Take smaller sizes among the options"),
        (OSError(errno.ENOSPC, "No space left"), "and start again to go on; finished", "and start again; what was"),
    ],
)
def test_finished_work_is_promised_only_where_it_is_kept(error, kept, anew, monkeypatch, capsys):
    def main() -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["benchmark"])
    for takes_up, said in ((True, kept), (False, anew)):
        with pytest.raises(SystemExit):
            entry.run(main, kept=takes_up)
        found = capsys.readouterr().err
        assert said in found and ("finished shards are kept" in found) is takes_up
        assert ("what was measured so far is not taken up" in found) is not takes_up


def promises(path: Path) -> bool:
    """Whether a module's last line promises that finished work is kept."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(ast.unparse(one) == "run(main)" for one in calls)


def test_benchmarks_that_begin_anew_promise_nothing():
    found = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if promises(path)}
    assert found - {"labels"} == GOING_ON
