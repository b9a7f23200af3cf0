"""The benchmark of neighbours: real keys first, synthetic ones near them, never all states at once, true recall."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gistgate.optional.retrieval.projection import Projection

faiss = pytest.importorskip("faiss")
from pipeline.studies.retrieval import bench_search as retrieval  # noqa: E402

REAL = torch.randn(90, 6, generator=torch.Generator().manual_seed(0)) @ torch.randn(
    6, 16, generator=torch.Generator().manual_seed(1)
)
PROJECTION = Projection.compose(torch.zeros(16), REAL.std(0), torch.eye(16), torch.zeros(16))


def source() -> retrieval.Source:
    return retrieval.Source(PROJECTION, lambda: iter(REAL.split(30)), PROJECTION(REAL[::9] + 0.01))


def test_keys_are_the_real_ones_then_moved_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[int] = []

    class Counting(Projection):
        def __call__(self, states: Tensor) -> Tensor:
            seen.append(len(states))
            return super().__call__(states)

    monkeypatch.setattr(retrieval, "CHUNK", 50)
    one = source()
    one.projection = Counting(PROJECTION.weight, PROJECTION.bias)
    keys, rate = one.write(tmp_path / "keys", 400)
    assert one.real_keys == 90 and rate > 0 and max(seen) <= 50 and sum(seen) == 400
    torch.testing.assert_close(keys[:90], PROJECTION(REAL).half())
    nearest = (keys[90:].float() @ keys[:90].float().T).max(1).values
    assert float(nearest.median()) > 0.9 and float(nearest.min()) < 0.9999
    fewer, _ = source().write(tmp_path / "fewer", 40)
    assert torch.equal(fewer, keys[:40])


def test_recall_is_against_the_exact_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    one = source()
    keys, _ = one.write(tmp_path / "keys", 1500)
    found = retrieval.measure(keys, one.queries, ["ivf", "hnsw"])
    assert found["exact"]["recall"] == 1 and found["exact"]["bytes"] == 4 * 1500 * 16
    assert found["exact"]["round_ms"] == pytest.approx(20 * found["exact"]["ms_batch_1"])
    for kind in ("ivf", "hnsw"):
        assert found[kind]["bytes"] == found[kind]["index_bytes"] + 2 * 1500 * 16
        assert max(point["recall"] for point in found[kind]["curve"]) > 0.9
    by_refine = {point["refine"]: point["recall"] for point in found["ivf"]["curve"] if point["effort"] == 256}
    assert by_refine[4] <= by_refine[16] <= by_refine[64]

    class Half:
        def search(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
            return torch.zeros(len(queries), k), torch.arange(k).expand(len(queries), k)

    truth = torch.arange(8).expand(len(one.queries), 8).clone()
    truth[:, 4:] += 100
    assert retrieval.quality(Half(), one.queries, truth)["recall"] == 0.5


def test_synthetic_states_come_in_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retrieval, "CHUNK", 64)
    parts: Iterator[Tensor] = retrieval.synthetic(REAL, 200)
    assert [len(part) for part in parts] == [64, 64, 64, 8]
