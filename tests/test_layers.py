"""The folders of the library stand in an order: a lower one imports no higher one, and none imports in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "gistgate"
LOOP = ("forward", "request", "rules", "drafters", "gates", "decoding")
"""What takes part in every decode."""


def imported(path: Path) -> set[str]:
    """Modules of the library that a file imports, wherever in it; names as "module" and "module.name"."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return {name for name in found if name.startswith("gistgate.")}


ROOMS = ("optional", "integrations")
"""Folders whose own folders stand beside each other as those of the library do."""


def folder(name: str) -> str:
    """The folder of a module, or the module itself where it stands at the top: "gistgate.rules.fly" is in "rules"."""
    parts = name.split(".")
    return ".".join(parts[1:3]) if parts[1] in ROOMS else parts[1]


def graph() -> dict[str, set[str]]:
    """For each folder of the library the folders that it imports."""
    edges: dict[str, set[str]] = {}
    for path in LIBRARY.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts == ("gistgate", "__init__"):
            continue
        here = folder(".".join(parts))
        edges.setdefault(here, set()).update(folder(name) for name in imported(path))
    return {here: targets - {here} for here, targets in edges.items()}


def test_no_folder_imports_in_a_circle():
    edges = graph()
    assert {"decoding", "optional.trees", "integrations.lm_eval"} <= set(edges)
    TopologicalSorter(edges).prepare()  # raises CycleError


def test_a_circle_is_noticed():
    """The check above can fail."""
    with pytest.raises(CycleError):
        TopologicalSorter({**graph(), "forward": {"decoding"}}).prepare()


def test_the_loop_imports_nothing_optional():
    higher = {"build", "observing", "cli", "demo", "pages"}
    for name in LOOP:
        found = {target for target in graph()[name] if target in higher or target.split(".")[0] in ROOMS}
        assert not found, f"{name} imports {found}"


def test_a_decoder_is_imported_without_anything_optional():
    code = "import sys, gistgate.decoding.decoder; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "gistgate.decoding.session" in loaded and "gistgate.optional" not in loaded
