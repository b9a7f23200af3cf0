"""What is said about measured costs."""

from __future__ import annotations

import pytest

from gistgate.drafters.costs import Costs
from pipeline.studies.real.propose import said


@pytest.mark.parametrize("verify, doubted", [({2: 1.1, 6: 1.2}, False), ({2: 1.4, 6: 0.9}, True), ({4: 1.1}, False)])
def test_costs_that_fall_with_k_are_doubted(verify: dict[int, float], doubted: bool) -> None:
    told = said(Costs(0.04, 0.1, verify))
    assert told.startswith("target step 40 ms, draft step c = 0.10, v(") and ("measure again" in told) is doubted
