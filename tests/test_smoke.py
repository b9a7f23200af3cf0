"""The whole pipeline on tiny sizes, from an empty copy to an exported gate, and what a change repeats afterwards."""

import json
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from pipeline.report.summary.origin import check_finished

from gistgate.core.utils import UserError
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
    check_finished("dvc.yaml", root=project)  # which publishing asks: nothing waits behind a finished run
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
        pytest.param("evaluate", "all", "reports/evaluation", marks=pytest.mark.long),
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
    with pytest.raises(UserError, match="The results are older than .*heads"):
        check_finished("dvc.yaml", root=project)
    ran = re.findall(r"Running stage '(.+)'", smoke.dvc(project, "repro", quiet=True))
    assert ran == ["heads", "report"]


CHECKED = """
include: wordproblems.yaml
task: checked
unsafe_code: true
process_results: !function checked.process_results
metric_list: [{metric: passed, aggregation: mean, higher_is_better: true}]
filter_list: [{name: none, filter: [{function: take_first}]}]
"""
PROGRAM = '''
from gistgate.lm_eval.code_tasks import runs


def process_results(doc, results):
    """Whether a program finds the document's number in the answer."""
    wanted = doc["answer"].rpartition(" ")[2]
    return {"passed": float(runs(f"assert {results[0]!r}.rpartition('#### ')[2].strip() == {wanted!r}"))}
'''
ALONE = {"pair": "alone", "task": "checked", "allow_code": True, "prompts": {"test": 4, "calibration": 12, "train": 12}}


def without_a_draft(folder, target):
    """A copy of the project with a trained target, the drafter `suffix` and a task that runs programs."""
    smoke.copy_project(folder)
    files = {
        "models/pairs/alone.yaml": f"target: {{model: {target}, dtype: float32}}\ndrafter: suffix\n",
        "data/tasks/checked.yaml": CHECKED,
        "data/tasks/checked.py": PROGRAM,
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    params = smoke.merged(yaml.safe_load((folder / "params.yaml").read_text()), ALONE)
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.mark.long  # a second run of the whole pipeline
def test_every_stage_runs_without_a_draft_model_and_with_programs(project, tmp_path):
    """Everything that drafts is the drafter of the pair; everything that judges is a program."""
    shutil.copytree(project / "models/embedded/target", tmp_path / "target")
    folder = tmp_path / "alone"
    folder.mkdir()
    without_a_draft(folder, tmp_path / "target")
    smoke.dvc(folder, "repro")
    smoke.check_outputs(folder, smoke.OUTPUTS)
    summary = json.loads((folder / "reports/summary.json").read_text())
    assert {method["drafter"] for method in summary["methods"].values()} == {"suffix"}
    config, certificate = (
        json.loads((folder / f"models/export/{name}.json").read_text()) for name in ("config", "certificate")
    )
    assert config["draft"] is None and certificate["drafter"] == "suffix"
    assert 'DRAFTERS["suffix"]()' in (folder / "models/export/README.md").read_text()
    command = [sys.executable, "-m", "gistgate", "generate", tmp_path / "target", "Tom has 5 apples.", "--gate"]
    done = subprocess.run([*command, folder / "models/export", "--max-new-tokens", "9", "--json"], capture_output=True)
    assert json.loads(done.stdout)["statistics"]["forwards"] > 0
