"""The page of a card: its picture, and what it shows beside the test."""

import re
from dataclasses import replace

import numpy as np
import pytest

from gistgate.certify.card import Card
from gistgate.certify.html import LEFT, RIGHT, html_of, picture
from gistgate.certify.joint import Design, judged
from gistgate.certify.paired import Record

SIDES = {"baseline": {"path": "base<b>"}, "candidate": {"path": "fast"}}


def card_of(tables, budget=0.1, claim="score"):
    """A card about tasks by the scores of the candidate, where the baseline has 1."""
    records = []
    for task, scores in tables.items():
        for place, score in enumerate(scores):
            records.append(Record(task, str(place), "", 1.0, float(score), score != 1))
    design = Design(claim)
    joint = judged(records, dict.fromkeys(tables, "score"), budget, 0.95, "each", design)
    card = Card.of("certificate-logs", joint, design, records, looks=2, **SIDES)
    return card, records


def shuffled(lost, n=200):
    return np.random.default_rng(0).permutation([0.0] * lost + [1.0] * (n - lost)).tolist()


def test_a_bar_ends_before_the_budget_if_it_is_kept_and_begins_behind_it_if_not():
    card, records = card_of({"good": shuffled(2), "bad": shuffled(90), "open": shuffled(17)})
    drawn = picture(card)
    verdicts = {bar["name"]: bar for bar in drawn["bars"]}
    assert len(verdicts) == 4 and verdicts["each of all tasks"]["verdict"] == "FAIL"
    budget = drawn["budget"]
    good, bad, undecided = (verdicts[name] for name in ("good", "bad", "open"))
    assert good["begin"] + good["width"] < budget < bad["begin"]
    assert undecided["begin"] < budget < undecided["begin"] + undecided["width"]
    for bar in drawn["bars"]:
        assert LEFT <= bar["begin"] <= bar["loss"] <= bar["begin"] + bar["width"] <= RIGHT
    page = html_of(card, records)
    assert page.count('<svg class="bar"') == 4 and "base&lt;b&gt;" in page
    assert "The ledger knows 2 looks" in page


def test_a_bound_that_there_is_not_reaches_to_the_end_of_the_axis():
    card, records = card_of({"lengths": [1.0, 1.0, 1.0]}, claim="length")
    assert card.bound is None and "not bounded" in html_of(card, records)
    [bar] = picture(card)["bars"]
    assert bar["begin"] + bar["width"] == pytest.approx(RIGHT)


def test_speed_and_control_are_shown_where_there_are_any():
    card, records = card_of({"all": shuffled(2)})
    assert not re.search("<h2>(Speed|Control)", html_of(card, records))
    times = {"baseline": 2.0, "candidate": 1.25, "ratio": 1.6, "interval": [1.5, 1.75]}
    speed = {"prompts": 10, "confidence": 0.95, "answer": times}
    page = html_of(replace(card, speed=speed, control={"sentence": "0 differ"}), records)
    assert "<h2>Control</h2>\n<p>0 differ</p>" in page
    assert "<td>2</td><td>1.25</td><td>1.60 [1.50, 1.75]</td>" in page
    assert ">1.60 times as fast</dd>" in page
