"""Heads and rules that are tried on development prompts: shares become risks, and every row is measured there alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gistgate.errors import UserError
from gistgate.files import load_tensors, read_json, write_text
from pipeline.certification.outcomes import Setup
from pipeline.common.reading import build
from pipeline.heads.split import split_by_problem
from pipeline.labels.tables import Table, concatenated
from pipeline.params import read_params
from pipeline.stages import reference
from pipeline.studies.real import variants
from tests.pipeline.labels.made import write_features
from tests.pipeline.stages.test_evaluate import project  # noqa: F401 (a fixture)

HEADS = {"states": ["h_tok:post"]}
FILE = """
heads: {states: ["h_tok:post"]}
tries:
  - {rule: autojudge, head: states, share: 0.1}
  - {rule: ensemble-gate, head: states, share: 1.0, fixed: {w: 0.0}}
"""


def made_table(folder: Path, width: int) -> Table:
    """Labelled rows whose states are as wide as the target's."""
    for policy in (0, 2):
        write_features(folder / str(policy), policy=policy, problems=20)
    table = concatenated([load_tensors(file) for file in sorted(folder.rglob("rows-*"))])
    return {**table, "h_tok:post": table["h_tok:post"].repeat(1, 9)[:, :width]}


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_every_row_compares_a_rule_with_the_strict_answers(tmp_path, monkeypatch):
    reference.main()
    params = read_params()
    setup = Setup(params)
    monkeypatch.setattr(
        variants, "states", lambda *_: made_table(tmp_path / "rows", setup.pair.target.config.hidden_size)
    )
    for goal in variants.PASSES:
        (variants.LABEL_FOLDER / goal).mkdir(parents=True)
    write_text(Path("tries.yaml"), FILE)
    variants.main(Path("tries.yaml"))
    found = read_json(variants.OUTPUT)
    closed, opened = found["tries"]
    assert found["strict"]["n"] == closed["n"] == opened["n"] == params.prompts.development
    assert closed["knob"] < opened["knob"] <= 1 and opened["fixed"] == {"w": 0.0}
    for row in (closed, opened):
        tokens = row["mean_tokens"] * row["n"]
        assert row["forwards"] * row["mean_accepted_length"] == pytest.approx(tokens)
    assert opened["loose_per_100"] > closed["loose_per_100"] and opened["forwards"] < found["strict"]["forwards"]


def test_a_share_becomes_the_risk_that_lets_so_many_unseen_rows_through(tmp_path):
    params, table = read_params(), made_table(tmp_path, 12)
    rows = variants.rows_of(table, ["h_tok:post"])
    parts = split_by_problem(rows.problem, params.train, params.seed)

    class Sure:
        def probability(self, x):
            return x[:, 0].sigmoid()

    unseen = 1 - rows.x[parts.calibration | parts.test][:, 0].sigmoid()
    for share in (0.05, 0.5, 1.0):
        risk = variants.risk_at(params, Sure(), rows, share)
        assert float((unseen <= risk + 1e-6).double().mean()) == pytest.approx(share, abs=2 / len(unseen))


def test_heads_and_rules_that_do_not_exist_are_named():
    with pytest.raises(UserError, match="no head 'stats'. Did you mean 'states'"):
        build(variants.Variants, {"heads": HEADS, "tries": [{"rule": "autojudge", "head": "stats", "share": 0.1}]})
    with pytest.raises(UserError, match="'fly', which has no risk"):
        build(variants.Variants, {"heads": HEADS, "tries": [{"rule": "fly", "head": "states", "share": 0.1}]})


def test_the_file_of_the_project_can_be_read():
    content = variants.read_yaml(variants.FILE)
    assert {one.head for one in build(variants.Variants, content).tries} <= set(content["heads"])
