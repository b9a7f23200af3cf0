"""Few rounds have a range and many have a bootstrap, and the result says which."""

from __future__ import annotations

import pytest

from benchmarks.intervals import FEWEST, over_rounds, ratio_over_rounds
from benchmarks.load import Round, Waited
from benchmarks.serving import against, figure
from gistgate.observing.intervals import ratio_of_sums


def test_few_rounds_show_the_lowest_and_the_highest():
    found = ratio_over_rounds([2.0, 4.0, 9.0], [1.0, 4.0, 3.0])
    assert found == {"mean": 15 / 8, "low": 1.0, "high": 3.0, "kind": "range"}
    one = ratio_over_rounds([3.0], [2.0])
    assert one == {"mean": 1.5, "low": 1.5, "high": 1.5, "kind": "range"}


def test_enough_rounds_have_the_bootstrap_of_the_other_benchmarks():
    reference, own = [2.0 + place % 3 for place in range(FEWEST)], [1.0 + place % 2 for place in range(FEWEST)]
    assert ratio_over_rounds(reference, own) == {**ratio_of_sums(reference, own).as_dict(), "kind": "bootstrap"}


def test_a_figure_of_several_columns_takes_them_round_by_round():
    columns = {"a": [1.0, 2.0], "b": [3.0, 5.0]}
    found = over_rounds(lambda seen: seen["a"].sum(-1) + seen["b"].sum(-1), columns)
    assert found == {"mean": 11.0, "low": 4.0, "high": 7.0, "kind": "range"}


@pytest.mark.parametrize(("rounds", "said"), [(3, "lowest to highest round"), (FEWEST, "90 % bootstrap interval")])
def test_the_figure_of_serving_says_what_is_shaded(rounds: int, said: str):
    ran = [Round(seconds, [Waited(30, 0.1, 0.5)]) for seconds in range(1, rounds + 1)]
    level = {"plain": against(ran, ran), "gate": against(ran, ran[::-1])}
    assert said in figure({"1 users": level}).axes[0].get_title()
