"""The built wheel in a fresh environment without the clone: a project is made, and every stage runs in it."""

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.smoke import OUTPUTS, TINY, merged

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """Runs a program of an environment that holds the wheel; libraries are those of this environment."""
    place = tmp_path_factory.mktemp("fresh")
    source = place / "source"
    kept = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    for name in ("gistgate", "pipeline"):
        shutil.copytree(ROOT / name, source / name, ignore=kept)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, source / name)
    build = ["pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", place, source]
    subprocess.run([sys.executable, "-m", *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    python = place / "venv/bin/python"
    own = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    wheel = next(place.glob("*.whl"))
    install = ["pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run([sys.executable, "-m", *install], check=True)
    # A plain path line: .pth files inside that folder, such as that of an editable install, are not followed.
    (Path(own) / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    kept_variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    variables = {**kept_variables, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}

    def run(*arguments, cwd=place):
        done = subprocess.run([python, *map(str, arguments)], cwd=cwd, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return run, place


def test_the_wheel_holds_library_and_pipeline(fresh):
    run, place = fresh
    shown = run("-c", "import gistgate, pipeline; print(gistgate.__file__, pipeline.__file__)").split()
    assert len(shown) == 2 and all(str(place / "venv") in one for one in shown)


def test_every_stage_runs_in_a_project_and_a_second_run_has_nothing_to_do(fresh):
    run, place = fresh
    run("-m", "gistgate", "init", "my-gate", "--embedded")
    project = place / "my-gate"
    path = project / "params.yaml"
    methods = yaml.safe_load((ROOT / "gistgate/project/shared/methods.yaml").read_text())
    base = {**yaml.safe_load(path.read_text()), "methods": methods}
    path.write_text(yaml.safe_dump(merged(base, TINY), sort_keys=False))
    run("-m", "dvc", "repro", cwd=project)
    assert [name for name in OUTPUTS if not (project / name).is_file()] == []
    again = re.findall(r"Running stage '(.+)'", run("-m", "dvc", "repro", cwd=project))
    assert again == ["settings"]  # which looks for changed documents where DVC does not
    assert "certificate rule autojudge" in run("-m", "gistgate", "inspect", "models/export", cwd=project)
