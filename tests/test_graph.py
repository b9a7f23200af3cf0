"""The stages agree with the code: each depends on all that it runs, and core modules know no study."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.common.closure import as_dependencies, closure, dependencies, graphs, imports, text_of, tree_of, update

ROOT = Path(__file__).parents[1]
BODIES = {
    f"{path.relative_to(ROOT)}:{name}": stage.get("do", stage)
    for path in graphs(ROOT)
    for name, stage in yaml.safe_load(path.read_text())["stages"].items()
}
CORE = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "pipeline").rglob("*.py")
    if "studies" not in path.parts
]


def module_of(stage):
    return stage["cmd"].split()[2]


@pytest.mark.parametrize("name", BODIES)
def test_a_stage_depends_on_everything_it_imports(name):
    """A changed file must repeat every stage that runs it. `make deps` mends this."""
    deps = BODIES[name]["deps"]
    covered = tuple(f"{dep}/" for dep in deps)
    files = [path.as_posix() for path in closure(module_of(BODIES[name]))]
    assert [file for file in files if file not in deps and not file.startswith(covered)] == []


@pytest.mark.parametrize("path", graphs(ROOT), ids=str)
def test_the_dependencies_are_those_that_make_deps_writes(path):
    assert update(path) == []


@pytest.mark.parametrize("name", BODIES)
def test_source_dependencies_exist(name):
    sources = [dep for dep in BODIES[name]["deps"] if dep.startswith(("gistgate", "pipeline", "data/tasks"))]
    assert [dep for dep in sources if not (ROOT / dep).exists()] == []


def test_every_module_of_stages_is_a_stage():
    modules = {f"pipeline.stages.{path.stem}" for path in (ROOT / "pipeline/stages").glob("*.py")}
    core = {module_of(stage) for name, stage in BODIES.items() if name.startswith("dvc.yaml")}
    assert modules - {"pipeline.stages.__init__"} == core


@pytest.mark.parametrize("module", CORE)
def test_core_modules_never_import_a_study(module):
    assert [name for name in imports(module, ROOT) if name.startswith("pipeline.studies")] == []


@pytest.fixture
def tree(tmp_path):
    """A made-up project: the stage imports `direct`, which names `named` in a registry and `late` inside a function."""
    sources = {
        "pipeline/__init__.py": '"""Only words."""\n',
        "pipeline/stage.py": "from typing import TYPE_CHECKING\nfrom pipeline.room import direct\n"
        "if TYPE_CHECKING:\n    from pipeline.room import typed\n",
        "pipeline/room/__init__.py": "X = 1\n",
        "pipeline/room/direct.py": 'KINDS = {"named": "pipeline.other.named:Named"}\nBESIDE = "file.py"\n'
        "def load():\n    from . import late\n",
        **{f"pipeline/{name}.py": "X = 1\n" for name in ("room/late", "room/typed", "room/file", "other/named")},
        **{f"pipeline/other/{name}.py": "X = 1\n" for name in "abc"},
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def names(tree, *modules):
    return [path.relative_to("pipeline").as_posix() for path in closure(*modules, root=tree)]


def test_the_closure_follows_late_imports_registries_and_files(tree):
    found = ["other/named.py", "room/__init__.py", "room/direct.py", "room/file.py", "room/late.py", "stage.py"]
    assert names(tree, "pipeline.stage") == found


def test_a_new_import_makes_the_dependencies_stale(tree):
    """The test that guards dvc.yaml can fail: one more import, and the list as it was no longer covers the closure."""
    graph = tree / "dvc.yaml"
    stage = {"cmd": "python -m pipeline.stage", "deps": ["data/in", "pipeline/gone.py"]}
    graph.write_text(yaml.safe_dump({"stages": {"one": stage}}))
    assert update(graph, tree, write=True) == ["one"] and update(graph, tree) == []
    assert yaml.safe_load(graph.read_text())["stages"]["one"]["deps"] == [
        "data/in",
        "pipeline/other/named.py",
        "pipeline/room",
        "pipeline/stage.py",
    ]
    with (tree / "pipeline/stage.py").open("a") as file:
        file.write("import pipeline.other.a\n")
    imports.cache_clear()
    text_of.cache_clear()
    tree_of.cache_clear()
    assert update(graph, tree) == ["one"]


def test_a_folder_stands_for_its_modules_when_half_of_them_are_reached(tree):
    some = [Path(f"pipeline/other/{name}.py") for name in "ab"]
    assert as_dependencies(some, tree) == ["pipeline/other"]
    assert as_dependencies(some[:1], tree) == ["pipeline/other/a.py"]


def test_a_stage_that_copies_the_library_names_it_whole(tree):
    stage = {"cmd": "python -m pipeline.stage", "deps": ["gistgate", "pipeline/stage.py"]}
    assert dependencies(stage, tree)[0] == "gistgate"


def test_the_graph_has_no_cycle():
    shown = ""
    for target in ([], ["pipeline/studies/table/dvc.yaml:report"]):
        done = subprocess.run([sys.executable, "-m", "dvc", "dag", *target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        shown += done.stdout
    assert "collect@gated" in shown and "calibrate_learned@autojudge" in shown and "judgements" in shown
