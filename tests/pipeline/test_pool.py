"""Pieces side by side: every piece once, workers prepared once, errors handed on as sentences."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from gistgate.core.utils import UserError
from pipeline import run as pool
from pipeline.run import side_by_side

ROOT = Path(__file__).parents[2]


def preparing(folder):
    """Notes each preparation, then writes each piece into a file of its own."""
    (Path(folder) / f"prepared-{os.getpid()}").touch()

    def work(piece):
        if piece == "bad":
            raise UserError("Piece 'bad' is bad. Leave it out.")
        (Path(folder) / f"piece-{piece}").write_text(str(os.getpid()))

    return work


def unprepared(_folder):
    raise UserError("The pair is not there. Write its file.")


def dying(_folder):
    return lambda _piece: os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_every_piece_is_worked_on_once(tmp_path, workers):
    side_by_side(preparing, tmp_path, ["a", "b", "c"], workers, "test", "piece")
    assert sorted(path.name for path in tmp_path.glob("piece-*")) == ["piece-a", "piece-b", "piece-c"]
    processes = {path.read_text() for path in tmp_path.glob("piece-*")}
    assert (str(os.getpid()) in processes) == (workers == 1)
    assert len(list(tmp_path.glob("prepared-*"))) <= workers


def test_no_piece_prepares_nothing(tmp_path):
    side_by_side(preparing, tmp_path, [], 2, "test", "piece")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_arrives_as_the_sentence_it_was(tmp_path, workers):
    with pytest.raises(UserError, match="Leave it out"):
        side_by_side(preparing, tmp_path, ["a", "bad", "c"], workers, "test", "piece")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_preparation_that_fails_says_why_itself(tmp_path, workers):
    with pytest.raises(UserError, match="Write its file"):
        side_by_side(unprepared, tmp_path, ["a", "b"], workers, "test", "piece")


def test_a_killed_worker_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="decoding.workers"):
        side_by_side(dying, tmp_path, ["a", "b"], 2, "test", "piece")


def waiting(folder):
    """Says that it began, then would take an hour."""

    def work(piece):
        (Path(folder) / f"began-{piece}-{os.getpid()}").touch()
        time.sleep(3600)

    return work


STAGE = """
import sys
from pipeline.run import side_by_side
from tests.pipeline.test_pool import waiting

if __name__ == "__main__":
    side_by_side(waiting, sys.argv[1], ["a", "b"], 2, "test", "piece")
"""


def until(found, seconds=60.0):
    """Wait until `found()` is true."""
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.05)
    return found()


@pytest.mark.slow
def test_workers_end_with_a_stage_that_is_killed(tmp_path):
    script = tmp_path / "stage.py"
    script.write_text(STAGE)
    stage = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True
    )
    assert until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    workers = [int(path.name.split("-")[-1]) for path in tmp_path.glob("began-*")]
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    assert until(lambda: not any(map(psutil.pid_exists, workers)), 10)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always start workers afresh")
def test_workers_are_copies_of_the_stage_but_where_a_gpu_or_torchrun_forbids_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert pool._start_method() == "fork"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert pool._start_method() == "spawn"
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pool._start_method() == "spawn"
