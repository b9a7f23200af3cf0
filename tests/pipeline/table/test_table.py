"""The large table: which methods it has, and what its own stages find, against hand-made and tiny cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from gistgate.core.utils import UserError
from gistgate.rules import RULES, make_rule
from pipeline import params as params_of_table
from pipeline.decode import calibration_file, evaluation_folder
from pipeline.params import TableParams, build, read_params, table_params

ROOT = Path(__file__).parents[3]
REQUEST = {"max_new_tokens": 24, "eos_ids": [2]}
PROMPTS = [{"ids": ids} for ids in ([5, 9, 30, 44], [7, 7, 120], [11, 200, 3, 90, 17, 18])]


def test_every_rule_that_greedy_decoding_defines_is_in_the_table():
    core = read_params(ROOT / "params.yaml")
    table = table_params(core)
    assert list(table.methods)[: len(core.methods)] == list(core.methods)
    ruled = {method.rule for method in table.methods.values()}
    # lossless; for sampled requests only; autojudge as long as costs are 0
    assert RULES.keys() - ruled == {"block", "traversal", "lenience", "wisv"}
    assert {name for name, method in table.methods.items() if method.extra} == set(table.methods) - set(core.methods)


def test_a_method_of_the_table_takes_what_its_rule_declares():
    table = table_params(read_params(ROOT / "params.yaml"))
    sense = table.method("sense")
    assert (sense.knob, sense.grid, sense.variants) == ("gamma", RULES["sense"].grid, RULES["sense"].variants)
    assert table.method("judge").head == "judge" and table.method("judge").learned
    assert make_rule("trt-relaxed", **table.method("trt-relaxed").settings({}, 0.3)).scope == "all"


def test_rules_of_the_table_draft_as_the_pair_does(monkeypatch):
    """A pair without a draft model has another drafter, whose id certificates and shared times go by."""
    core = read_params(ROOT / "params.yaml")
    monkeypatch.setattr(params_of_table, "drafter_of", lambda _pair: "suffix")
    extra = [method for method in table_params(core).methods.values() if method.extra]
    assert extra and {method.drafter for method in extra} == {"suffix"}


def test_its_results_lie_apart():
    core = read_params(ROOT / "params.yaml")
    table = table_params(core)
    assert (core.reports, table.reports) == (Path("reports"), Path("reports/table"))
    assert calibration_file(table, "fly") == Path("reports/calibration/free/fly.json")
    assert calibration_file(table, "judge") == Path("reports/table/calibration/learned/judge.json")
    assert evaluation_folder(table, "sense") == Path("reports/table/evaluation/sense")
    assert evaluation_folder(table, "plain") == Path("reports/evaluation/plain")


@pytest.mark.parametrize("block", [{"skip": ["mras"]}, {"fixed": {"mras": {}}}, {"heads": {"mras": "mlp"}}])
def test_an_unknown_rule_is_refused(block):
    with pytest.raises(UserError, match="unknown rule 'mras'. Did you mean 'mars'?"):
        build(TableParams, block)
