"""Tasks of free text: documents that differ, and scores that see facts in many forms and numbers
that nobody gave.
"""

import random
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from gistgate.lm_eval.task import load_task
from gistgate.tasks.facts import fact, has, invented, plain
from gistgate.tasks.free_text import SIZES, process_results
from gistgate.tasks.grader import score
from gistgate.tasks.numerals import in_digits
from gistgate.tasks.task import TASKS, TaskSpec

TEXTS = yaml.safe_load(Path(__file__).with_name("free_texts.yaml").read_text("utf-8"))
HOUR = fact("time", "Hour", "8:30 pm")


@pytest.mark.parametrize(
    ("one", "text", "there"),
    [
        (HOUR, "We begin at 8:30 PM.", True),
        (HOUR, "We begin at 20:30 sharp.", True),
        (HOUR, "at 8.30 p.m. in town", True),
        (HOUR, "at 8:30 in the evening", True),
        (HOUR, "at half past eight", True),
        (HOUR, "at half past eight in the morning", False),
        (HOUR, "at 8:30 am", False),
        (HOUR, "at 8 pm", False),
        (fact("time", "Hour", "12 pm"), "Lunch is at noon.", True),
        (fact("time", "Hour", "20:00"), "doors open at 8 pm", True),
        (fact("date", "Day", "4 March"), "on March 4th, in", True),
        (fact("date", "Day", "4 March"), "on the 4th of March", True),
        (fact("date", "Day", "4 March"), "on 14 March", False),
        (fact("date", "Day", "4 March"), "on the fourth of March", True),
        (fact("date", "Day", "4 March"), "on 4/3, or 04.03.2027", True),
        (fact("date", "Day", "4 March"), "on 2027-03-04", True),
        (fact("date", "Day", "4 March"), "on 4/5", False),
        (fact("words", "Colour", "slate grey"), "in Slate-Gray", True),
        (fact("words", "To", "Ann"), "Anna and Annie", False),
        (fact("number", "Budget", "$1,250"), "a budget of 1250 dollars", True),
        (fact("number", "Budget", "$1,250"), "a budget of **$1,250.00**", True),
        (fact("number", "Budget", "$1,250"), "all 1,250 of us", False),
        (fact("number", "Price", "$89.50"), "eighty-nine dollars and fifty cents", True),
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
        ("At 8:30 in the morning", 1),
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


@pytest.mark.parametrize(
    ("spelled", "digits"),
    [
        ("three thousand two hundred and fifty dollars", "3250 dollars"),
        ("the twenty-seventh of may, no one else", "the 27th of may, no one else"),
        ("a quarter to five in the afternoon", "4:45 pm"),
        ("12 noon", "12 pm"),
        ("at seven thirty in the evening", "at 7:30 pm"),
        ("two hundred, two hundred and twelve", "200, 212"),
        ("at first, a second time", "at first, a second time"),
    ],
)
def test_spelled_numbers_are_read(spelled, digits):
    assert in_digits(spelled) == digits


def worth(row, text=None):
    document = TEXTS["documents"][row["document"]]
    return process_results(document, [row["text"] if text is None else text])["facts"]


@pytest.mark.parametrize("row", TEXTS["good"], ids=lambda row: row["text"][:50])
def test_a_text_may_state_its_facts_in_many_ways(row):
    assert worth(row) == 1


@pytest.mark.parametrize("row", TEXTS["bad"], ids=lambda row: f"{row['kind']}: {row['text'][:40]}")
def test_values_without_a_text_that_states_them_are_worth_little(row):
    assert worth(row) < 0.5


def shuffled(text, rng):
    return " ".join(rng.sample(text.split(), len(text.split())))


def shuffled_by_sentence(text, rng):
    return ". ".join(shuffled(sentence, rng) for sentence in text.split(". "))


def reversed_words(text, _):
    return " ".join(reversed(text.split()))


@pytest.mark.parametrize("change", [shuffled, shuffled_by_sentence, reversed_words])
def test_words_out_of_order_are_worth_little(change):
    rng = random.Random(1)
    long = [row for row in TEXTS["good"] if len(row["text"].split()) >= 30]
    scores = [worth(row, change(row["text"], rng)) for row in long]
    assert fmean(scores) < 0.15
    assert fmean(value < 0.5 for value in scores) > 0.85


@pytest.mark.parametrize(("name", "number"), [("letters", 5), ("descriptions", 5), ("passages", 1)])
def test_documents_differ_and_state_their_own_facts(name, number):
    task = load_task(TaskSpec(name), TASKS)
    train, test = task.documents("train"), task.documents("test")
    assert (len(train), len(test)) == tuple(SIZES.values())
    assert len({task.problem(doc) for doc in [*train, *test]}) == sum(SIZES.values())
    for doc in test[:300]:
        request = task.question(doc)
        assert len(doc["facts"]) == number
        assert all(has(entry, plain(request)) for entry in doc["facts"])
        listed = request.partition("\n")[2]
        assert task.score(doc, request) == task.score(doc, listed) == task.score(doc, "") == 0
    assert load_task(TaskSpec(name), TASKS).documents("test")[:9] == test[:9]
