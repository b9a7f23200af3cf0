"""Metrics against hand-made cases, and soft labels against many hard ones."""

import itertools

import numpy as np
import pytest

from pipeline.heads.data import as_classes
from pipeline.heads.metrics import measure, precision_recall, probability_metrics, rank_metrics, reliability


def test_a_perfect_score():
    kept = np.array([0.0, 0.0, 1.0, 1.0])
    found = measure(kept, np.array([1.0, 2.0, 3.0, 4.0]), kept)
    assert found == {"n": 4, "kept": 0.5, "auc": 1.0, "ap": 1.0, "brier": 0.0, "ece": 0.0}


def test_an_inverted_score_is_worse_than_chance():
    assert rank_metrics(np.array([0.0, 1.0]), np.array([2.0, 1.0]))["auc"] == 0.0


def test_average_precision_is_that_of_lost_meanings():
    """The lost row is ranked second most likely to be lost of four, so precision is 1/2 where recall becomes 1."""
    assert rank_metrics(np.array([1.0, 0.0, 1.0, 1.0]), np.array([1.0, 2.0, 3.0, 4.0]))["ap"] == 0.5


def test_soft_labels_equal_many_hard_ones():
    """A row kept with probability 0.75 counts like three kept rows and a lost one of the same score."""
    generator = np.random.default_rng(0)
    score = generator.normal(size=30)
    probability = 1 / (1 + np.exp(-score))
    kept = generator.integers(0, 5, size=30) / 4
    hard = np.concatenate([np.repeat([1.0, 0.0], [round(4 * k), 4 - round(4 * k)]) for k in kept])
    soft, many = (
        rank_metrics(*labels) | probability_metrics(labels[0], p)
        for labels, p in [((kept, score), probability), ((hard, np.repeat(score, 4)), np.repeat(probability, 4))]
    )
    for name in ("auc", "ap", "brier"):
        assert soft[name] == pytest.approx(many[name])


def test_classes_without_weight_are_left_out():
    index, label, weight = as_classes(np.array([1.0, 0.25, 0.0]))
    assert list(zip(index, label, weight, strict=True)) == [(0, 1, 1.0), (1, 1, 0.25), (1, 0, 0.75), (2, 0, 1.0)]


def test_calibrated_probabilities_have_no_calibration_error():
    kept = np.tile([1.0, 1.0, 1.0, 0.0], 100)
    assert probability_metrics(kept, np.full(400, 0.75))["ece"] == pytest.approx(0)
    assert probability_metrics(kept, np.full(400, 0.95))["ece"] == pytest.approx(0.2)


def test_bins_have_equal_mass_and_equal_predictions_share_one():
    bins = reliability(np.zeros(300), np.arange(300) / 300)
    assert [one["n"] for one in bins] == [20] * 15
    assert all(a["predicted"] < b["predicted"] for a, b in itertools.pairwise(bins))
    tied = reliability(np.zeros(10), np.array([0.1] * 9 + [0.9]))
    assert [one["n"] for one in tied] == [9, 1]


def test_one_class_alone_has_no_ranking():
    found = measure(np.ones(3), np.arange(3.0), np.ones(3))
    assert found["auc"] is None
    assert found["ap"] is None
    assert precision_recall(np.ones(3), np.arange(3.0)) == []


def test_the_curve_is_thinned_but_keeps_its_ends():
    generator = np.random.default_rng(0)
    curve = precision_recall((generator.random(1000) < 0.5).astype(float), generator.normal(size=1000), points=50)
    assert len(curve) <= 50
    assert curve[0]["recall"] == 1.0
    assert curve[-1] == {"precision": 1.0, "recall": 0.0}
