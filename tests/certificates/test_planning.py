"""A plan names the fewest prompts that would do by the bound that decides, before anything is
decoded.
"""

import numpy as np
import pytest

from gistgate.certificates import planning
from gistgate.certificates.bounds import refutes
from gistgate.certificates.fixed_sequence import try_setting
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import Plan, expected_table, fewest, needed_n
from gistgate.core.utils import UserError
from tests.certificates.proofs import spread_out


def test_fewer_prompts_than_asked_for_are_said_with_what_they_cost():
    sentence = Plan(0.05, 0.95).sentence(100, planned=400)
    assert sentence.endswith("There are 100 of the 400 asked for.")


@pytest.mark.parametrize("stop", ["lost", "clear"])
@pytest.mark.parametrize(
    "budget, discordance, loss", [(0.05, 0.0, 0.0), (0.05, 0.1, 0.01), (0.1, 0.1, 0.0)]
)
def test_the_planned_number_certifies_and_a_quarter_less_does_not(stop, budget, discordance, loss):
    n = Plan(budget, 0.95, ternary=False, stop=stop).needed(discordance, loss)

    def certified(prompts: int) -> bool:
        d = spread_out(*expected_table(loss, discordance, prompts), prompts)
        return refutes(d, budget, 0.95)

    assert certified(
        n + n // 10
    )  # counts are whole, so a few numbers above the planned one may fail by rounding
    assert not certified(3 * n // 4)


def test_needed_n():
    """Without a discordant prompt the plan is the binomial one: 0.99^299 < 0.05."""
    assert needed_n(0.01, 0.95, discordance=0.0) in (299, 300)
    assert 900 < needed_n(0.0125, 0.95, discordance=0.05) < 1100
    assert (
        needed_n(0.02, 0.95, 0.05)
        < needed_n(0.02, 0.95, 0.05, loss=0.01)
        < needed_n(0.02, 0.99, 0.05, loss=0.01)
    )
    assert needed_n(0.03, 0.95, 0.06, loss=0.02999) > 10**8
    exact = Plan(0.02, 0.95).needed(0.05)
    assert exact == needed_n(0.02, 0.95, 0.05)
    assert exact < Plan(0.02, 0.95, ternary=False).needed(0.05)


@pytest.mark.parametrize("ternary", [True, False])
def test_plans_grow_as_budgets_shrink_and_end_where_the_loss_uses_them_up(ternary):
    plans = [Plan(budget, 0.95, ternary) for budget in (0.05, 0.03, 0.02)]
    numbers = [plan.needed(0.05) for plan in plans]
    assert numbers == sorted(set(numbers))
    assert plans[-1].needed(0.05, loss=0.02) is None


def test_without_a_number_twice_the_plan_is_taken_as_far_as_there_are_prompts():
    assert Plan(0.02, 0.95).usual_n(10_000) == 2 * 466
    assert Plan(0.02, 0.95).usual_n(300) == 300


@pytest.mark.parametrize("least", [1, 2, 3, 7, 8, 9, 1000, planning.MOST])
def test_fewest(least):
    assert fewest(lambda n: n >= least) == least
    assert fewest(lambda n: False) is None


@pytest.mark.parametrize(
    "loss, discordance, n, table",
    [
        (0.1, 0.3, 10, (2, 1)),
        (0.1, 0.3, 15, (3, 1)),
        (0.05, 0.1, 10, (1, 0)),
        (-0.1, 0.3, 10, (1, 2)),
        (0.2, 0.1, 10, (2, 0)),
        (0.01, 1.0, 1, (1, 0)),
        (0.0, 1.0, 5, (3, 2)),
        (0.0, 1.2, 5, (3, 2)),
    ],
)
def test_tables_are_rounded_against_the_loose_rule(loss, discordance, n, table):
    assert expected_table(loss, discordance, n) == table


@pytest.mark.parametrize(
    "ternary, stop, least",
    [(True, "lost", 299), (True, "clear", 368), (False, "lost", 482), (False, "clear", 482)],
)
def test_what_is_possible_is_what_the_deciding_bound_can_certify(ternary, stop, least):
    def kept(n: int) -> bool:
        return try_setting([Decoded(np.zeros(n))], [0.01], 0.95, stop, ternary).within[0.01]

    plan = Plan(0.01, 0.95, ternary, stop)
    plan.check(least)
    assert kept(least) and not kept(least - 1)
    with pytest.raises(
        UserError, match=rf"{least - 1} prompts cannot certify a budget of 1\.00% .* takes {least}"
    ):
        plan.check(least - 1)


def test_the_command_prints_a_line_for_each_kind_of_score(monkeypatch, capsys):
    printed = []
    for words in (["0.05", "0.05"], ["0.05", "0.05", "0.02"], ["0.05", "0.05", "0.05"]):
        monkeypatch.setattr("sys.argv", ["planning", *words])
        planning.main()
        printed.append([line.split()[0] for line in capsys.readouterr().out.splitlines()])
    assert printed[2] == ["none", "none"]
    assert [
        int(with_loss) > int(without) for without, with_loss in zip(*printed[:2], strict=True)
    ] == [True] * 2
