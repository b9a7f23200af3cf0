"""Counters of the workers, and how a client notices that the vLLM plug-in does not run in a
server.
"""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
import yaml

from gistgate.core.utils import UserError
from gistgate.vllm import metrics
from gistgate.vllm.judge import NAMES

OK = "HTTP/1.0 200 OK\r\n\r\n"
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
    [
        ("up 1\n", False, "does not run"),
        ("", False, "does not run"),
        (ACTIVE, True, "but strict was expected"),
    ],
)
def test_a_client_notices_what_is_missing(page: str, strict: bool, words: str):
    with peer(f"{OK}up 1\n{ACTIVE}".encode()) as address:
        assert metrics.check(address)["setting"] == "r=0.3"
    with peer(f"{OK}{page}".encode()) as address, pytest.raises(UserError, match=words):
        metrics.check(address, strict)


@pytest.mark.parametrize("page", ["alarms.yml", "grafana.json"])
def test_alarms_and_panels_name_only_metrics_that_exist(page: str):
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    assert yaml.safe_load(text)  # JSON is YAML, too
    found = set(re.findall(r"gistgate_\w+", text))
    assert len(found) > 7 and found <= {
        "gistgate_active",
        *(f"gistgate_{name}_total" for name in NAMES),
    }


def test_a_server_without_the_plug_in_and_one_that_is_gone_end_with_1():
    with peer(f"{OK}up 1\n".encode()) as address, pytest.raises(SystemExit, match="does not run"):
        metrics.main(f"{address}/v1")
    with pytest.raises(SystemExit, match="gave no metrics"):
        metrics.main(address)
