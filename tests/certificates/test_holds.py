"""Methods that no certificate can be about."""

import pytest

from gistgate.certificates.calibration import Method
from gistgate.core.files import named_files
from gistgate.core.utils import UserError


def test_costs_and_a_table_that_changes_with_every_answer_are_not_certified(tmp_path):
    with pytest.raises(UserError, match="Leave kappa at 0"):
        Method("wisv", "model", 4, "risk", (0.1,), fixed={"kappa": 0.1})
    counts = tmp_path / "pairs.safetensors"
    counts.write_text("old")
    assert named_files(Method("csd", "model", 4, fixed={"counts": str(counts)}).fixed) == [counts]
    for where in ({"fixed": {"table": "online"}}, {"variants": ({}, {"table": "online"})}):
        with pytest.raises(UserError, match="an online table changes with every answer"):
            Method("csd", "model", 4, **where)
