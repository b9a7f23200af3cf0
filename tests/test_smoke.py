"""The whole pipeline on tiny sizes, from an empty copy to an exported gate, and what a change repeats afterwards."""

import json

import pytest
import yaml

from pipeline import smoke


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project in which every stage has run once, and a second run found nothing to do."""
    folder = tmp_path_factory.mktemp("project")
    smoke.copy_project(folder)
    smoke.reproduce(folder)
    return folder


@pytest.mark.slow
def test_every_stage_runs(project):
    smoke.check_outputs(project)
    summary = json.loads((project / "reports" / "summary.json").read_text())
    assert set(summary["methods"]) == {"exact", "prob", "fly", "autojudge"}
    assert summary["methods"]["exact"]["accuracy_difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert (project / "mlflow.db").exists()


@pytest.mark.slow
def test_a_head_repeats_only_what_depends_on_it(project):
    """A changed head trains the heads again; labels, the pilot and the methods without a gate stay."""
    params = yaml.safe_load((project / "params.yaml").read_text())
    changed = smoke.merged(params, {"train": {"dropout": 0.2}})
    (project / "params.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    dirty = json.loads(smoke.dvc(project, "status", "--json", quiet=True))
    (project / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    assert "heads" in dirty
    assert not dirty.keys() & {"pair", "prompts", "label@gated", "pilot", "calibrate_free", "label@strict"}
