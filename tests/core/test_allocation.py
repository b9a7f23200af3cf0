"""Freed memory stays with the process where models decode on a processor."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys

import pytest

from gistgate.core.attention import OWN_CHOICE, keep_freed_memory
from tests.tiny import tiny_pair

GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns large pieces at once")
FAULTS = """
import json, resource, torch
{before}
x = torch.zeros(1 << 24)
def faults():
    first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        x + 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first
faults(), faults()
print(json.dumps(faults()))
"""
PAGES = 5 * (1 << 26) // 4096
"""Pages of five results of 64 MiB."""


def faults(before: str, **environment: str) -> int:
    """Page faults of five large results, in a process of its own."""
    own = {name: value for name, value in os.environ.items() if name not in OWN_CHOICE}
    own |= {"MALLOC_ARENA_MAX": "1", **environment}
    ran = subprocess.run([sys.executable, "-c", FAULTS.format(before=before)], env=own, capture_output=True, check=True)
    return int(json.loads(ran.stdout))


@GLIBC
def test_large_results_cost_no_page_faults_any_more():
    kept = faults("from gistgate.core.attention import keep_freed_memory; assert keep_freed_memory()")
    assert kept < PAGES // 20
    assert faults("") > PAGES // 2, "without it every page of every result is filled anew"


@GLIBC
def test_a_choice_of_the_user_stays():
    before = "from gistgate.core.attention import keep_freed_memory; assert not keep_freed_memory()"
    assert faults(before, MALLOC_MMAP_THRESHOLD_="65536") > PAGES // 2


@pytest.mark.parametrize(("device", "libc"), [("cuda", "glibc"), ("cpu", "")])
def test_nothing_is_changed_elsewhere(device: str, libc: str, monkeypatch: pytest.MonkeyPatch):
    for name in OWN_CHOICE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: pytest.fail("the C library was asked"))
    assert not keep_freed_memory(device)


def test_loading_for_a_processor_asks_for_it(tmp_path, monkeypatch: pytest.MonkeyPatch):
    from pipeline.pair import pair as loading
    from pipeline.pair.pair import ModelSource

    tiny_pair()[0].save_pretrained(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("gistgate.models.loading.keep_freed_memory", lambda device: asked.append(str(device)))
    loading.load_model(ModelSource(str(tmp_path), dtype="float32", device="cpu"))
    assert asked == ["cpu"]
