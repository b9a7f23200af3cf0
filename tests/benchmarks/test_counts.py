"""Lists of numbers and names on the command line of benchmarks."""

from __future__ import annotations

import pytest

from benchmarks.counts import counts, names, numbers
from gistgate.errors import UserError


@pytest.mark.parametrize("text", ["5,0", "5,4k", "5,-1", "", "5,,8"])
def test_what_is_no_positive_whole_number_is_named(text: str):
    assert counts("5, 12", "--blocks") == [5, 12]
    with pytest.raises(UserError, match="in --blocks is no positive whole number"):
        counts(text, "--blocks")


@pytest.mark.parametrize("text", ["0.5,0", "1,x", "-2", "", "nan", "inf"])
def test_what_is_no_positive_number_is_named(text: str):
    assert numbers("0.5, 4", "--rates") == [0.5, 4.0]
    with pytest.raises(UserError, match="in --rates is no positive number"):
        numbers(text, "--rates")


def test_a_name_that_is_not_known_is_refused_with_the_nearest():
    assert names("fly, gate", ["gate", "fly", "prob"], "is no method") == ["fly", "gate"]
    with pytest.raises(UserError, match="'gats' is no method. Did you mean 'gate'"):
        names("fly,gats", ["gate", "fly"], "is no method")
    with pytest.raises(UserError, match="'' is no method. Known: fly, gate."):
        names("", ["gate", "fly"], "is no method")
