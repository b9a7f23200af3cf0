"""The whole pipeline on tiny sizes, from an empty copy to an exported gate, and what a change repeats afterwards."""

import json
import re
import shutil
import subprocess
import sys

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
    assert set(summary["methods"]) == {"exact", "fly", "autojudge"}
    assert summary["methods"]["exact"]["accuracy_difference"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert (project / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage, argument, outputs",
    [
        ("collect", "strict", "data/mismatches/strict"),
        ("label", "strict", "data/labels/strict"),
        ("evaluate", "all", "reports/evaluation"),
    ],
)
def test_two_processes_of_torchrun_write_what_one_has_written(project, stage, argument, outputs):
    """Byte for byte; nothing that the run before has kept is used."""
    before = contents(project / outputs)
    shutil.rmtree(project / ".scratch", ignore_errors=True)
    shutil.rmtree(project / outputs)
    module = ["-m", f"pipeline.stages.{stage}", argument]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *module]
    done = subprocess.run(command, cwd=project, env=smoke.environment(project), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(project / outputs) == before and len(before) > 1


def contents(folder):
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_head_repeats_only_what_depends_on_it(project):
    """A changed mlp trains the heads again and shows them; the logistic head keeps its bytes, and so all behind it."""
    params = yaml.safe_load((project / "params.yaml").read_text())
    changed = smoke.merged(params, {"train": {"dropout": 0.2}})
    (project / "params.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    ran = re.findall(r"Running stage '(.+)'", smoke.dvc(project, "repro", quiet=True))
    assert ran == ["heads", "report"]
