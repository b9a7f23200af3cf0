"""FAISS in front of the stored keys finds nearly what the exact search finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gistgate.errors import UserError
from gistgate.retrieval.search import ExactIndex

faiss = pytest.importorskip("faiss")
from gistgate.retrieval.approximate import FaissIndex, fill, new_index, read_index  # noqa: E402


def low_rank(num: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(num, 6, generator=generator) @ torch.randn(6, 16, generator=generator)
    return torch.nn.functional.normalize(mixed, dim=-1).half()


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_neighbours_are_nearly_the_exact_ones_and_a_file_keeps_them(kind, tmp_path: Path):
    keys = low_rank(3000)
    index = fill(new_index(kind, 3000, 16), keys[:2000], keys.split(1000))
    faiss.write_index(index, str(tmp_path / "index"))
    queries = keys[::100].float()
    exact = ExactIndex(keys).search(queries, 8)[1]
    for one in (index, read_index(tmp_path / "index")):
        cosines, found = FaissIndex(one, keys, effort=64, refine=16).search(queries, 8)
        hits = sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True))
        assert hits / exact.numel() >= 0.9 and bool((cosines.diff(dim=-1) <= 0).all())


def test_an_index_that_does_not_fit_is_refused(tmp_path: Path):
    keys = low_rank(500)
    index = fill(new_index("hnsw", 500, 16), keys, [keys])
    with pytest.raises(UserError, match="holds 500 keys of width 16, the datastore 499"):
        FaissIndex(index, keys[:-1])
    faiss.write_index(index, str(tmp_path / "index"))
    (tmp_path / "index").write_bytes((tmp_path / "index").read_bytes()[:200])
    with pytest.raises(UserError, match="damaged or no FAISS index"):
        read_index(tmp_path / "index")
