"""Scorers: right answers in many forms, and wrong ones that look alike."""

from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.tasks.scorers import SCORERS, scorer_named, strictest


@pytest.mark.parametrize(
    ("scorer", "answer", "right", "wrong"),
    [
        (
            "choice",
            "A",
            ["A", "The answer is A.", "(A)", "A) because", "**A**", "answer: a", "So it is A."],
            ["The answer is B, because it is a mammal.", "A mammal.", "I cannot say.", "B"],
        ),
        (
            "choice",
            "Yes",
            ["yes.", "**Yes**", "Yes, no doubt.", "I have no doubt: yes", "No? The answer is yes."],
            ["No, it is not. Some say yes.", "I cannot say.", "True", "The answer is no, not yes."],
        ),
        ("choice", "true", ["True", "It is true."], ["False; it is not true", "It is not true."]),
        (
            "number",
            "1000",
            ["1,000", "It is so. #### 1000", "so $1,000.00", "1 000", "It is 1000.0 in all."],
            ["It is 1000 of 2000", "#### 10", "", "-1000", "\u22121000", "none"],
        ),
        ("number", 5, ["$5.00", "5", "3 + 2 = 5", "the answer is 5, not 6"], ["15", "5.5", "3-2"]),
        ("number", "2 + 3 is 5.\n#### 5", ["5"], ["2", "3"]),
        ("number", "-5", ["\u22125", "so -5."], ["5"]),
        ("number", 1.0, ["1", "1.0", "１"], ["10"]),
        ("includes", "Müller", ["It is Mu\u0308ller.", "MÜLLER"], ["Müllers", "Muller"]),
        ("includes", "巴黎", ["法国的首都是巴黎。"], ["法国的首都是伦敦。"]),
        ("includes", "서울", ["정답은 서울입니다."], ["정답은 부산입니다."]),
        ("includes", "don't", ["I don\u2019t"], ["I do"]),
        ("includes", "4", ["2 + 2 is 4."], ["14", "4.5", "-4", "1,4"]),
        ("exact", "Oslo", ["oslo", " Oslo "], ["It is Oslo"]),
        ("match", "Oslo", ["It is Oslo.", "**Oslo**"], ["Oslo is it"]),
        ("pattern", r"\bOslo\b", ["in Oslo now"], ["Oslos"]),
        ("json", {"a": 1, "b": [2]}, ['So: {"b": [2], "a": 1}', '```json\n{"a":1,"b":[2]}\n```'],
         ['{"a": 1}', "none", '{"a": 1, "b": [2']),
    ],
)  # fmt: skip
def test_right_answers_count_and_wrong_ones_do_not(
    scorer: str, answer: Any, right: list[str], wrong: list[str]
) -> None:
    assert [SCORERS[scorer].score(text, answer) for text in right] == [1.0] * len(right)
    assert [SCORERS[scorer].score(text, answer) for text in wrong] == [0.0] * len(wrong)


def test_f1_counts_shared_words() -> None:
    f1 = SCORERS["f1"]
    assert f1.score("the red box", "a red box") == 1.0
    assert f1.score("a red house", "a red box") == 0.5
    assert f1.score("巴黎市", "巴黎") == 0.8
    assert f1.score("", "a box") == 0.0


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        (["A", "(b)"], "choice"),
        (["yes", "No."], "choice"),
        (["1,000", 4, "$5", "3 + 2\n#### 5"], "number"),
        ([{"a": 1}, '{"a": 2}', [1]], "json"),
        (["Oslo", "4"], "includes"),
        (["one two three four five six seven eight nine"], "f1"),
    ],
)
def test_the_strictest_that_fits_is_taken(answers: list[Any], name: str) -> None:
    assert strictest(answers, len(answers)).id == name


def test_a_label_that_stands_within_another_is_not_taken_for_it() -> None:
    scorer = strictest(["guilty", "not guilty"] * 4, 8)
    assert scorer.id == "label"
    assert scorer.score("He is not guilty.", "not guilty") == 1
    assert scorer.score("He is not guilty.", "guilty") == 0
    assert scorer.score("The verdict: Guilty!", "guilty") == 1
    several = ["Oslo", "Kristiania"] * 4
    assert strictest(several, 4).id == "includes"  # either is right
    assert strictest(["Oslo", "Bergen", "Hamar"], 3).id == "includes"  # no labels, each comes once


def test_names_of_scorers_and_answers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="no scorer 'exakt'"):
        scorer_named("exakt")
    with pytest.raises(UserError, match="could not be imported"):
        scorer_named("nowhere:score")
    for name, answer in (("number", "four"), ("choice", "Oslo"), ("pattern", "(")):
        with pytest.raises(UserError, match="the answer"):
            SCORERS[name].check(answer)
    for answer in (True, {"a": 1}, [1, 2]):
        for name in ("exact", "includes", "match", "pattern", "f1"):
            with pytest.raises(UserError, match="is no text.*take --scorer json"):
                SCORERS[name].check(answer)
        SCORERS["json"].check(answer)
