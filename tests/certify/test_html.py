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
    assert page.count('<rect class="range"') == 4 and "base&lt;b&gt;" in page
    assert "The ledger knows 2 looks" in page


def test_a_bound_that_there_is_not_reaches_to_the_end_of_the_axis():
    card, records = card_of({"lengths": [1.0, 1.0, 1.0]}, claim="length")
    assert card.bound is None and "not bounded" in html_of(card, records)
    [bar] = picture(card)["bars"]
    assert bar["begin"] + bar["width"] == pytest.approx(RIGHT)


def test_speed_and_control_are_shown_where_there_are_any():
    card, records = card_of({"all": shuffled(2)})
    assert not re.search("<summary>(speed|control)", html_of(card, records))
    entries = {"sentence": "1.4 times as fast", "ratio": {"mean": 1.4}}
    page = html_of(replace(card, speed=entries, control=entries), records)
    assert "<summary>speed" in page and "<summary>control" in page
    assert '<th scope="row">ratio.mean</th><td>1.4</td>' in page
