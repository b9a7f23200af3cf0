"""A plan names the fewest prompts that would do, for every bound, by the bound's own verdict."""

import numpy as np
import pytest

from gistgate.certificates.bounds import BERNSTEIN, BETTING, EXACT, PLUG_IN, expected_table, spread_out
from gistgate.certificates.planning import CERTIFIES, HOEFFDING, MOST, fewest, main, needed_n, needed_prompts
from gistgate.core.utils import UserError


@pytest.mark.parametrize("bound", [BETTING, PLUG_IN, BERNSTEIN, HOEFFDING])
@pytest.mark.parametrize("budget, discordance, loss", [(0.05, 0.0, 0.0), (0.05, 0.1, 0.01), (0.1, 0.1, 0.0)])
def test_the_planned_number_certifies_and_a_quarter_less_does_not(bound, budget, discordance, loss):
    n = needed_prompts(budget, 0.95, discordance, loss)[bound]

    def certified(prompts: int) -> bool:
        d = spread_out(*expected_table(loss, discordance, prompts), prompts)
        return CERTIFIES[bound](d, budget, 0.95)

    assert certified(n + n // 10)  # counts are whole, so a few numbers above the planned one may fail by rounding
    assert not certified(3 * n // 4)


def test_the_exact_bound_is_planned_as_a_refusal_says():
    assert needed_prompts(0.02, 0.95, 0.05)[EXACT] == needed_n(0.02, 0.95, 0.05)


def test_the_exact_bound_needs_the_fewest_and_hoeffding_bentkus_the_most():
    for budget, discordance in [(0.02, 0.02), (0.02, 0.05), (0.03, 0.1)]:
        plan = needed_prompts(budget, 0.95, discordance)
        assert list(plan) == list(CERTIFIES)
        assert plan[EXACT] == min(plan.values()) and plan[HOEFFDING] == max(plan.values())
        assert plan[PLUG_IN] < plan[BERNSTEIN]


def test_without_a_discordant_prompt_the_exact_plan_is_the_binomial_one():
    """0.99^299 < 0.05."""
    assert needed_prompts(0.01, 0.95, 0.0)[EXACT] in (299, 300)


def test_plans_grow_as_budgets_shrink():
    plans = [needed_prompts(budget, 0.95, 0.05) for budget in (0.05, 0.03, 0.02)]
    for bound in CERTIFIES:
        assert plans[0][bound] < plans[1][bound] < plans[2][bound]


def test_a_loss_that_uses_up_the_budget_has_no_plan():
    assert set(needed_prompts(0.02, 0.95, 0.05, loss=0.02).values()) == {None}


@pytest.mark.parametrize("budget, discordance, loss", [(0.0, 0.05, 0.0), (0.02, 1.5, 0.0), (0.02, 0.01, 0.02)])
def test_rates_that_are_none_are_refused(budget, discordance, loss):
    with pytest.raises(UserError, match="No plan"):
        needed_prompts(budget, 0.95, discordance, loss)


@pytest.mark.parametrize("least", [1, 2, 3, 7, 8, 9, 1000, MOST])
def test_fewest(least):
    assert fewest(lambda n: n >= least) == least
    assert fewest(lambda n: False) is None


@pytest.mark.parametrize("losses, gains, n", [(0, 0, 5), (3, 2, 5), (25, 25, 1000), (7, 0, 50), (0, 4, 9), (1, 6, 30)])
def test_spread_out_holds_what_it_was_told(losses, gains, n):
    d = spread_out(losses, gains, n)
    assert ((d == 1).sum(), (d == -1).sum(), len(d)) == (losses, gains, n)
    assert np.abs(d[: n // 2].sum() - d.sum() / 2) <= 1.5


def test_the_exact_bound_refuses_scores_between_right_and_wrong():
    with pytest.raises(UserError, match="betting bound"):
        CERTIFIES[EXACT](np.array([0.5, 0.0]), 0.02, 0.95)


def test_the_command_prints_a_line_per_bound(monkeypatch, capsys):
    printed = []
    for words in (["0.05", "0.05"], ["0.05", "0.05", "0"], ["0.05", "0.05", "0.02"], ["0.05", "0.05", "0.05"]):
        monkeypatch.setattr("sys.argv", ["planning", *words])
        main()
        printed.append([line.split()[0] for line in capsys.readouterr().out.splitlines()])
    assert [len(lines) for lines in printed] == [len(CERTIFIES)] * 4
    assert printed[0] == printed[1]
    assert all(int(with_loss) > int(without) for without, with_loss in zip(printed[0], printed[2], strict=True))
    assert set(printed[3]) == {"none"}


@pytest.mark.parametrize("words", [[], ["0.05"], ["two", "0.05"], ["0.05", "0.05", "0", "0"]])
def test_the_command_says_what_it_wants(monkeypatch, words):
    monkeypatch.setattr("sys.argv", ["planning", *words])
    with pytest.raises(UserError, match=r"0\.02 0\.05"):
        main()
