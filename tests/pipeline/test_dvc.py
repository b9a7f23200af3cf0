"""What a stage of dvc.yaml depends on is what its module imports: an edit that could change bytes
repeats the stage. `python -m tests.pipeline.test_dvc` writes the dependencies on code anew.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GRAPH = ROOT / "dvc.yaml"
CODE = ("gistgate", "pipeline")
LEFT_OUT = {f"pipeline/{name}.py" for name in ("params", "methods", "run", "paths", "tracking")}
"""They move values, and what they import does not count through them. Neither do the __init__.py of
gistgate and pipeline, which say version and environment.
"""


@cache
def imports(file: Path) -> frozenset[str]:
    """The modules of this repository, or names in them, that a file imports, also inside functions
    and by texts that are "module" or "module:name", as registries have them.
    """
    names: set[str] = set()
    for node in executed(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(re.findall(r"^([\w.]+)(?::\w+)?$", node.value))
    return frozenset(name for name in names if name.split(".")[0] in CODE)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below this one but those for type checkers."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield child
            yield from executed(child)


def files_of(module: str) -> Iterator[Path]:
    """The files that run when a module, or a name of it, is imported: packages around it, too."""
    parts = module.split(".")
    for end in range(2, len(parts) + 1):
        place = ROOT.joinpath(*parts[:end])
        for file in (place / "__init__.py", place.with_suffix(".py")):
            if file.exists():
                yield file


def needed_files(module: str) -> set[str]:
    """The files that a module imports, directly or through others, and its own."""
    needed: set[str] = set()
    waiting = list(files_of(module))
    while waiting:
        file = waiting.pop()
        name = file.relative_to(ROOT).as_posix()
        if name not in needed | LEFT_OUT:
            needed.add(name)
            for imported in imports(file):
                waiting.extend(files_of(imported))
    return needed


def expected(module: str) -> list[str]:
    """The dependencies on code of a stage: folders of gistgate and pipeline, with templates and
    whatever else they hold; and single files among the stages and beside the folders.
    """
    paths = set()
    for name in needed_files(module):
        top, part, *inner = name.split("/")
        is_folder = inner and part != "stages"
        paths.add(f"{top}/{part}" if is_folder else name)
    return sorted(paths - {"pipeline/stages/__init__.py"})


def stages() -> dict[str, Any]:
    graph = yaml.safe_load(GRAPH.read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in graph.items()}


def module_of(stage: dict[str, Any]) -> str:
    return re.findall(r"-m (\S+)", stage["cmd"])[0]


@pytest.mark.parametrize("name", stages())
def test_a_stage_depends_on_the_code_that_it_imports(name: str) -> None:
    stage = stages()[name]
    declared = [path for path in stage["deps"] if path.startswith(CODE)]
    assert declared == expected(module_of(stage))


@pytest.mark.parametrize("name", stages())
def test_a_stage_names_parameters_that_there_are(name: str) -> None:
    values = yaml.safe_load((ROOT / "params.yaml").read_text())
    for path in stages()[name].get("params", ()):
        value = values
        for key in path.split("."):
            if key.startswith("$"):  # one of several
                break
            value = value[key]


def test_imports_inside_functions_and_of_registries_count() -> None:
    needed = needed_files("pipeline.decode")
    assert {"pipeline/retrieval.py", "gistgate/rules/learned.py"} <= needed
    assert not needed & LEFT_OUT


def mended(text: str) -> str:
    """The text of dvc.yaml with the dependencies on code as they should be."""
    for stage in stages().values():
        data = [path for path in stage["deps"] if not path.startswith(CODE)]
        quoted = [f'"{path}"' if "$" in path else path for path in data]
        code = textwrap.fill(", ".join(expected(module_of(stage))), 110).splitlines()
        lines = [", ".join(quoted) + ",", *code]
        start = text.index(f"cmd: {stage['cmd']}\n")
        before, deps, behind = re.split(
            r"( +deps: \[.*?\]\n)", text[start:], maxsplit=1, flags=re.S
        )
        indent = " " * (len(deps) - len(deps.lstrip()))
        inner = f"\n{indent}  ".join(lines)
        text = f"{text[:start]}{before}{indent}deps: [{inner}]\n{behind}"
    return text


if __name__ == "__main__":
    GRAPH.write_text(mended(GRAPH.read_text()))
