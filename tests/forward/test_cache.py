"""The growing cache holds what the stock one holds, forgets its tail, and hands rows out and in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from gistgate.forward.cache import GrowingLayer, RowCache, join_rows, new_cache, take_row
from gistgate.forward.reader import Reader, left_padded
from tests.architectures import SIZES, pair, prompts


def states(num: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, num, 4, generator=generator), torch.randn(2, 3, num, 4, generator=generator)


def test_growing_and_forgetting_equals_the_stock_cache(monkeypatch: pytest.MonkeyPatch):
    """Room runs out in the middle, exactly at the end, and right after forgetting."""
    monkeypatch.setattr(GrowingLayer, "spare", 3)
    ours, stock = new_cache(), DynamicCache()
    for step, (new, forget) in enumerate([(2, 0), (3, 1), (1, 1), (5, 4), (6, 0), (1, 11), (9, 0), (4, 13), (3, 0)]):
        for layer in range(2):
            keys, values = states(new, 10 * step + layer)
            got, want = ours.update(keys, values, layer), stock.update(keys, values, layer)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
            ours.layers[layer].drop_last(forget)
            if forget:
                stock.layers[layer].crop(-forget)
        assert ours.get_seq_length() == stock.get_seq_length()
    assert ours.get_seq_length() == 4


def test_selected_rows_go_on_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GrowingLayer, "spare", 3)
    cache = new_cache()
    keys, values = states(4, 0)
    cache.update(keys, values, 0)
    cache.layers[0].drop_last(1)
    cache.layers[0].select(torch.tensor([1]))
    more, _ = states(2, 1)
    got, _ = cache.update(more[1:], more[1:], 0)
    assert torch.equal(got, torch.cat([keys[1:, :, :3], more[1:]], dim=2))


def test_a_copied_row_does_not_change_when_the_cache_goes_on():
    cache = new_cache()
    keys, values = states(4, 0)
    cache.update(keys, values, 0)
    row = take_row(cache, 1, torch.tensor([0, 2, 3]))
    assert row.length == 3 and row.num_bytes == 2 * 3 * 3 * 4 * 4
    cache.layers[0].drop_last(3)
    cache.update(*states(3, 5), 0)
    assert torch.equal(row.layers[0][0], keys[1][:, [0, 2, 3]]) and torch.equal(
        row.layers[0][1], values[1][:, [0, 2, 3]]
    )


def test_rows_of_unequal_length_are_joined_to_the_right():
    whole = new_cache()
    keys, values = states(4, 0)
    whole.update(keys, values, 0)
    rows = [
        take_row(whole, 0, torch.arange(4)),
        take_row(whole, 1, torch.arange(2)),
        RowCache(take_row(whole, 1, torch.arange(4)).layers),
    ]
    joined, mask = join_rows(rows, [4, 2, 0])
    assert mask.tolist() == [[True] * 4, [False, False, True, True], [False] * 4]
    assert torch.equal(joined.layers[0].keys[0], keys[0]) and torch.equal(
        joined.layers[0].values[1, :, 2:], values[1, :, :2]
    )
    assert not joined.layers[0].keys[1, :, :2].any()
    empty, mask = join_rows([RowCache([]), RowCache([])], [0, 0])
    assert empty.get_seq_length() == 0 and mask.shape == (2, 0)


@pytest.mark.parametrize("kind", SIZES)
def test_a_reader_with_holes_predicts_like_one_without(kind: str):
    """Two rows keep different parts of what was read; what follows must not notice the rest."""
    model = pair(kind)[0]
    first, second = prompts(9, 14, seed=3)
    reader = Reader(model, 2)
    with torch.inference_mode():
        reader.read(*left_padded([first[:5], second[:8]], model.device), keep=1)
        reader.read(torch.tensor([first[5:8], second[8:11]]), None, keep=1)
        reader.keep(3, [1, 2])
        assert reader.known == [6, 10]
        rest = reader.unread([first, second])
        z = reader.read(*left_padded(rest, model.device), keep=1)[:, -1]
        assert reader.known == [9, 14]
        for row, text in enumerate((first, second)):
            plain = model(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(z[row], plain, atol=1e-3, rtol=0)


def test_a_single_row_has_no_holes():
    model = pair("llama")[0]
    reader = Reader(model, 1)
    with torch.inference_mode():
        reader.read(torch.tensor([[5, 6, 7, 8]]), None, keep=4)
        reader.keep(3, [1])
        reader.read(torch.tensor([[5, 6]]), None, keep=1)
        reader.keep(1, [0])
    assert (reader.slots, reader.known, reader.mask) == (3, [3], None)
