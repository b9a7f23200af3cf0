"""How a client notices that the vLLM plug-in does not run in a server."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.vllm import metrics
from gistgate.vllm import metrics as client

ACTIVE = 'gistgate_active{rule="prob",runner="V1",setting="r=0.3",source="explicit setting"} 1.0\n'


@pytest.mark.parametrize(
    "page, strict, words",
    [("up 1\n", None, "does not run"), ("", None, "does not run"), (ACTIVE, True, "but strict was expected")],
)
def test_a_client_notices_what_is_missing(page: str, strict: bool | None, words: str):
    with pytest.raises(UserError, match=words):
        client.read(page, "http://127.0.0.1:8000", strict)


def test_a_client_reads_what_runs():
    assert client.read(f"up 1\n{ACTIVE}", "there", strict=False)["setting"] == "r=0.3"


def test_a_server_without_the_plug_in_and_one_that_is_gone_end_with_1(capsys: Any):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"up 1\n")

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.handle_request, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    assert client.main([address]) == 1
    assert "does not run" in capsys.readouterr().err
    server.server_close()
    assert client.main([address]) == 1
    assert "gave no metrics" in capsys.readouterr().err
    assert client.main([]) == 2


@pytest.mark.parametrize("page", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nup"])
def test_a_peer_that_speaks_otherwise_or_hangs_up_is_one_sentence(page: bytes):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(page)

        Thread(target=answer, daemon=True).start()
        with pytest.raises(UserError, match="gave no metrics"):
            client.check(f"http://127.0.0.1:{server.getsockname()[1]}")


def test_counters_are_written_again_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
