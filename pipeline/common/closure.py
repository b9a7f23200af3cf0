"""The source files that a stage runs, computed from its imports: the one source of `deps` and of fingerprints.

    python -m pipeline.common.closure             names the stages whose dependencies are out of date
    python -m pipeline.common.closure --write     rewrites the code part of `deps` in every dvc.yaml (`make deps`)

An import inside a function counts. So does a text of the form "gistgate.rules.fly:Fly", by which a registry names a
class before it is imported, and the name of a Python file in the same folder. An import below `if TYPE_CHECKING:` does
not count, because it never runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from gistgate.errors import UserError
from gistgate.files import write_atomic

ROOT = Path(__file__).parents[2]
PACKAGES = ("gistgate", "pipeline")
"""Whose files are dependencies; installed libraries are pinned elsewhere."""
LOADS_TASK, TASKS = Path("pipeline/tasks/loading.py"), Path("data/tasks")
"""Whoever reaches the first reads the second: an answer is judged as the task's files say."""
BY_NAME = re.compile(r"((?:\w+\.)+\w+):\w+")
"""How a registry names a class."""


def closure(*modules: str, root: Path = ROOT) -> list[Path]:
    """The files that importing and running these modules may execute, relative to `root` and sorted.

    A package stands for all modules in it. An `__init__.py` counts when it holds more than a docstring.

    Raises:
        UserError: one of `modules` does not exist.
    """
    known: set[str] = set()
    waiting = [inner for module in modules for inner in with_members(module, root)]
    while waiting:
        module = waiting.pop()
        if module not in known:
            known.add(module)
            waiting += imports(module, root)
    files = [path for module in known if (path := file_of(module, root)) is not None]
    return sorted(path.relative_to(root) for path in files if has_code(path))


def with_members(module: str, root: Path) -> list[str]:
    """A module and, if it is a package, every module below it."""
    path = file_of(module, root)
    if path is None:
        raise UserError(f"There is no module {module} below {root}. Correct its name.")
    below = path.parent.rglob("*.py") if path.name == "__init__.py" else []
    names = [".".join(other.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for other in below]
    return [module, *names]


@cache
def file_of(module: str, root: Path) -> Path | None:
    """The source file of a module below `root`; None for anything else, such as a class or an installed library."""
    place = root.joinpath(*module.split("."))
    candidates = (place / "__init__.py", place.with_name(place.name + ".py"))
    return next((path for path in candidates if path.is_file()), None)


@cache
def text_of(path: Path) -> str:
    """The source of a file as this process first saw it."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed source of a file."""
    return ast.parse(text_of(path), str(path))


def has_code(path: Path) -> bool:
    """Whether a file holds more than a docstring."""
    return len(tree_of(path).body) > (ast.get_docstring(tree_of(path)) is not None)


@cache
def imports(module: str, root: Path) -> tuple[str, ...]:
    """The modules below `root` that a module imports, the packages around them included."""
    path = file_of(module, root)
    assert path is not None
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    named = {module, *(name for node in executed(tree_of(path)) for name in names_in(node, package))}
    around = {
        ".".join(parts[:end]) for name in named for parts in [name.split(".")] for end in range(1, len(parts) + 1)
    }
    return tuple(sorted(name for name in around if file_of(name, root) is not None))


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all nodes below it, without what stands below `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from executed(other)
        else:
            yield from executed(child)


def names_in(node: ast.AST, package: str) -> list[str]:
    """The dotted names that one node imports; `from a import b` gives a.b too, since b may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*start, *([node.module] if node.module else [])])
        return [base, *(f"{base}.{alias.name}" for alias in node.names)]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        by_name = BY_NAME.fullmatch(node.value)
        beside = f"{package}.{node.value.removesuffix('.py')}" if node.value.endswith(".py") else ""
        return [by_name.group(1)] if by_name else [beside]
    return []


def as_dependencies(files: Iterable[Path], root: Path = ROOT) -> list[str]:
    """A short list that covers `files`: a folder stands for its modules when at least half of them are there.

    More than the closure is safe, and a list of sixty files in every stage would hide what a stage is about. A folder
    with a dvc.yaml is never named, because DVC writes its lock file there, and neither is one that holds the stages.
    """
    wanted = set(files)
    folders = sorted({parent for path in wanted for parent in path.parents if parent.name}, key=lambda p: len(p.parts))
    whole: list[Path] = []
    for folder in folders:
        modules = {path.relative_to(root) for path in (root / folder).rglob("*.py") if has_code(path)}
        inside = any(folder.is_relative_to(other) for other in whole)
        if not inside and room(folder, root) and 1 < len(modules) <= 2 * len(modules & wanted):
            whole.append(folder)
    alone = [path for path in wanted if not any(path.is_relative_to(folder) for folder in whole)]
    return sorted(path.as_posix() for path in [*whole, *alone])


def room(folder: Path, root: Path) -> bool:
    """Whether a folder may stand for its modules: no package as a whole, no stages, no study."""
    return len(folder.parts) > 1 and folder.name != "stages" and not any((root / folder).rglob("dvc.yaml"))


def dependencies(stage: dict[str, Any], root: Path = ROOT) -> list[str]:
    """The `deps` that a stage should have: data as they stand, code after its imports.

    A params.py that is reached brings the params.yaml beside it along, and what loads the task the tasks' files.
    A stage that copies the whole library names the folder `gistgate` by hand, which stays and covers its modules.
    """
    files = closure(stage["cmd"].split()[2], root=root)
    settings = [path.with_suffix(".yaml") for path in files if path.name == "params.py"]
    if LOADS_TASK in files:
        settings.append(TASKS)
    written = [str(dep) for dep in stage["deps"]]
    whole = [dep for dep in written if dep in PACKAGES]
    data = [dep for dep in written if not is_code(dep, root)]
    code = [dep for dep in as_dependencies(files, root) if dep.split("/")[0] not in whole]
    covered = tuple(f"{dep}/" for dep in code)
    read = {path.as_posix() for path in settings if (root / path).exists()}
    return sorted({*whole, *read, *(dep for dep in data if not dep.startswith(covered)), *code})


def is_code(dependency: str, root: Path = ROOT) -> bool:
    """Whether a dependency is a module or a folder of modules, there or meanwhile gone."""
    if dependency.split("/")[0] not in PACKAGES:
        return False
    return dependency.endswith(".py") or not Path(dependency).suffix


def graphs(root: Path = ROOT) -> list[Path]:
    """Every dvc.yaml of the project."""
    return [root / "dvc.yaml", *sorted((root / "pipeline/studies").glob("*/dvc.yaml"))]


def update(path: Path, root: Path = ROOT, write: bool = False) -> list[str]:
    """The stages of a dvc.yaml whose dependencies are out of date; `write` corrects them and keeps all comments."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width, yaml.preserve_quotes = 4096, True
    content = yaml.load(path.read_text(encoding="utf-8"))
    stale = []
    for name, stage in content["stages"].items():
        body = stage.get("do", stage)
        wanted = dependencies(body, root)
        if wanted != list(body["deps"]):
            body["deps"][:] = wanted
            stale.append(name)
    if stale and write:

        def dump(part: Path) -> None:
            with part.open("w", encoding="utf-8") as file:
                yaml.dump(content, file)

        write_atomic(path, dump)
    return stale


def main(write: Annotated[bool, typer.Option("--write", help="Rewrite the files.")] = False) -> None:
    """Compare the dependencies in every dvc.yaml with the imports of its stages."""
    stale = [f"{path.relative_to(ROOT)}:{name}" for path in graphs() for name in update(path, write=write)]
    for name in stale:
        print(f"{name} {'is rewritten' if write else 'is out of date'}")
    if stale and not write:
        raise UserError("The dependencies in dvc.yaml are out of date. Run `make deps`.")


if __name__ == "__main__":
    from pipeline.common.entry import run

    run(main)
