"""Differences of scores: what is refused, and tables of losses and gains at given rates."""

import numpy as np
import pytest

from gistgate.certificates.bounds import checked, expected_table, spread_out
from gistgate.core.utils import UserError


def test_differences_become_one_row_of_floats():
    found = checked([[True, False], [False, False]])
    assert found.dtype == float and found.tolist() == [1.0, 0.0, 0.0, 0.0]


def test_a_difference_outside_is_named_and_one_at_the_edge_is_not():
    with pytest.raises(UserError, match=r"^A difference of scores is 1\.5, outside \[-1, 1\]"):
        checked([1.0, -1.0, 1.5])
    with pytest.raises(UserError, match=r"params\.yaml\)\.$"):
        checked([float("nan")])
    with pytest.raises(UserError, match=r"^A bound needs at least one prompt"):
        checked([])


@pytest.mark.parametrize(
    "loss, discordance, n, table",
    [
        (0.1, 0.3, 10, (2, 1)),  # whole numbers, which rounding must not move
        (0.1, 0.3, 15, (3, 1)),  # 3.0 and 1.5
        (0.05, 0.1, 10, (1, 0)),  # 0.75 and 0.25
        (-0.1, 0.3, 10, (1, 2)),
        (0.2, 0.1, 10, (2, 0)),  # more loss than discordance
        (0.01, 1.0, 1, (1, 0)),  # 0.505 and 0.495
        (0.0, 1.0, 5, (3, 2)),
        (0.0, 1.2, 5, (3, 2)),  # no more gains than prompts that are left
    ],
)
def test_tables_are_rounded_against_the_loose_rule(loss, discordance, n, table):
    assert expected_table(loss, discordance, n) == table


def test_losses_and_gains_alternate_over_all_prompts():
    assert spread_out(2, 2, 8).tolist() == [-1.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0]
    assert spread_out(1, 0, 4).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert spread_out(0, 3, 3).tolist() == [-1.0, -1.0, -1.0]
    for losses in range(8):
        d = spread_out(losses, 7 - losses, 21)
        assert ((d > 0).sum(), (d < 0).sum()) == (losses, 7 - losses)
        assert np.flatnonzero(d).tolist() == [0, 3, 6, 9, 12, 15, 18]
