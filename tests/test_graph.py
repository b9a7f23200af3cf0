"""The stages agree with the code: each exists, names its own module, and depends on files that are there."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BODIES = {
    f"{file}:{name}": stage.get("do", stage)
    for file in (
        "dvc.yaml",
        *(f"pipeline/studies/{more}/dvc.yaml" for more in ("table", "certify", "retrieval", "segments", "speed")),
    )
    for name, stage in yaml.safe_load((ROOT / file).read_text())["stages"].items()
}


@pytest.mark.parametrize("name", BODIES)
def test_a_stage_depends_on_its_own_module(name):
    module = BODIES[name]["cmd"].split()[2]
    path = module.replace(".", "/") + ".py"
    assert (ROOT / path).exists() and path in BODIES[name]["deps"]


@pytest.mark.parametrize("name", BODIES)
def test_source_dependencies_exist(name):
    sources = [dep for dep in BODIES[name]["deps"] if dep.startswith(("gistgate", "pipeline", "data/tasks"))]
    assert [dep for dep in sources if not (ROOT / dep).exists()] == []


def test_the_graph_has_no_cycle():
    shown = ""
    for target in ([], ["pipeline/studies/table/dvc.yaml:report"]):
        done = subprocess.run([sys.executable, "-m", "dvc", "dag", *target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown += done.stdout
    assert "collect@gated" in shown and "calibrate_learned@autojudge" in shown and "judgements" in shown
