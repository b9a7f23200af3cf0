"""Tasks of free text: documents that differ, and scores that see facts in many forms and numbers
that nobody gave.
"""

import pytest

from gistgate.lm_eval.task import load_task
from gistgate.tasks.facts import fact, has, invented, plain, score
from gistgate.tasks.free_text import SIZES
from gistgate.tasks.task import TASKS, TaskSpec

HOUR = fact("time", "Hour", "8:30 pm")


@pytest.mark.parametrize(
    ("one", "text", "there"),
    [
        (HOUR, "We begin at 8:30 PM.", True),
        (HOUR, "We begin at 20:30 sharp.", True),
        (HOUR, "at 8.30 p.m. in town", True),
        (HOUR, "at 8:30 in the evening", True),
        (HOUR, "at 8:30 am", False),
        (HOUR, "at 8 pm", False),
        (fact("time", "Hour", "12 pm"), "Lunch is at noon.", True),
        (fact("time", "Hour", "20:00"), "doors open at 8 pm", True),
        (fact("date", "Day", "4 March"), "on March 4th, in", True),
        (fact("date", "Day", "4 March"), "on the 4th of March", True),
        (fact("date", "Day", "4 March"), "on 14 March", False),
        (fact("words", "Colour", "slate grey"), "in Slate-Gray", True),
        (fact("words", "To", "Ann"), "Anna and Annie", False),
        (fact("number", "Budget", "$1,250"), "a budget of 1250 dollars", True),
        (fact("number", "Budget", "$1,250"), "a budget of **$1,250.00**", True),
        (fact("number", "Budget", "$1,250"), "all 1,250 of us", False),
        (fact("number", "Size", "30 x 20 cm"), "30 cm by 20 cm", True),
        (fact("number", "Size", "30 x 20 cm"), "20 x 30 cm", False),
        (fact("number", "Weight", "750 g"), "it weighs 750 grams", True),
        (fact("number", "Weight", "2.5 kg"), "a 2.5-kilogram bag", True),
        (fact("number", "Warranty", "2 years"), "with a two-year warranty", True),
        (fact("number", "Room", "Hall 12"), "in hall 12", True),
        (fact("number", "Room", "Hall 12"), "in room 12", False),
        (fact("number", "Guests", "31 people"), "31 guests", True),
    ],
)
def test_a_fact_counts_in_all_of_its_forms(one, text, there):
    assert has(one, plain(text)) is there


@pytest.mark.parametrize(
    ("text", "strange"),
    [
        ("At 20:30 or 8:30 pm, one of the best two evenings", 0),
        ("1. Bring it\n2. Come", 0),
        ("At 9 pm", 1),
        ("Save 25 % with code 2024, again 2024", 2),
        ("1,250 guests", 1),
    ],
)
def test_numbers_that_nobody_gave_are_counted_once_each(text, strange):
    assert len(invented([HOUR], plain(text))) == strange


def test_the_score_takes_inventions_off_and_ends_at_zero():
    facts = [HOUR, fact("words", "To", "Ann")]
    assert score(facts, "Dear Ann, see you at 8:30 pm.") == 1
    assert score(facts, "Dear Ann, see you at 8:30 pm. Call 555.") == 0.5
    assert score(facts, "Call 555, 556 or 557, Ann.") == score(facts, "") == 0


def test_a_reply_may_repeat_the_notice_and_has_to_state_what_was_asked_for():
    price = fact("number", "price", "$7")
    known = [price, fact("number", "price", "$21"), HOUR]
    assert score([price], "Children pay $7, adults $21, from 8:30 pm on.", known) == 1
    assert (
        score([price], "Adults pay $21.", known)
        == score([price], "It is $7 for the first 9 days.", known)
        == 0
    )


@pytest.mark.parametrize(("name", "number"), [("letters", 5), ("descriptions", 5), ("passages", 1)])
def test_documents_differ_and_state_their_own_facts(name, number):
    task = load_task(TaskSpec(name), TASKS)
    train, test = task.documents("train"), task.documents("test")
    assert (len(train), len(test)) == tuple(SIZES.values())
    assert len({task.problem(doc) for doc in [*train, *test]}) == sum(SIZES.values())
    for doc in test:
        listed = task.question(doc).partition("\n")[2]
        assert (
            len(doc["facts"]) == number
            and task.score(doc, listed) == 1
            and task.score(doc, "") == 0
        )
    assert load_task(TaskSpec(name), TASKS).documents("test")[:9] == test[:9]
