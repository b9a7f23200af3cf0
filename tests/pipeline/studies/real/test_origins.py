"""What has to be up to date before results of a pretrained pair are published, and what they name as their code."""

from __future__ import annotations

from pipeline.common.paths import REPORTS
from pipeline.studies.real import publish, study


def test_the_gate_is_waited_for_where_the_table_reports() -> None:
    """No stage of the table needs the exported gate, so that it could be that of an earlier run."""
    assert publish.goals_of(REPORTS / "table") == study.WITH_TABLE and "export" in study.WITH_TABLE
    assert publish.goals_of(REPORTS) == ("dvc.yaml",)


def test_the_table_names_the_code_of_its_own_stages() -> None:
    core, table = publish.modules_of(REPORTS), publish.modules_of(REPORTS / "table")
    assert set(core) < set(table) and "pipeline.studies.table.pair_counts" in table
