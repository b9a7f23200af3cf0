"""Batches that the test prompts do not fill are refused before the first process starts."""

from __future__ import annotations

import pytest

from benchmarks import allocation
from gistgate.errors import UserError


def test_the_last_batch_is_known_to_exist_before_the_first_is_decoded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(allocation, "read_prompts", lambda _split: [{"ids": [1]}] * 95)
    monkeypatch.setattr(allocation, "apart", lambda *_, **__: pytest.fail("a process started"))
    allocation.check_sizes(19, 5, 95)
    with pytest.raises(UserError, match="3 rounds with a batch of 32 need 96 test prompts, and there are 95. Lower"):
        allocation.main()


def test_few_rounds_are_compared_with_their_range():
    found = {"returned": [{"strict": {"seconds": s, "faults": 2.0}} for s in (3.0, 2.0)]}
    found["kept"] = [{"strict": {"seconds": 1.0, "faults": 1.0}}] * 2
    one = allocation.over("strict", found)
    assert one["returned_vs_kept"] == {"mean": 2.5, "low": 2.0, "high": 3.0, "kind": "range"}
    assert one["faults"] == {"returned": 2.0, "kept": 1.0}
