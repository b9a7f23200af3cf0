"""Lists of numbers on the command line of benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.counts import counts
from gistgate.errors import UserError


@pytest.mark.parametrize("text", ["5,0", "5,4k", "5,-1", "", "5,,8"])
def test_what_is_no_positive_whole_number_is_named(text: str):
    assert counts("5, 12", "--blocks") == [5, 12]
    with pytest.raises(UserError, match="in --blocks is no positive whole number"):
        counts(text, "--blocks")
