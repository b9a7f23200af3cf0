"""The domain guard is fitted on one half of the guard prompts, and its thresholds are quantiles of
the other half.
"""

import math
from dataclasses import replace

import pytest
import torch

from gistgate.core.files import write_json
from pipeline.operating import Operating
from pipeline.pair.pair import Pair
from pipeline.paths import calibration_file
from pipeline.stages.export import FEWEST, fit_domain, quantile, stricter_setting
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, tiny_pair

POINT = Operating("loose", "prob", "model", 4, {"r": 0.001}, knob=0.001)
PARAMS = parameters(methods={"loose": {"rule": "prob", "knob": "r", "grid": [0.1, 0.01, 0.001]}})


@pytest.fixture(autouse=True)
def calibrated(tmp_path, monkeypatch):
    """A calibration that tested three settings, strict to loose."""
    monkeypatch.chdir(tmp_path)
    write_json(
        calibration_file("loose"), {"settings": [{"knob": value} for value in (0.1, 0.01, 0.001)]}
    )


def test_a_guard_is_fitted_from_guard_prompts():
    ids = torch.randint(3, 259, (FEWEST, 6), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [
        {"id": f"p-{n}", "ids": row, "doc": {}, "stops": [], "max_new_tokens": 10}
        for n, row in enumerate(ids)
    ]
    pair = Pair(*tiny_pair(noise=0.3), byte_tokenizer(), "tiny")
    guard = fit_domain(PARAMS, pair, None, POINT, prompts)
    assert guard.mean.shape == (32,) and len(guard.basis) == 31 and 0 < guard.rate < 1
    assert 0.8 < guard.far < 2 and 0 < guard.bet < math.inf
    assert guard.stricter == 0.01, "the next stricter value that was tested"
    assert guard.about["prompts"] == FEWEST and guard.about["gate"] is None


def test_the_strictest_setting_has_none_below_it():
    assert stricter_setting(replace(POINT, knob=0.1)) is None


@pytest.mark.parametrize(
    "number, share, place", [(99, 0.9, 89), (39, 0.975, 38), (38, 0.975, None)]
)
def test_the_threshold_is_the_conformal_quantile(number, share, place):
    """Of n + 1 exchangeable values the new one exceeds it with probability 1 - share at most."""
    values = [float(value) for value in range(number)]
    assert quantile(values[::-1], share) == (math.inf if place is None else place)
