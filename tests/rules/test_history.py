"""Rules with a memory: CSD and the table of pairs behind it, and the regret budget that follows a
request.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.files import save_tensors
from gistgate.core.request import Row
from gistgate.core.rule import settle
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from gistgate.rules.history import CAPACITY, Csd, PairCounts, RegretBudget
from tests.blocks import SPLIT, SURE, TORN, accepted, block, random_block

SECOND = [2.4, 2.5, 2.3, -9.0]
"""Token 1 is the best by a hair."""


def counted(pairs: dict[tuple[int, int], int], capacity: int = 100) -> PairCounts:
    table = PairCounts(capacity)
    for (x, t), count in pairs.items():
        table.add(torch.full((count,), x), torch.full((count,), t))
    return table


def known(table: PairCounts, *pairs: tuple[int, int]) -> list[int]:
    x, t = torch.tensor(pairs).T
    return table.look_up(x, t).tolist()


def rounds(rule: Any, *blocks: Block) -> tuple[list[list[int]], list[Row]]:
    """Accepted lengths, block after block, as the decoder goes on; and the rows behind them."""
    rows = [Row(place, [], 0) for place in range(len(blocks[0].draft_ids))]
    lengths = []
    for judged in blocks:
        judged = judged.having(**rule.context(None, ()).fields(judged, rows))
        acceptance = settle(rule, judged)
        rule.advance(judged, acceptance, rows)
        lengths.append(acceptance.length.tolist())
    return lengths, rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pairs.safetensors"


GAP = [[1.0, 1.0 + gap, -9.0] for gap in (-4.60, -4.61)]
"""ln 0.01 = -4.605."""


@pytest.mark.parametrize(
    "pairs, settings, rows, draft, expected",
    [
        ({(2, 0): 99}, {}, [TORN, SURE[0]], [1], [0]),  # a pair has to be known well
        ({(1, 0): 6, (2, 0): 99}, {}, [TORN, SURE[0]], [1], [0]),
        ({(1, 0): 7, (2, 0): 99}, {}, [TORN, SURE[0]], [1], [1]),
        (
            {(1, 0): 99},
            {},
            [GAP[0], SURE[0][:3]],
            [1],
            [1],
        ),  # the target must not find it too unlikely
        ({(1, 0): 99}, {}, [GAP[1], SURE[0][:3]], [1], [0]),
        ({(1, 0): 99}, {"tau_c": 1.0}, [TORN, SURE[0]], [1], [1]),  # above 1 not even a tie passes
        ({(1, 0): 99}, {"tau_c": 1.0001}, [TORN, SURE[0]], [1], [0]),
        ({(0, 1): 99}, {}, [SPLIT, SPLIT], [1], [0]),  # a pair has a direction
        # every position is compared with its own best token
        ({(1, 0): 9, (0, 1): 9}, {"tau_c": 0.5}, [SPLIT, SECOND, SPLIT], [1, 0], [1, 1]),
        ({(1, 0): 9, (0, 0): 9}, {"tau_c": 0.5}, [SPLIT, SECOND, SPLIT], [1, 0], [1, 0]),
        ({(1, 0): 9}, {"tau_c": 0.5}, [SPLIT, [9.0, 7.0, 0.0, 0.0], SPLIT], [1, 1], [1, 0]),
    ],
)
def test_csd_with_a_frozen_table(
    pairs: Any, settings: dict[str, Any], rows: Any, draft: list[int], expected: Any
):
    rule = Csd(counts=counted(pairs), **settings)
    assert rule.accept(block(*rows, draft=draft)).tolist() == [[bool(one) for one in expected]]


def test_a_frozen_table_learns_nothing():
    table = counted({(1, 0): 7})
    rounds(Csd(counts=table), *[random_block(seed) for seed in range(3)])
    assert len(table) == 1 and known(table, (1, 0)) == [7]


def test_an_online_table_counts_before_it_tests():
    """The paper: the pair passes at its occurrence lambda + 1."""
    judged = block(TORN, SURE[2], draft=[1])
    assert rounds(Csd(table="online", min_count=2), *[judged] * 4)[0] == [[0], [0], [1], [1]]


def test_within_a_block_the_occurrences_before_count_as_well():
    twice = block(TORN, TORN, SURE[2], draft=[1, 1])
    rule = Csd(table="online", min_count=1, counts=counted({(1, 0): 1}))
    assert rounds(rule, twice)[0] == [[2]] and known(rule.pairs, (1, 0)) == [3]
    # the second occurrence would pass, but the first one ends the block and is the only one that is
    # met
    rule = Csd(table="online", min_count=1)
    assert rule.accept(twice).tolist() == [[False, True]]
    assert rounds(rule, twice)[0] == [[0]] and known(rule.pairs, (1, 0)) == [1]


def test_only_refusals_that_were_met_are_counted():
    """Neither a match, nor what lies behind the end of the accepted prefix or of the draft."""
    rule = Csd(table="online", tau_c=2.0)
    rounds(
        rule,
        block(SURE[2], TORN, SPLIT, SURE[0], draft=[2, 1, 1]),
        block(TORN, SPLIT, TORN, draft=[0, 2], valid=1),
    )
    assert len(rule.pairs) == 1 and known(rule.pairs, (1, 0), (2, 2)) == [1, 0]
    rule = Csd(table="online")
    assert rounds(rule, block(TORN, draft=[]))[0] == [[0]] and len(rule.pairs) == 0


def test_when_sampling_a_refusal_is_one_of_the_native_test():
    refused = block(
        TORN, TORN, draft=[0], q=[[1.0, 0.0, 0.0, 0.0]], uniforms=[0.99, 0.5], greedy=False
    )
    assert rounds(Csd(table="online", min_count=1), refused, refused)[0] == [[0], [1]]
    # the same pair twice, kept by a small number and refused by a large one: what passes is no
    # occurrence
    twice = block(TORN, TORN, TORN, draft=[1, 1], uniforms=[0.01, 0.99, 0.5], greedy=False)
    rule = Csd(table="online", min_count=1)
    assert rounds(rule, twice, twice)[0] == [[1], [2]] and known(rule.pairs, (1, 0)) == [2]


@pytest.mark.parametrize("wrong", [{}, {"table": "frozen", "tau_c": 0.5}])
def test_a_frozen_table_needs_counts(wrong: dict[str, Any]):
    with pytest.raises(UserError, match=r"frozen table needs counts.*table='online'.*save"):
        Csd(**wrong)


def test_counts_of_a_larger_vocabulary_are_refused(path: Path):
    counted({(7, 0): 9}).save(path)
    rule = Csd(counts=str(path))
    with pytest.raises(UserError, match="token id 7"):
        rule.accept(random_block(vocabulary=6))
    assert rule.accept(random_block(vocabulary=8)).dtype == torch.bool


def test_the_way_from_counting_to_a_frozen_table(path: Path):
    counting = Csd(table="online", tau_c=2.0)
    blocks = [random_block(seed, batch=100) for seed in range(3)]
    exact = [judged.strict.long().cumprod(-1).sum(-1) for judged in blocks]
    assert rounds(counting, *blocks)[0] == [lengths.tolist() for lengths in exact]
    counting.pairs.save(path)
    assert (accepted(Csd(counts=path, min_count=2), blocks[0]).length > exact[0]).any()


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


def test_a_full_table_forgets_what_was_met_longest_ago_a_sixteenth_at_a_time():
    table = counted({(1, 0): 9, (2, 0): 1, (3, 0): 1}, capacity=3)
    for x in (1, 4):
        table.add(torch.tensor([x]), torch.tensor([0]))
    assert len(table) == 3 and known(table, (1, 0), (2, 0), (3, 0), (4, 0)) == [10, 0, 1, 1]
    table.add(torch.arange(20), torch.zeros(20))
    assert len(table) == 3
    table = counted({(x, 0): 1 for x in range(64)}, capacity=64)
    assert len(table) == 64  # a full table loses nothing
    table.add(torch.tensor([64]), torch.tensor([0]))
    assert len(table) == 60 and known(table, *((x, 0) for x in (0, 4, 5, 64))) == [0, 0, 1, 1]


def test_stricter_copies_share_a_table_that_is_read_once(path: Path):
    counted({(1, 0): 9}).save(path)
    rule = Csd(counts=path)
    path.unlink()
    assert rule.changed(tau_c=0.5).pairs is rule.pairs and rule.counts == path
    learning = Csd(table="online")
    assert (
        learning.changed(tau_c=0.5).pairs is learning.pairs
        and learning.changed(tau_c=0.5).tau_c == 0.5
    )


def test_a_saved_table_is_read_whole_in_its_order_and_other_files_are_refused(path: Path):
    table = PairCounts(CAPACITY + 10)
    table.add(torch.arange(CAPACITY + 10), torch.zeros(CAPACITY + 10))
    for written in (table, PairCounts()):
        written.save(path)
        assert len(PairCounts.load(path)) == len(written)
    counted({(1, 0): 9, (2, 0): 1, (3, 0): 1, (0, 4): 1}).save(path)
    read = PairCounts.load(path)
    assert known(read, (1, 0), (2, 0), (3, 0)) == [9, 1, 1] and read.num_ids == 5
    read.capacity = 4
    for x, t in ((1, 0), (9, 9)):
        read.add(torch.tensor([x]), torch.tensor([t]))
    assert known(read, (1, 0), (2, 0), (9, 9)) == [10, 0, 1], "what is met later is newer"
    save_tensors(path, {"keys": torch.tensor([1]), "counts": torch.tensor([1])})
    for other, said in (
        (path, "no table of pair counts"),
        (path.with_name("absent"), "is missing"),
    ):
        with pytest.raises(UserError, match=said):
            Csd(counts=str(other))


# The regret budget

COSTS = [3.0, 2.0, 0.5, -torch.inf]
"""Regret 0 for 0, 1 for 1, 2.5 for 2; 3 is forbidden."""


def whole(*draft: int, valid: int | None = None) -> Block:
    return block(*[COSTS] * (len(draft) + 1), draft=list(draft), valid=valid)


def spent(budget: float, *blocks: Block, **limits: Any) -> tuple[list[int], float]:
    """Accepted lengths of a single request, and what it has spent behind all blocks."""
    lengths, [row] = rounds(RegretBudget(budget, **limits), *blocks)
    return [length for [length] in lengths], pytest.approx(row.statistics.extra["spent"])


OWN_BEST = block(COSTS, [0.0, 4.0, 1.0, -torch.inf], COSTS, draft=[1, 2])
"""Every position is compared with its own best token: regrets 1 and 3."""


@pytest.mark.parametrize(
    "budget, blocks, expected",
    [
        (4.5, [OWN_BEST], ([2], 4.0)),
        (3.5, [OWN_BEST], ([1], 1.0)),
        (1.1, [whole(0, 1, 0, 0, 1)], ([4], 1.0)),  # a match costs nothing
        (
            2.1,
            [whole(1), whole(2), whole(1), whole(1), whole(0, 0)],
            ([1, 0, 1, 0, 2], 2.0),
        ),  # what is spent is gone
        (2.1, [whole(1), whole(2)], ([1, 0], 1.0)),
        (
            1.1,
            [whole(1, 2, 1)],
            ([1], 1.0),
        ),  # nothing is booked behind a refusal, nor behind the end of the draft
        (9.0, [whole(1, 1, valid=1)], ([1], 1.0)),
        (RegretBudget().budget, [whole()], ([0], 0.0)),
    ],
)
def test_what_a_request_spends(
    budget: float, blocks: list[Block], expected: tuple[list[int], float]
):
    assert spent(budget, *blocks) == expected


@pytest.mark.parametrize(
    "limits, draft, expected",
    [
        ({"most": 2}, (1, 0, 1, 0, 1), 4),
        ({"most": 1}, (0, 1, 0, 1), 3),
        ({"share": 0.5}, (1, 0, 0), 3),  # 1 <= 0.5 * 3
        ({"share": 0.5}, (0, 0, 1), 2),  # 1 > 0.5 * 1
        ({"share": 0.5, "most": 1}, (1, 1, 0, 0), 1),
    ],
)
def test_a_block_has_limits_of_its_own(
    limits: dict[str, Any], draft: tuple[int, ...], expected: int
):
    assert spent(99.0, whole(*draft), **limits)[0] == [expected]


@pytest.mark.parametrize("budget", [0.5, 3.0, 1e30])
def test_a_forbidden_token_neither_passes_nor_breaks_the_sum(budget: float):
    for seed in range(4):
        judged = random_block(seed, batch=300)
        [lengths], rows = rounds(RegretBudget(budget), judged)
        assert all(row.statistics.extra["spent"] <= budget for row in rows)
        strict = accepted(make_rule("exact"), judged).length.tolist()
        assert any(length > least for length, least in zip(lengths, strict, strict=True))
