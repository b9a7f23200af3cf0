"""What projects share follows the repository: its graph, its methods, its tasks; and the stage that writes settings."""

from pathlib import Path

import pytest
import yaml

from gistgate.errors import UserError
from pipeline.params import parse_params, read_params
from pipeline.project.settings import check_graph, main, settings
from pipeline.project.shared import SHARED, project_graph, stale

ROOT = Path(__file__).parents[3]
GRAPH = yaml.safe_load((ROOT / SHARED / "graph.yaml").read_text())


def test_the_copies_are_those_that_make_deps_writes():
    assert stale() == {}


def test_a_project_has_the_stages_of_the_repository():
    own = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(GRAPH["stages"]) == ["settings", *own]
    for name, stage in own.items():
        mine, body = GRAPH["stages"][name], stage.get("do", stage)
        assert mine.get("do", mine)["cmd"] == body["cmd"] and mine.get("do", mine)["outs"] == body["outs"]


def test_no_stage_of_a_project_waits_for_code():
    for stage in GRAPH["stages"].values():
        deps = stage.get("do", stage)["deps"]
        assert "requirements.txt" in deps
        assert [dep for dep in deps if dep.startswith(("gistgate", "pipeline"))] == []


def test_a_changed_stage_is_noticed():
    """The comparison above can fail."""
    content = yaml.safe_load((ROOT / "dvc.yaml").read_text())
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    del content["stages"]["trace"]
    assert "trace" not in project_graph(content, params)["stages"] and "trace" in GRAPH["stages"]


def test_settings_hold_every_parameter_and_read_back():
    params = read_params(ROOT / "params.yaml")
    content = settings(params)
    assert parse_params(content) == params
    check_graph(content, GRAPH)


def test_every_parameter_that_a_stage_waits_for_is_in_the_settings():
    content = settings(parse_params({}))
    for stage in GRAPH["stages"].values():
        for block in stage.get("do", stage).get("params", []):
            for key in block["settings.yaml"]:
                value = content
                for part in key.split("."):
                    if "$" in part:
                        break
                    value = value[part]


def test_changed_documents_change_the_settings(tmp_path, monkeypatch):
    """DVC sees neither the folder of `task_data` nor, without a run of this stage, that its files are others."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump(GRAPH))
    (tmp_path / "params.yaml").write_text("task_data: documents\nadversarial: {file: prompts.jsonl}\n")
    assert GRAPH["stages"]["settings"]["always_changed"]

    def said(rows):
        (tmp_path / "documents").mkdir(exist_ok=True)
        (tmp_path / "documents/train.jsonl").write_text("{}\n" * rows)
        (tmp_path / "prompts.jsonl").write_text("{}\n" * rows)
        main()
        found = yaml.safe_load((tmp_path / "settings.yaml").read_text())
        return found["task_data"], found["adversarial"]["file"]

    first, second = said(1), said(2)
    assert first[0].startswith("documents, ") and first[1].startswith("prompts.jsonl, ") and first == said(1)
    assert first[0] != second[0] and first[1] != second[1]


@pytest.mark.parametrize("change", [{"train": {"headline_head": "mlp"}}, {"methods": {"learned": {}}}])
def test_a_graph_for_other_heads_is_refused(change):
    with pytest.raises(UserError, match=r"dvc\.yaml"):
        check_graph(settings(parse_params(change)), GRAPH)
