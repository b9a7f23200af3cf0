"""What may import what: core knows nothing above it, and the library nothing of the pipeline and the benchmarks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ("gistgate", "pipeline", "benchmarks")


def statements(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported: everything outside functions and blocks for type checkers."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            continue
        yield node
        yield from statements([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])


def imported(path: Path, lazily: bool) -> set[str]:
    """The project's own modules that a file imports; `lazily` counts those inside functions, too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set[str]()
    for node in ast.walk(tree) if lazily else statements(tree.body):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in OWN}


@pytest.mark.parametrize(
    ("folder", "allowed", "lazily"),
    [
        ("gistgate/core", ["gistgate.core"], False),
        ("gistgate/rules", ["gistgate.core", "gistgate.rules"], False),
        ("gistgate/drafters", ["gistgate.core", "gistgate.drafters"], False),
        ("gistgate", ["gistgate"], True),
        ("pipeline", ["gistgate", "pipeline"], True),
    ],
)
def test_a_folder_imports_what_lies_below_it(folder: str, allowed: list[str], lazily: bool):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        above = {
            name for name in imported(path, lazily) if not any(f"{name}.".startswith(f"{one}.") for one in allowed)
        }
        assert not above, f"{path.relative_to(ROOT)} imports {', '.join(sorted(above))}"
