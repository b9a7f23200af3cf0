"""A calibration prompt is judged once for a claim: what is admitted, what it costs, and what stays
judged.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gistgate.certificates.calibration import DECIDING, SOMETIMES, Request, hypothesis
from gistgate.certificates.ledger import Ledger, Look, hash_of, level, read_looks
from gistgate.core.utils import UserError

OLD, FRESH = ([hash_of([kind, number]) for number in range(20)] for kind in (1, 2))
LOOK = Look(
    "fly", OLD, 0.05, 0.05, choice="chosen", tested="first", remedy="Set prompts.draw to 2."
)


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "local/judged.json", tmp_path / "published/judged.json")


def looks(ledger: Ledger) -> list[dict[str, Any]]:
    return read_looks(ledger.local)[1]


@pytest.mark.parametrize(
    "same", [{}, {"tested": "rounded"}, {"choice": "other parameters"}, {"marks": OLD[::-1]}]
)
def test_a_repetition_is_free_and_entered_once(ledger, same):
    """The same settings are tested, or the same parameters led to others, which rounding
    changes.
    """
    ledger.record(LOOK)
    ledger.record(replace(LOOK, **same))
    assert len(looks(ledger)) == 1


OTHERS = [{"choice": "mine", "tested": "mine"}, {"choice": "", "tested": ""}, {"spent": 0.01}]


@pytest.mark.parametrize("other", [*OTHERS, {"marks": [*FRESH, OLD[0]]}])
def test_another_look_at_even_one_prompt_is_refused_with_the_remedy(ledger, other):
    ledger.record(LOOK)
    with pytest.raises(
        UserError,
        match=r"judged for 'fly' with another choice.*0 are left.*Set prompts\.draw to 2\.",
    ):
        ledger.record(replace(LOOK, **other))
    assert len(looks(ledger)) == 1


def test_fresh_prompts_and_other_claims_are_free(ledger):
    for one in (
        LOOK,
        replace(LOOK, marks=FRESH, choice="b", tested="b"),
        replace(LOOK, claim="prob", choice="c"),
    ):
        ledger.record(one)
    assert [row["claim"] for row in looks(ledger)] == ["fly", "fly", "prob"]
    sets, _ = read_looks(ledger.local)
    assert sorted(map(sorted, sets.values())) == sorted(map(sorted, (OLD, FRESH)))
    bare = replace(
        LOOK, claim="bare", choice="", tested=""
    )  # it knows neither choice nor test, and repeats nothing
    ledger.record(bare)
    with pytest.raises(UserError, match="already been judged"):
        ledger.record(bare)


def test_planned_looks_divide_the_error(ledger):
    half = 1 - level(0.95, 2)
    for name in ("first", "second"):
        ledger.record(replace(LOOK, spent=half, choice=name, tested=name))
    with pytest.raises(UserError, match="0 are left and this look wants 0.025"):
        ledger.record(replace(LOOK, spent=half, choice="third", tested="third"))


@pytest.mark.parametrize(("said", "is_left"), [(0.05, False), (0.1, True)])
def test_a_lower_confidence_later_buys_no_look(ledger, said, is_left):
    """Whoever fails at 95 % would otherwise look again with two looks at 90 %, each of which says
    95 %.
    """
    ledger.record(replace(LOOK, error=said))
    again = replace(LOOK, error=0.1, choice="again", tested="again")
    if is_left:
        ledger.check(again)
    else:
        with pytest.raises(UserError, match="spent 0.05 of the error 0.05"):
            ledger.check(again)


def test_a_published_look_counts_and_may_be_repeated(ledger):
    ledger.record(LOOK)
    ledger.published.parent.mkdir(parents=True)
    ledger.local.rename(ledger.published)
    ledger.record(LOOK)
    assert len(looks(ledger)) == 1
    ledger.local.unlink()
    with pytest.raises(UserError, match="already been judged"):
        ledger.record(replace(LOOK, choice="mine", tested="mine"))
    assert not ledger.local.exists()


def test_only_looks_of_a_pipeline_keep_their_prompts_from_commands(ledger):
    ledger.record(replace(LOOK, choice=""))
    assert ledger.judged_marks() == set()
    ledger.record(replace(LOOK, marks=FRESH))
    assert ledger.judged_marks() == set(FRESH)


def test_looks_of_several_processes_are_all_kept(ledger):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ledger.record, [replace(LOOK, claim=str(number)) for number in range(12)]))
    assert sorted(row["claim"] for row in looks(ledger)) == sorted(map(str, range(12)))


def test_an_error_that_no_number_of_prompts_can_show_is_refused():
    """A plan for it would never end."""
    assert level(0.95, 2) == pytest.approx(0.975) and level(0.999, 4) < 1
    for confidence, number in ((0.9999, 1), (0.95, 600)):
        with pytest.raises(UserError, match="Lower the confidence or the looks"):
            level(confidence, number)


@pytest.mark.parametrize("part", [*DECIDING, *SOMETIMES])
def test_another_part_of_what_decodes_or_judges_is_another_test(part):
    """Only parts that are there count, so that looks without them keep their fingerprints."""

    def found(scope: dict[str, Any]) -> str:
        return hypothesis([{"r": 1}], Request((0.03,), 0.95, 20), True, scope)

    assert found({}) == found({"drafting": None}) == found({"judge": {}})
    assert len({found({}), found({part: {"a": 1}}), found({part: {"a": 2}})}) == 3


def test_the_order_of_settings_matters_and_that_of_budgets_does_not():
    strict, loose = {"risk": 0.01}, {"risk": 0.2}

    def found(settings: list[dict[str, Any]], *budgets: float, ternary: bool = True) -> str:
        return hypothesis(settings, Request(budgets), ternary, {})

    assert found([strict, loose], 0.03) != found([loose, strict], 0.03)
    assert (
        found([strict], 0.03, 0.01)
        == found([strict], 0.01, 0.03)
        != found([strict], 0.01, 0.03, ternary=False)
    )


def test_the_published_looks_are_whole():
    """Every set of prompts is the one that its looks name."""
    content = json.loads((Path(__file__).parents[2] / Ledger().published).read_text())
    assert len(content["looks"]) >= 240 and {row["marks"] for row in content["looks"]} == set(
        content["marks"]
    )
    for name, marks in content["marks"].items():
        assert replace(LOOK, marks=marks.split()).row["marks"] == name
