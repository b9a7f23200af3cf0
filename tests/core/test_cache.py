"""The growing cache holds what the stock one holds, forgets its tail, and hands rows out and in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from gistgate.core.reader import (
    GrowingLayer,
    Reader,
    RowCache,
    join_rows,
    last_in_use,
    left_padded,
    new_cache,
    right_aligned,
    take_row,
)
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
    joined, mask = join_rows(rows, [4, 2, 0]), right_aligned([4, 2, 0], keys.device)
    assert mask is not None and mask.tolist() == [[True] * 4, [False, False, True, True], [False] * 4]
    assert torch.equal(joined.layers[0].keys[0], keys[0]) and torch.equal(
        joined.layers[0].values[1, :, 2:], values[1, :, :2]
    )
    assert not joined.layers[0].keys[1, :, :2].any()
    assert join_rows([RowCache([]), RowCache([])], [0, 0]).get_seq_length() == 0
    assert right_aligned([3, 3], keys.device) is None


def test_the_last_slots_in_use_are_found_behind_holes():
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    assert last_in_use(mask, 2)[0].tolist() == [2, 3] and last_in_use(mask, 3)[0].tolist() == [0, 2, 3]
    assert last_in_use(mask, 2)[1, -1] == 1 and last_in_use(mask, 6).shape == (2, 6)
    assert last_in_use(torch.ones(2, 0, dtype=torch.bool), 3).tolist() == [[0, 0, 0], [0, 0, 0]]


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


@pytest.mark.parametrize("kind", SIZES)
def test_rows_come_in_beside_others_and_leave_their_room_behind(kind: str):
    """One row leaves with the longest text, two come in, one of them remembered; all go on as if they were alone."""
    model = pair(kind)[0]
    long, short, new, known = prompts(60, 11, 20, 9, seed=3)
    reader, memory = Reader(model, 2), Reader(model, 1)
    with torch.inference_mode():
        reader.read(*left_padded([long[:50], short[:5]], model.device), keep=1)
        reader.read(torch.tensor([long[50:54], short[5:9]]), None, keep=1)
        reader.keep(4, [4, 2])
        reader.select([1])
        assert (reader.known, reader.slots) == ([7], 7)
        memory.read(torch.tensor([known[:6]]), None, keep=1)
        reader.admit([new, known], [RowCache([]), *memory.snapshot([0])], [0, 5])
        assert (reader.known, reader.slots) == ([7, 19, 8], 19)
        texts = [short, new, known]
        z = reader.read(*left_padded(reader.unread(texts), model.device), keep=1)[:, -1]
        for row, text in enumerate(texts):
            torch.testing.assert_close(z[row], model(torch.tensor([text])).logits[0, -1], atol=1e-3, rtol=0)


def test_rows_beside_those_that_have_read_nothing_wait_for_them():
    reader, texts = Reader(pair("llama")[0], 2), prompts(4, 5, 3)
    reader.admit(texts[2:], [RowCache([])], [0])
    assert (reader.known, reader.slots, reader.unread(texts)) == ([0, 0, 0], 0, texts)
