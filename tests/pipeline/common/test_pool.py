"""Pieces side by side: every piece once, workers prepared once, errors handed on as sentences."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gistgate.errors import UserError
from pipeline.common.pool import side_by_side


def preparing(folder):
    """Notes each preparation, then writes each piece into a file of its own."""
    (Path(folder) / f"prepared-{os.getpid()}").touch()

    def work(piece):
        if piece == "bad":
            raise UserError("Piece 'bad' is bad. Leave it out.")
        (Path(folder) / f"piece-{piece}").write_text(str(os.getpid()))

    return work


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


def test_a_killed_worker_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="decoding.workers"):
        side_by_side(dying, tmp_path, ["a", "b"], 2, "test", "piece")
