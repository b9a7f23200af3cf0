"""Rows are ranked by heads that have not seen their problem, and told apart by their tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gistgate.errors import UserError
from gistgate.gates.features import SCALARS
from pipeline.heads.rows import Rows
from pipeline.params import parse_params
from pipeline.studies.labels.worth import kind_of, passable, unseen_scores, worth

PARAMS = parse_params({"train": {"c": [0.1, 1.0], "folds": 3}})


def rows(x: torch.Tensor, kept: torch.Tensor, problem: torch.Tensor) -> Rows:
    scalars = torch.zeros(len(x), len(SCALARS))
    return Rows(x, scalars, problem, torch.zeros(len(x), dtype=torch.int8), kept, torch.zeros(len(x)))


@pytest.mark.parametrize(
    "draft, target, kind",
    [(" 12", " red", "number"), ("red", "4", "number"), (" red", "blue", "word"), (" red", ",", "operator"),
     (" +", " =", "operator"), ("\n", " So", "operator")],
)  # fmt: skip
def test_classes_of_tokens(draft: str, target: str, kind: str):
    assert kind_of(draft, target) == kind


def test_what_tells_harm_apart_is_found_and_what_only_names_the_problem_is_not():
    torch.manual_seed(0)
    problem = torch.arange(240) // 20
    kept = (torch.rand(240) < 0.5).float()
    telling = rows(torch.stack([kept + 0.3 * torch.randn(240), torch.randn(240)], 1), kept, problem)
    found = worth(telling, ["word"] * 120 + ["number"] * 120, PARAMS, 4)
    assert found["all"]["auc"] > 0.95 and found["word"]["n"] == found["number"]["n"] == 120
    assert "operator" not in found and found["all"]["harm"] == pytest.approx(float(1 - kept.mean()))
    of_problem = (problem % 2).float()
    leaking = rows(torch.nn.functional.one_hot(problem).float(), of_problem, problem)
    assert abs(unseen_scores(leaking, PARAMS, 4)).max() < 2  # nothing is known of a problem that was not seen


@pytest.mark.parametrize(
    "kept, scores, share",
    [([1, 1, 1, 0], [4, 3, 2, 1], 0.75), ([1, 1, 0, 1], [4, 3, 2, 1], 0.5), ([0, 1, 1, 1], [4, 3, 2, 1], 1.0),
     ([1, 1, 0, 1], [2, 2, 2, 1], 1.0), ([0, 0, 1, 1], [4, 3, 2, 1], 0.0), ([1, 0, 1, 1], [2, 1, 1, 1], 1.0)],
)  # fmt: skip
def test_a_threshold_lets_through_what_harms_little_enough(kept: list[int], scores: list[int], share: float):
    harm = 0.25 if share == 1 else 0.1
    assert passable(np.array(kept, float), np.array(scores, float), harm) == share


def test_equal_scores_pass_together_or_not_at_all():
    assert passable(np.array([1.0, 1, 0, 0]), np.array([2.0, 1, 1, 0]), 0.1) == 0.25


def test_more_folds_than_problems_are_refused():
    few = rows(torch.randn(20, 2), (torch.arange(20) % 2).float(), torch.arange(20) // 10)
    with pytest.raises(UserError, match="fewer than 4 problems"):
        unseen_scores(few, PARAMS, 4)
