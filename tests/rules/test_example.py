"""The rule of CONTRIBUTING.md is complete: it keeps every promise once it is registered."""

import math
import re
import sys
import types
from pathlib import Path

import pytest

from gistgate.rules import RULES
from tests.rules import extremes, test_contract, test_lossless

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def surprise(monkeypatch):
    source = re.search(r"```python\n(\"\"\"Surprise.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    assert len(source.splitlines()) <= 60
    module = types.ModuleType("surprise")
    monkeypatch.setitem(sys.modules, "surprise", module)
    exec(compile(source, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(RULES, "surprise", module.Surprise)
    monkeypatch.setitem(extremes.CLOSED, "surprise", {"slack": -math.inf})
    monkeypatch.setitem(extremes.OPEN, "surprise", {"slack": math.inf})
    return "surprise"


def test_it_keeps_the_contract(surprise: str):
    test_contract.test_every_rule_names_its_extreme_settings()
    test_contract.test_a_rule_is_a_frozen_dataclass_that_names_its_knob(surprise)
    test_contract.test_closed_is_strict(surprise)
    test_contract.test_open_keeps_all_that_may_be_kept(surprise)
    test_contract.test_rows_do_not_influence_each_other(surprise, {})
    test_contract.test_padding_behind_a_draft_changes_nothing(surprise, {})
    test_lossless.test_with_draft_probabilities(surprise)


def test_it_moves_with_its_knob(surprise: str):
    rule = RULES[surprise]
    lengths = [
        sum(
            test_contract.accepted(rule(value), block).length.sum().item()
            for block in test_contract.blocks(surprise)
        )
        for value in rule.grid
    ]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
