"""What a server shows of the plug-in: metrics, and a client that notices when it does not run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any
from urllib.request import Request, urlopen

import pytest
from prometheus_client.core import CollectorRegistry

from benchmarks.serving import MODEL, Configuration, serving
from gistgate.vllm import metrics
from gistgate.vllm import metrics as client
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
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    options = ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4"]
    with serving(Configuration(place / "target", speculation, value, options=options), cache / "log") as address:
        yield address


def complete(address: str, **options: Any) -> dict[str, Any]:
    """An answer of 40 tokens."""
    body = {"model": MODEL, "prompt": [60, 61, 62] * 6, "max_tokens": 40, "temperature": 0, **options}
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
