"""A plan is said before anything is decoded, and what cannot be certified is refused with the number that would do."""

import numpy as np
import pytest

from gistgate.certificates.bounds import EXACT, PLUG_IN
from gistgate.certificates.fixed_sequence import try_setting
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.planning import check_possible, default_n, plan_sentence
from gistgate.core.utils import UserError


def test_a_plan_is_said_before_anything_is_decoded():
    text = plan_sentence(0.01, 0.95, 500)
    assert "831 at 2%" in text
    assert "There are 500." in text
    assert default_n(0.02, 0.95, True, 10_000) == 2 * 466
    assert default_n(0.02, 0.95, True, 300) == 300


def test_what_is_impossible_is_refused_with_the_number_that_would_do():
    with pytest.raises(UserError, match=r"50 prompts cannot certify a budget of 1\.00% .* that takes \d+"):
        check_possible(0.01, 0.95, 50)


@pytest.mark.parametrize(
    "ternary, stop, bound, least",
    [(True, "lost", EXACT, 299), (True, "clear", EXACT, 368), (False, "lost", PLUG_IN, 805)],
)
def test_what_is_possible_is_what_the_deciding_bound_can_certify(ternary, stop, bound, least):
    def kept(n: int) -> bool:
        chunks = [Decoded(np.zeros(n))]
        return try_setting(chunks, [0.01], 0.95, stop, ternary).within[0]

    check_possible(0.01, 0.95, least, ternary, stop)
    assert kept(least) and not kept(least - 1)
    assert try_setting([Decoded(np.zeros(least))], [0.01], 0.95, stop, ternary).bounds[0].kind == bound
    with pytest.raises(UserError, match=f"that takes {least}"):
        check_possible(0.01, 0.95, least - 1, ternary, stop)


def test_a_wager_that_may_certify_counts_among_what_is_possible():
    check_possible(0.01, 0.95, 608, False, "clear")
    assert try_setting([Decoded(np.zeros(608))], [0.01], 0.95, "clear", False).wagered == ("within",)
    with pytest.raises(UserError, match="that takes 608"):
        check_possible(0.01, 0.95, 607, False, "clear")
