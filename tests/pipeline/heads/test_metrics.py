"""Metrics against hand-made cases, and soft labels against many hard ones."""

import itertools

import numpy as np
import pytest

from pipeline.heads.job import measure, reliability


@pytest.mark.parametrize(
    "kept, score, found",
    [
        (
            [0, 0, 1, 1],
            [1, 2, 3, 4],
            {"n": 4, "kept": 0.5, "auc": 1.0, "ap": 1.0, "brier": 0.0, "ece": 0.0},
        ),
        ([0, 1], [2, 1], {"auc": 0.0}),  # an inverted score is worse than chance
        (
            [1, 0, 1, 1],
            [1, 2, 3, 4],
            {"ap": 0.5},
        ),  # of "lost": ranked second, so 1/2 where recall becomes 1
        ([1, 1, 1], [0, 1, 2], {"auc": None, "ap": None}),  # one class alone has no ranking
    ],
)
def test_scores_of_hard_labels(kept, score, found):
    kept, score = np.array(kept, float), np.array(score, float)
    assert measure(kept, score, kept).items() >= found.items()


def test_soft_labels_equal_many_hard_ones():
    """A row kept with probability 0.75 counts like three kept rows and a lost one of the same
    score.
    """
    generator = np.random.default_rng(0)
    score = generator.normal(size=30)
    probability = 1 / (1 + np.exp(-score))
    kept = generator.integers(0, 5, size=30) / 4
    hard = np.concatenate([np.repeat([1.0, 0.0], [round(4 * k), 4 - round(4 * k)]) for k in kept])
    soft, many = (
        measure(kept, score, probability),
        measure(hard, np.repeat(score, 4), np.repeat(probability, 4)),
    )
    for name in ("auc", "ap", "brier"):
        assert soft[name] == pytest.approx(many[name])


def test_calibrated_probabilities_have_no_calibration_error():
    kept = np.tile([1.0, 1.0, 1.0, 0.0], 100)
    assert measure(kept, kept, np.full(400, 0.75))["ece"] == pytest.approx(0)
    assert measure(kept, kept, np.full(400, 0.95))["ece"] == pytest.approx(0.2)


def test_bins_have_equal_mass_and_equal_predictions_share_one():
    bins = reliability(np.zeros(300), np.arange(300) / 300)
    assert [one["n"] for one in bins] == [20] * 15
    assert all(a["predicted"] < b["predicted"] for a, b in itertools.pairwise(bins))
    assert [one["n"] for one in reliability(np.zeros(10), np.array([0.1] * 9 + [0.9]))] == [9, 1]
