"""Counters of the workers, and how a client notices that the vLLM plug-in does not run in a server."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.vllm import metrics

ACTIVE = 'gistgate_active{rule="prob",runner="V1",setting="r=0.3",source="explicit setting"} 1.0\n'


@contextmanager
def peer(page: bytes) -> Iterator[str]:
    """The address of something that answers once, with these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(page)

        Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "page, strict, words",
    [("up 1\n", None, "does not run"), ("", None, "does not run"), (ACTIVE, True, "but strict was expected")],
)
def test_a_client_notices_what_is_missing(page: str, strict: bool | None, words: str):
    assert metrics.read(f"up 1\n{ACTIVE}", "there", strict=False)["setting"] == "r=0.3"
    with pytest.raises(UserError, match=words):
        metrics.read(page, "http://127.0.0.1:8000", strict)


def test_a_server_without_the_plug_in_and_one_that_is_gone_end_with_1(capsys: Any):
    with peer(b"HTTP/1.0 200 OK\r\n\r\nup 1\n") as address:
        assert metrics.main([f"{address}/v1"]) == 1
        assert "does not run" in capsys.readouterr().err
    assert metrics.main([address]) == 1
    assert "gave no metrics" in capsys.readouterr().err
    assert metrics.main([]) == 2


@pytest.mark.parametrize("page", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nup"])
def test_a_peer_that_speaks_otherwise_or_hangs_up_is_one_sentence(page: bytes):
    with peer(page) as address, pytest.raises(UserError, match="gave no metrics"):
        metrics.check(address)


def test_counters_are_written_again_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A full disk for a moment must not end the thread that writes them."""
    folder, tries = tmp_path / "counters", []
    folder.mkdir()

    def written(path: Path, _about: dict[str, str], totals: dict[str, float]) -> None:
        tries.append(totals)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        path.parent.rmdir()

    monkeypatch.setattr(metrics, "write", written)
    monkeypatch.setattr(metrics, "INTERVAL", 0.0)
    metrics.keep_writing(folder / "1.json", {}, lambda: {"loose": 1.0})
    assert tries == [{"loose": 1.0}] * 2
