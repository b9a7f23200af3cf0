"""How a stage runs: pieces over workers and torchrun processes, shards that survive a kill, one
sentence at the end.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from gistgate.core.files import load_tensors
from gistgate.core.utils import UserError
from pipeline import run
from pipeline.run import Shards, shard_files, side_by_side

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


def waiting(folder):
    """Says that it began, then would take an hour."""

    def work(piece):
        (Path(folder) / f"began-{piece}-{os.getpid()}").touch()
        time.sleep(3600)

    return work


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_every_piece_is_worked_on_once_and_workers_prepare_once(tmp_path, workers):
    side_by_side(preparing, tmp_path, ["a", "b", "c"], workers, "test", "piece")
    processes = {path.read_text() for path in tmp_path.glob("piece-*")}
    assert sorted(path.name for path in tmp_path.glob("piece-*")) == [
        "piece-a",
        "piece-b",
        "piece-c",
    ]
    assert (str(os.getpid()) in processes) == (workers == 1)
    assert len(list(tmp_path.glob("prepared-*"))) <= workers


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("prepare", "pieces", "sentence"),
    [(preparing, ["a", "bad", "c"], "Leave it out"), (unprepared, ["a", "b"], "Write its file")],
)
def test_an_error_arrives_as_the_sentence_it_was(tmp_path, prepare, pieces, sentence, workers):
    with pytest.raises(UserError, match=sentence):
        side_by_side(prepare, tmp_path, pieces, workers, "test", "piece")


def script(folder: Path, text: str) -> list[str]:
    """A program that runs with this repository on its path."""
    (folder / "stage.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{text}")
    return [str(folder / "stage.py"), str(folder)]


def until(found, seconds=60.0):
    end = time.monotonic() + seconds
    while not found() and time.monotonic() < end:
        time.sleep(0.05)
    return found()


@pytest.mark.slow
def test_workers_end_with_a_stage_that_is_killed(tmp_path):
    text = """
from pipeline.run import side_by_side
from tests.pipeline.test_run import waiting
if __name__ == "__main__":
    side_by_side(waiting, sys.argv[1], ["a", "b"], 2, "test", "piece")
"""
    stage = subprocess.Popen([sys.executable, *script(tmp_path, text)])
    assert until(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    workers = [int(path.name.split("-")[-1]) for path in tmp_path.glob("began-*")]
    stage.send_signal(signal.SIGKILL)
    stage.wait()
    assert until(lambda: not any(map(psutil.pid_exists, workers)), 10)


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [["a", "b", "d", "e"], ["a", "bad"]])
def test_processes_of_torchrun_share_the_pieces_and_fail_together(tmp_path, pieces):
    text = """
from pathlib import Path
from pipeline import run
from tests.pipeline.test_run import preparing
folder = Path(sys.argv[1])
run.side_by_side(preparing, folder, sys.argv[2:], 1, "test", "piece")
if run.RANK == 0:
    (folder / "joined").write_text(" ".join(sorted(path.name for path in folder.glob("piece-*"))))
"""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    done = subprocess.run(
        [*command, *script(tmp_path, text), *pieces], capture_output=True, text=True, timeout=300
    )
    if "bad" in pieces:
        assert (
            done.returncode != 0
            and "Leave it out" in done.stderr
            and not (tmp_path / "joined").exists()
        )
        return
    assert done.returncode == 0, done.stderr[-2000:]
    makers = [(tmp_path / f"piece-{name}").read_text() for name in pieces]
    assert makers[0] == makers[2] != makers[1] == makers[3]
    assert (tmp_path / "joined").read_text() == "piece-a piece-b piece-d piece-e"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_all(settings, made, stop_at=None):
    """Make three shards and publish them; a kill comes at `stop_at`."""
    shards = Shards("collect", settings)

    def produce(index):
        if index == stop_at:
            raise KeyboardInterrupt
        made.append(index)
        return {"x": torch.tensor([index])}

    shards.fill(3, lambda _settings: produce, None, 1, "collect", {})
    shards.publish(3, Path("out"), {"rows": 3})


def test_a_killed_start_loses_only_the_shard_it_was_making(folder):
    made = []
    with pytest.raises(KeyboardInterrupt):
        make_all({"block": 8}, made, stop_at=2)
    assert made == [0, 1] and not (folder / "out").exists()
    make_all({"block": 8}, made)
    assert made == [0, 1, 2]
    assert [int(load_tensors(file)["x"]) for file in shard_files(folder / "out")] == [0, 1, 2]
    assert list((folder / ".scratch").iterdir()) == []


def test_other_settings_find_no_old_shards(folder):
    made = []
    with pytest.raises(KeyboardInterrupt):
        make_all({"block": 8}, made, stop_at=2)
    make_all({"block": 4}, made)
    assert made == [0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (
            UserError("The pair\nis not there. Write its file."),
            1,
            "The pair is not there. Write its file.",
        ),
        (torch.OutOfMemoryError("CUDA out of memory"), 1, "Memory ran out"),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_a_stage_ends_with_one_sentence_and_a_status(monkeypatch, capsys, error, status, sentence):
    def main() -> None:
        raise error

    monkeypatch.setattr("sys.argv", ["stage"])
    with pytest.raises(SystemExit) as left:
        run.run(main)
    assert sentence in f"{left.value.code}{capsys.readouterr().err}" and (
        left.value.code == status or status == 1
    )
