"""What a GPU records: on stand-ins of its graphs, since the order of calls matters and no test may
need a GPU.
"""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gistgate.compiled.program import Captured, UnsupportedError


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was called in which order; a graph's replay runs nothing."""
    seen: list[str] = []

    @contextmanager
    def graph(*_: Any, **__: Any) -> Any:
        seen.append("capture")
        yield
        seen.append("captured")

    stream = SimpleNamespace(wait_stream=lambda _other: None)
    stand_ins = {
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: seen.append("replay")),
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _stream: nullcontext(),
        "device": lambda _device: nullcontext(),
        "graph": graph,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: seen.append("clear"), raising=False
    )
    return seen


def test_a_graph_records_no_scratch_memory_that_others_give_back(calls: list[str]) -> None:
    def program(*_tensors: Tensor) -> tuple[Tensor, ...]:
        calls.append("program")
        return (torch.zeros(1),)

    Captured(program, [], [torch.ones(2)])
    assert calls == ["program"] * Captured.warm_ups + [
        "clear",
        "capture",
        "program",
        "captured",
        "clear",
    ]


def test_a_replay_reads_fresh_inputs_and_memory_where_it_lies(calls: list[str]) -> None:
    memory, read = torch.zeros(2), []

    def program(kept: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        read.append((kept.data_ptr(), ids))
        return (ids,)

    captured = Captured(program, [memory], [torch.ones(2)])
    (out,) = captured(memory, torch.tensor([3.0, 4.0]))
    assert calls[-1] == "replay" and out.tolist() == [3.0, 4.0]
    assert {place for place, _ in read} == {memory.data_ptr()}


def test_what_cannot_be_recorded_is_said_and_leaves_no_scratch_memory(calls: list[str]) -> None:
    def program(*_tensors: Tensor) -> tuple[Tensor, ...]:
        if "capture" in calls:
            raise RuntimeError("operation not permitted when stream is capturing")
        return (torch.zeros(1),)

    with pytest.raises(UnsupportedError, match="it cannot be captured .*not permitted"):
        Captured(program, [], [torch.ones(2)])
    assert calls[-1] == "clear"
