"""The study of coverage runs at the headline budget as well, whichever it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gistgate.certificates.bounds import EXACT
from gistgate.files import read_json
from pipeline.studies.certify import coverage

RECORDED = SimpleNamespace(method="fly", outcomes=np.zeros((1, 50)), losses=np.zeros(1))


@pytest.mark.parametrize("headline", [0.03, 0.015, 0.1])
def test_the_headline_budget_is_among_the_budgets(headline: float, monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Nothing is lost in the recorded outcomes, so that no setting is certified at its loss."""
    for name, value in {"RESAMPLES": 4, "LONGEST_WAGER": 50, "DISCORDANCES": (0.05,)}.items():
        monkeypatch.setattr(coverage, name, value)
    params = SimpleNamespace(calibrate=SimpleNamespace(confidence=0.95), headline_budget=headline)
    monkeypatch.setattr(coverage, "read_params", lambda: params)
    monkeypatch.setattr(coverage, "recorded_methods", lambda _params: [RECORDED])
    monkeypatch.setattr(coverage, "planned", lambda budget, rate, _confidence: {"budget": budget, "rate": rate})
    monkeypatch.setattr(coverage, "draw", lambda _report: None)
    monkeypatch.setattr(coverage, "save", lambda _figure, path: path.write_bytes(b""))
    coverage.main(tmp_path)
    report = read_json(tmp_path / "coverage.json")
    budgets = sorted({*coverage.BUDGETS, headline})
    assert report["budget"] == headline == report["boundary"]["budget"] and report["at_its_loss"] is None
    assert sorted({one["budget"] for one in report["needed_prompts"]}) == budgets
    assert sorted({one["budget"] for one in report["early_stopping"]}) == budgets


@pytest.mark.parametrize("budget", [*coverage.BUDGETS, 0.015, 0.0125, 0.1])
def test_any_certificate_on_the_boundary_is_an_error(budget: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(coverage, "recorded_methods", lambda _params: [])
    (world,) = coverage.worlds(None, [budget])  # type: ignore[arg-type]
    loss = float(world.outcomes.mean())
    assert budget - coverage.TINY <= loss <= budget + 2 / coverage.BOUNDARY_PROMPTS


def test_published_cases_without_a_lossy_setting_have_no_such_headline():
    case: dict[str, Any] = {
        "method": None,
        "budget": 0.03,
        "true_losses": [0.0],
        "bounds": {EXACT: {"share_holding": 1}},
    }
    cases = [{**case, "kind": "boundary"}, {**case, "kind": "recorded", "method": "fly"}]
    assert coverage.headlines(cases, 0.03)["at_its_loss"] is None
