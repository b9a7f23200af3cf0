"""Trying methods out on development prompts: every value asked for is decoded there, and nowhere else."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gistgate.certificates.outcomes import Decoded
from gistgate.errors import UserError
from gistgate.request.statistics import Statistics
from pipeline.params import parse_params
from pipeline.studies.certify.development import line, measured

PARAMS = parse_params(
    {
        "methods": {
            "lossless": {"exact": {"rule": "exact"}},
            "free": {
                "fly": {"rule": "fly", "variants": [{"window": 0}, {"window": 2}], "knob": "theta", "grid": [1.0, 0.5]}
            },
        }
    }
)


class Counting:
    """Outcomes that lose more the smaller theta is, and remember what was decoded."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def decoded(self, split: str, settings: dict[str, Any]) -> Decoded:
        self.asked.append((split, settings))
        lost = round(4 * (1 - settings.get("theta", 1.0)))
        return Decoded(np.array([1.0] * lost + [0.0] * (4 - lost)), [Statistics(forwards=1, strict=3, own=1)] * 4)


@pytest.fixture
def setup() -> SimpleNamespace:
    outcomes = Counting()
    pair = SimpleNamespace(target=SimpleNamespace(dtype=torch.float32))
    return SimpleNamespace(
        params=PARAMS, pair=pair, found=outcomes, strict_scores=lambda split: np.ones(4), outcomes=lambda *_: outcomes
    )


def test_the_whole_grid_of_every_variant_is_measured(setup: SimpleNamespace):
    rows = list(measured(setup, "fly", None))
    assert [(row["knob"], row["fixed"]["window"], row["losses"]) for row in rows] == [
        (1.0, 0, 0), (0.5, 0, 2), (1.0, 2, 0), (0.5, 2, 2)
    ]  # fmt: skip
    assert {split for split, _ in setup.found.asked} == {"development"}


def test_values_that_are_given_take_the_place_of_the_grid(setup: SimpleNamespace):
    row, _ = measured(setup, "fly", [0.25])
    assert (row["knob"], row["losses"], row["n"]) == (0.25, 3, 4)
    assert "3 lost and 0 gained of 4" in line(row)


def test_a_method_without_a_knob_has_one_row_and_takes_no_values(setup: SimpleNamespace):
    assert [row["knob"] for row in measured(setup, "exact", None)] == [None]
    with pytest.raises(UserError, match="exact has no knob"):
        list(measured(setup, "exact", [0.5]))
