"""Parts of the rows for fitting, stopping, calibrating and measuring; no problem is in two parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from gistgate.errors import UserError
from pipeline.params import TrainParams


@dataclass(frozen=True)
class ProblemParts:
    """Masks over the rows [N]; every row is in exactly one."""

    train: Tensor
    """Fits the head."""
    validation: Tensor
    """Stops the training of Lightning heads; the logistic head, which cross-validates, trains on it too."""
    calibration: Tensor
    """Fits the probability map."""
    test: Tensor
    """Measures the head and does nothing else."""


def split_by_problem(problem_N: Tensor, params: TrainParams, seed: int) -> ProblemParts:
    """Divide the rows by the hash of their problem, so that labels of another policy fall into the same parts.

    Raises:
        UserError: fewer than four problems.
    """
    problems = sorted(problem_N.unique().tolist(), key=lambda p: hashlib.sha256(f"{seed}:{p}".encode()).digest())
    if len(problems) < 4:
        raise UserError(
            f"Mismatches of {len(problems)} problems cannot be split into four parts. "
            "Raise prompts.train in params.yaml."
        )
    parts = {}
    shares = {"test": params.test_share, "calibration": params.calibration_share, "validation": params.validation_share}
    total = len(problems)
    for name, share in shares.items():
        num = min(max(1, round(share * total)), len(problems) - 1)
        parts[name] = torch.isin(problem_N, torch.tensor(problems[:num]))
        problems = problems[num:]
    return ProblemParts(train=torch.isin(problem_N, torch.tensor(problems)), **parts)
