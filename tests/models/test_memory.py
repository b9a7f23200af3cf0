"""Memory that models need one after another, and what is free in a container."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gistgate.core.utils import UserError
from gistgate.models import loading as memory
from gistgate.models.loading import Size, check_memory, free_memory

GB = 1_000_000_000


def test_models_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _device: 5 * GB)
    check_memory({"target": Size(4 * GB, 4 * GB), "draft": None})
    with pytest.raises(UserError, match=r"need 6.0 GB \(target 4.0 GB, draft 2.0 GB\), and 5.0 GB are free"):
        check_memory({"target": Size(4 * GB, 4 * GB), "draft": Size(2 * GB, 2 * GB)})


def test_models_are_unpacked_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = Size(3 * GB, 9 * GB), Size(1 * GB, 3 * GB)
    monkeypatch.setattr(memory, "free_memory", lambda _device: 9 * GB)
    check_memory({"target": target, "draft": draft})
    more = r"need 10.0 GB \(draft 1.0 GB, target 3.0 GB, 6.0 GB more while a GGUF file is unpacked\), and 9.0 GB are"
    with pytest.raises(UserError, match=more):
        check_memory({"draft": draft, "target": target})


def test_a_container_has_what_its_limit_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GROUP", tmp_path)
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert free_memory(torch.device("cpu")) == 600
    (tmp_path / "memory.stat").write_text("anon 150\nfile 250\nactive_file 30\ninactive_file 220\n")
    assert free_memory(torch.device("cpu")) == 820


def test_what_pytorch_keeps_on_a_gpu_is_free_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that loaded the pair before the stage leaves its memory with PyTorch's allocator."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (300, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _device: 120)
    assert free_memory(torch.device("cuda")) == 680
