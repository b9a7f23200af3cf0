"""CSD: pairs that were refused often, where the target finds them not too unlikely; and the table behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.files import save_tensors
from gistgate.core.rule import State, settle
from gistgate.core.utils import UserError
from gistgate.rules.history import CAPACITY, Csd, PairCounts, met_so_far
from tests.blocks import SPLIT, SURE, TORN, accepted, block, random_block


def counted(pairs: dict[tuple[int, int], int], capacity: int = 100) -> PairCounts:
    table = PairCounts(capacity)
    for (x, t), count in pairs.items():
        table.add(torch.full((count,), x), torch.full((count,), t))
    return table


def known(table: PairCounts, *pairs: tuple[int, int]) -> list[int]:
    x, t = torch.tensor(pairs).T
    return table.look_up(x, t).tolist()


def rounds(rule: Csd, *blocks: Block) -> list[list[int]]:
    """Accepted lengths, block after block, as the decoder goes on."""
    state: State = {}
    lengths = []
    for judged in blocks:
        acceptance = settle(rule, judged, state)
        state = rule.advance(judged, acceptance, state)
        lengths.append(acceptance.length.tolist())
    return lengths


@pytest.mark.parametrize("count, expected", [(0, False), (6, False), (7, True)])
def test_a_pair_has_to_be_known_well(count: int, expected: bool):
    rule = Csd(counts=counted({(1, 0): count, (2, 0): 99}))
    assert rule.accept(block(TORN, SURE[0], draft=[1]), {}).tolist() == [[expected]]


@pytest.mark.parametrize("gap, expected", [(-4.60, True), (-4.61, False)])
def test_the_target_must_not_find_it_too_unlikely(gap: float, expected: bool):
    """ln 0.01 = -4.605."""
    rule = Csd(counts=counted({(1, 0): 99}))
    assert rule.accept(block([1.0, 1.0 + gap, -9.0], SURE[0][:3], draft=[1]), {}).tolist() == [[expected]]


def test_every_position_is_compared_with_its_own_best_token():
    """First token 0 is the best, then token 1 by a hair."""
    second = [2.4, 2.5, 2.3, -9.0]
    judged = block(SPLIT, second, SPLIT, draft=[1, 0])
    assert Csd(counts=counted({(1, 0): 9, (0, 1): 9}), tau_c=0.5).accept(judged, {}).tolist() == [[True, True]]
    assert Csd(counts=counted({(1, 0): 9, (0, 0): 9}), tau_c=0.5).accept(judged, {}).tolist() == [[True, False]]
    far = block(SPLIT, [9.0, 7.0, 0.0, 0.0], SPLIT, draft=[1, 1])
    assert Csd(counts=counted({(1, 0): 9}), tau_c=0.5).accept(far, {}).tolist() == [[True, False]]


def test_an_online_table_counts_each_pair_with_its_own_best_token():
    second = [2.4, 2.5, 2.3, -9.0]
    judged = block(SPLIT, second, SPLIT, SPLIT, draft=[2, 2, 2])
    assert met_so_far(judged).tolist() == [[1, 1, 2]]


def test_a_pair_has_a_direction():
    rule = Csd(counts=counted({(0, 1): 99}))
    assert rule.accept(block(SPLIT, SPLIT, draft=[1]), {}).tolist() == [[False]]


def test_above_1_not_even_a_tie_passes():
    judged = block(TORN, SURE[0], draft=[1])
    assert Csd(counts=counted({(1, 0): 99}), tau_c=1.0).accept(judged, {}).tolist() == [[True]]
    assert Csd(counts=counted({(1, 0): 99}), tau_c=1.0001).accept(judged, {}).tolist() == [[False]]


def test_a_frozen_table_learns_nothing():
    table = counted({(1, 0): 7})
    rule = Csd(counts=table)
    rounds(rule, *[random_block(seed) for seed in range(3)])
    assert len(table) == 1 and known(table, (1, 0)) == [7]


def test_an_online_table_counts_before_it_tests():
    """The paper: the pair passes at its occurrence lambda + 1."""
    judged = block(TORN, SURE[2], draft=[1])
    assert rounds(Csd(table="online", min_count=2), *[judged] * 4) == [[0], [0], [1], [1]]


def test_within_a_block_the_occurrences_before_count_as_well():
    rule = Csd(table="online", min_count=1, counts=counted({(1, 0): 1}))
    assert rounds(rule, block(TORN, TORN, SURE[2], draft=[1, 1])) == [[2]]
    assert known(rule.pairs, (1, 0)) == [3]
    # the second occurrence would pass, but the first one ends the block and is the only one that is met
    rule = Csd(table="online", min_count=1)
    assert rule.accept(block(TORN, TORN, SURE[2], draft=[1, 1]), {}).tolist() == [[False, True]]
    assert rounds(rule, block(TORN, TORN, SURE[2], draft=[1, 1])) == [[0]]
    assert known(rule.pairs, (1, 0)) == [1]


def test_only_refusals_that_were_met_are_counted():
    """Neither a match, nor what lies behind the end of the accepted prefix or of the draft."""
    rule = Csd(table="online", tau_c=2.0)
    rounds(rule, block(SURE[2], TORN, SPLIT, SURE[0], draft=[2, 1, 1]), block(TORN, SPLIT, TORN, draft=[0, 2], valid=1))
    assert len(rule.pairs) == 1 and known(rule.pairs, (1, 0), (2, 2)) == [1, 0]


def test_without_a_draft_nothing_is_counted():
    rule = Csd(table="online")
    assert rounds(rule, block(TORN, draft=[])) == [[0]] and len(rule.pairs) == 0


def test_when_sampling_a_refusal_is_one_of_the_native_test():
    refused = block(TORN, TORN, draft=[0], q=[[1.0, 0.0, 0.0, 0.0]], uniforms=[0.99, 0.5], greedy=False)
    assert rounds(Csd(table="online", min_count=1), refused, refused) == [[0], [1]]


def test_what_the_native_test_passes_is_no_occurrence():
    """The same pair twice, kept by a small number and refused by a large one."""
    twice = block(TORN, TORN, TORN, draft=[1, 1], uniforms=[0.01, 0.99, 0.5], greedy=False)
    rule = Csd(table="online", min_count=1)
    assert rounds(rule, twice, twice) == [[1], [2]] and known(rule.pairs, (1, 0)) == [2]


def test_rows_of_a_batch_see_the_table_as_the_round_found_it():
    judged = random_block(batch=50)
    rule = Csd(table="online", min_count=0, counts=counted({(1, 0): 1}))
    before = accepted(rule, judged)
    rule.advance(judged, before, {})
    assert len(rule.pairs) > 1


def test_open_and_online_keeps_what_is_allowed():
    judged = random_block(batch=300)
    free = accepted(Csd(table="online", min_count=0, tau_c=1e-30), judged).length
    strict = accepted(Csd(table="online", tau_c=2.0), judged).length
    assert (free >= strict).all() and (free > strict).any()


@pytest.mark.parametrize("wrong", [{}, {"table": "frozen", "tau_c": 0.5}])
def test_a_frozen_table_needs_counts(wrong: dict[str, Any]):
    with pytest.raises(UserError, match=r"frozen table needs counts.*table='online'.*save"):
        Csd(**wrong)


def test_counts_of_a_larger_vocabulary_are_refused(tmp_path: Path):
    counted({(7, 0): 9}).save(tmp_path / "pairs.safetensors")
    rule = Csd(counts=str(tmp_path / "pairs.safetensors"))
    with pytest.raises(UserError, match="token id 7"):
        rule.accept(random_block(vocabulary=6), {})
    assert rule.accept(random_block(vocabulary=8), {}).dtype == torch.bool


def test_the_way_from_counting_to_a_frozen_table(tmp_path: Path):
    counting = Csd(table="online", tau_c=2.0)
    blocks = [random_block(seed, batch=100) for seed in range(3)]
    exact = [[int(length) for length in judged.strict.long().cumprod(-1).sum(-1)] for judged in blocks]
    assert rounds(counting, *blocks) == exact
    counting.pairs.save(tmp_path / "pairs.safetensors")
    rule = Csd(counts=tmp_path / "pairs.safetensors", min_count=2)
    assert (accepted(rule, blocks[0]).length > blocks[0].strict.long().cumprod(-1).sum(-1)).any()


def test_counts_agree_with_a_dictionary():
    generator = torch.Generator().manual_seed(0)
    table, wanted = PairCounts(), dict[tuple[int, int], int]()
    for _ in range(30):
        x, t = torch.randint(12, (2, 20), generator=generator)
        table.add(x, t)
        for pair in zip(x.tolist(), t.tolist(), strict=True):
            wanted[pair] = wanted.get(pair, 0) + 1
        assert len(table) == len(wanted) and (table.keys.diff() > 0).all()
    every = [(x, t) for x in range(13) for t in range(13)]
    assert known(table, *every) == [wanted.get(pair, 0) for pair in every]


def test_large_ids_do_not_run_into_each_other():
    table = counted({(262143, 1): 2, (1, 262143): 3})
    assert known(table, (262143, 1), (1, 262143), (262143, 262143)) == [2, 3, 0]


def test_a_full_table_forgets_what_was_met_longest_ago():
    table = counted({(1, 0): 9, (2, 0): 1, (3, 0): 1}, capacity=3)
    table.add(torch.tensor([1]), torch.tensor([0]))
    table.add(torch.tensor([4]), torch.tensor([0]))
    assert len(table) == 3 and known(table, (1, 0), (2, 0), (3, 0), (4, 0)) == [10, 0, 1, 1]
    table.add(torch.arange(20), torch.zeros(20))
    assert len(table) == 3


def test_a_table_is_saved_with_its_order(tmp_path: Path):
    path = tmp_path / "pairs.safetensors"
    counted({(1, 0): 9, (2, 0): 1, (3, 0): 1}).save(path)
    whole = PairCounts.load(path)
    assert known(whole, (1, 0), (2, 0), (3, 0)) == [9, 1, 1] and whole.num_ids == 4


def test_what_is_met_after_reading_is_newer_than_all_that_was_read(tmp_path: Path):
    path = tmp_path / "pairs.safetensors"
    counted({(1, 0): 1, (2, 0): 1, (3, 0): 1, (4, 0): 1}).save(path)
    table = PairCounts.load(path)
    table.capacity = 4
    for pair in ((1, 0), (9, 9)):
        table.add(torch.tensor([pair[0]]), torch.tensor([pair[1]]))
    assert known(table, (1, 0), (2, 0), (9, 9)) == [2, 0, 1]


def test_a_table_larger_than_usual_is_read_whole(tmp_path: Path):
    num = CAPACITY + 10
    table = PairCounts(num)
    table.add(torch.arange(num), torch.zeros(num))
    table.save(tmp_path / "pairs.safetensors")
    read = PairCounts.load(tmp_path / "pairs.safetensors")
    assert len(read) == num and known(read, (0, 0), (num - 1, 0)) == [1, 1]


def test_stricter_copies_share_a_table_that_is_read_once(tmp_path: Path):
    path = tmp_path / "pairs.safetensors"
    counted({(1, 0): 9}).save(path)
    rule = Csd(counts=path)
    path.unlink()
    assert rule.changed(tau_c=0.5).pairs is rule.pairs and rule.counts == path
    learning = Csd(table="online")
    assert learning.changed(tau_c=0.5).pairs is learning.pairs and learning.changed(tau_c=0.5).tau_c == 0.5


@pytest.mark.parametrize("pair, expected", [((7, 2), 8), ((2, 7), 8), ((0, 0), 1)])
def test_the_largest_id_of_a_table_is_known(tmp_path: Path, pair: tuple[int, int], expected: int):
    counted({pair: 1}).save(tmp_path / "pairs.safetensors")
    assert PairCounts.load(tmp_path / "pairs.safetensors").num_ids == expected


def test_a_sixteenth_is_forgotten_at_a_time():
    table = counted({(x, 0): 1 for x in range(64)}, capacity=64)
    assert len(table) == 64  # a full table loses nothing
    table.add(torch.tensor([64]), torch.tensor([0]))
    assert len(table) == 60
    assert known(table, *((x, 0) for x in (0, 4, 5, 64))) == [0, 0, 1, 1]


def test_an_empty_table_is_saved_too(tmp_path: Path):
    PairCounts().save(tmp_path / "pairs.safetensors")
    assert len(PairCounts.load(tmp_path / "pairs.safetensors")) == 0


def test_other_files_are_refused(tmp_path: Path):
    save_tensors(tmp_path / "other.safetensors", {"keys": torch.tensor([1]), "counts": torch.tensor([1])})
    with pytest.raises(UserError, match="no table of pair counts"):
        Csd(counts=str(tmp_path / "other.safetensors"))


def test_a_missing_file_is_noticed_before_decoding(tmp_path: Path):
    with pytest.raises(UserError, match="is missing"):
        Csd(counts=str(tmp_path / "none.safetensors"))


def test_a_table_holds_something():
    with pytest.raises(UserError, match="capacity 0"):
        PairCounts(0)


def test_counting_goes_on_outside_of_inference_mode():
    table = PairCounts()
    with torch.inference_mode():
        table.add(torch.tensor([1]), torch.tensor([0]))
    table.add(torch.tensor([1, 2]), torch.tensor([0, 0]))
    assert known(table, (1, 0), (2, 0)) == [2, 1]
