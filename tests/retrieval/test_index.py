"""FAISS in front of the stored keys finds nearly what the exact search finds."""

import sys
from pathlib import Path

import pytest
import torch

from gistgate.core.utils import UserError
from gistgate.retrieval import index as choosing
from gistgate.retrieval.index import (
    ExactIndex,
    FaissIndex,
    fill,
    fits_exactly,
    index_for,
    new_index,
)
from gistgate.retrieval.sense import SenseDrafter
from gistgate.retrieval.store import Datastore
from pipeline.retrieval import index_writer
from tests.architectures import pair, prompts
from tests.retrieval.test_sense import store_of

faiss = pytest.importorskip("faiss")


def low_rank(num: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(num, 6, generator=generator) @ torch.randn(6, 16, generator=generator)
    return torch.nn.functional.normalize(mixed, dim=-1).half()


def test_neighbours_are_nearly_the_exact_ones_and_a_file_keeps_them(tmp_path: Path):
    keys = low_rank(3000)
    index = fill(new_index(3000, 16), keys)
    faiss.write_index(index, str(tmp_path / "index"))
    queries = keys[::100].float()
    exact = [ExactIndex(keys).search(query, 8)[1].tolist() for query in queries]
    for one in (index, faiss.read_index(str(tmp_path / "index"))):
        searched = FaissIndex(one, keys)
        searched.effort, searched.refine = 64, 16
        hits = 0
        for query, nearest in zip(queries, exact, strict=True):
            cosines, numbers = searched.search(query, 8)
            hits += len({*numbers.tolist()} & {*nearest})
            assert bool((cosines.diff() <= 0).all())
        assert hits / (8 * len(exact)) >= 0.9


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of so many keys that its folder has an index."""
    monkeypatch.setitem(choosing.EXACT_KEYS, "cpu", 10)
    store = store_of("llama", prompts(5, 17, 2, 10, 6, 8, 4, 12))
    store.save(tmp_path / "store", index_writer(store, new_index(*store.keys.shape)))
    return tmp_path / "store"


def test_a_large_store_is_searched_by_its_index_and_a_small_one_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Datastore.load(folder, pair("llama")[0])
    assert isinstance(index_for(store), FaissIndex)
    assert isinstance(SenseDrafter(store).index, FaissIndex)
    assert isinstance(index_for(store_of("llama", prompts(5))), ExactIndex), (
        "what is in memory has no index file"
    )
    query = store.keys[7].float()
    assert (
        index_for(store).search(query, 3)[1][0]
        == ExactIndex(store.keys).search(query, 3)[1][0]
        == 7
    )
    monkeypatch.setattr(choosing, "find_spec", lambda name: None)
    with pytest.warns(UserWarning, match=r"'\.\[retrieval\]'"):
        assert isinstance(index_for(store), ExactIndex)
    monkeypatch.setitem(choosing.EXACT_KEYS, "cpu", 10_000)
    assert isinstance(index_for(store), ExactIndex) and fits_exactly(len(store.keys))


def test_what_an_index_lacks_is_said_before_states_are_computed(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="width 50"):
        new_index(20_000, 50)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UserError, match=r"'\.\[retrieval\]'"):
        new_index(20_000, 64)


def test_exact_search_finds_the_nearest():
    keys = torch.nn.functional.normalize(
        torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=-1
    ).half()
    for number in (3, 41):
        query = keys[number].float()
        cosines, numbers = ExactIndex(keys).search(query, 4)
        assert numbers[0] == number
        torch.testing.assert_close(cosines, (keys.float() @ query).topk(4).values)
