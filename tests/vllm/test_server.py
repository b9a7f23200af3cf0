"""What a server shows of the plug-in: metrics, and a client that notices when it does not run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.core import CollectorRegistry

from gistgate.integrations.vllm import client, metrics
from tests.vllm.engine import prepare

pytestmark = pytest.mark.vllm


def test_workers_report_and_the_server_adds_them_up(tmp_path: Path):
    about = {"rule": "prob", "setting": "r=0.3", "runner": "V1", "source": "explicit setting"}
    metrics.write(tmp_path / "1.json", about, {"loose": 2.0})
    metrics.write(tmp_path / "2.json", about, {"loose": 3.0})
    registry = CollectorRegistry()
    registry.register(metrics.Collector(tmp_path))
    assert registry.get_sample_value("gistgate_loose_total") == 5.0
    assert registry.get_sample_value("gistgate_active", about) == 2.0


@contextmanager
def server(place: Path, cache: Path, value: Any) -> Iterator[str]:
    """The address of a server on this machine, as long as it is needed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(place / "target"),
        "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4",
        "--speculative-config", json.dumps(speculation), "--additional-config", json.dumps({"gistgate": value}),
    ]  # fmt: skip
    with (cache / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
        try:
            address, until = f"http://127.0.0.1:{port}", monotonic() + 300
            while not answers(address):
                assert process.poll() is None and monotonic() < until, (cache / "log").read_text()[-3000:]
                sleep(2)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def answers(address: str) -> bool:
    """Whether the server is ready."""
    try:
        with urlopen(f"{address}/health", timeout=2):
            return True
    except (URLError, OSError):
        return False


def complete(address: str, **options: Any) -> dict[str, Any]:
    """An answer of 40 tokens."""
    body = {"model": "tiny", "prompt": [60, 61, 62] * 6, "max_tokens": 40, "temperature": 0, **options}
    request = Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def loose(address: str) -> float:
    """The counter of loose tokens, once the workers have written it."""
    sleep(2.5 * metrics.INTERVAL)
    with urlopen(f"{address}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("gistgate_loose_total")))


def test_a_server_counts_loose_tokens_and_a_strict_request_adds_none(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    prepare({"cache": str(tmp_path / "cache"), "alone": False})
    with server(place, tmp_path, {"rule": "prob", "settings": {"r": 1e-30}, "loop_guard": False}) as address:
        assert client.check(address, strict=False)["rule"] == "prob"
        strict = complete(address, vllm_xargs={"gistgate": "strict"}, ignore_eos=True)
        assert loose(address) == 0
        opened = complete(address, ignore_eos=True)
        assert loose(address) > 0
        assert strict["choices"][0]["text"] != opened["choices"][0]["text"]
