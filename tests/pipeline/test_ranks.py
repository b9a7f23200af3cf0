"""Processes of torchrun share the pieces of a stage, and leave together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.pipeline.test_pool import preparing

from pipeline import run as ranks

ROOT = Path(__file__).parents[2]

STAGE = """
import sys
from pathlib import Path
from pipeline.run import ranks
from pipeline.run import side_by_side
from tests.pipeline.test_pool import preparing

folder = Path(sys.argv[1])
file = folder / "settled"
settled = ranks.before_others(lambda: file.read_text() if file.exists() else str(file.write_text(str(ranks.rank()))))
missing = [piece for piece in sys.argv[2:] if not (folder / f"piece-{piece}").exists()]
side_by_side(preparing, folder, missing, 1, "test", "piece")
if ranks.is_first():
    (folder / "joined").write_text(" ".join(sorted(path.name for path in folder.glob("piece-*"))))
"""


def start(folder: Path, *pieces: str) -> subprocess.CompletedProcess[str]:
    """Let two processes run the little stage above."""
    script = folder / "stage.py"
    script.write_text(STAGE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, str(folder), *pieces], env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_two_processes_share_what_is_missing_and_the_first_joins_it(tmp_path):
    preparing(tmp_path)("c")  # an earlier start has made it
    done = start(tmp_path, "a", "b", "c", "d", "e")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "joined").read_text() == "piece-a piece-b piece-c piece-d piece-e"
    makers = [(tmp_path / f"piece-{name}").read_text() for name in "abde"]
    assert makers[0] == makers[2] != makers[1] == makers[3]
    assert (tmp_path / "settled").read_text() == "0"


@pytest.mark.slow
def test_a_failed_process_ends_the_other_and_nothing_is_joined(tmp_path):
    done = start(tmp_path, "a", "bad")
    assert done.returncode != 0 and "Leave it out" in done.stderr
    assert not (tmp_path / "joined").exists()


@pytest.mark.parametrize("number, pieces", [(0, [0, 3, 6]), (1, [1, 4]), (2, [2, 5])])
def test_every_piece_belongs_to_one_process(monkeypatch, number, pieces):
    monkeypatch.setenv("RANK", str(number))
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr(ranks, "wait", lambda: None)
    assert list(ranks.own(range(7))) == pieces
    assert ranks.is_first() == (number == 0)


def test_without_torchrun_one_process_does_everything():
    assert list(ranks.own("abc")) == ["a", "b", "c"] and ranks.is_first()
    assert ranks.before_others(lambda: 7) == 7
