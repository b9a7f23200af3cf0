"""What imports what: core knows nothing above it, and a registry imports what is asked for and helps with names."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gistgate.core.utils import Registry, UserError, nearest
from gistgate.drafters import DRAFTERS
from gistgate.rules import RULES

THINGS: Registry[object] = Registry("thing", {"path": "pathlib:PurePath", "number": 7})


def test_texts_name_what_is_imported_on_first_use_and_an_unknown_id_is_answered_with_the_nearest_one():
    from pathlib import PurePath

    assert THINGS["path"] is PurePath and THINGS["path"] is THINGS["path"] and THINGS["number"] == 7
    assert list(THINGS) == ["path", "number"] and len(THINGS) == 2 and THINGS.get("other") is None
    with pytest.raises(UserError) as error:
        _ = THINGS["numbr"]
    assert str(error.value) == "There is no thing 'numbr'. Did you mean 'number'?"
    with pytest.raises(KeyError, match="Known: number, path"):
        _ = THINGS["zzz"]
    assert nearest("zzz", []) == "Known: none."


@pytest.mark.parametrize("registry", [RULES, DRAFTERS], ids=["rules", "drafters"])
def test_every_entry_can_be_imported(registry: Registry[type]):
    assert all(isinstance(registry[name], type) for name in registry)


def test_naming_rules_and_drafters_imports_none_of_them():
    code = "import sys, gistgate.rules, gistgate.drafters; print([m for m in sys.modules if m.startswith('gistgate.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "gistgate.rules.divergence" not in loaded and "gistgate.core.guards" not in loaded


ROOT = Path(__file__).parents[1]
OWN = ("gistgate", "pipeline", "benchmarks")


def statements(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when a module is imported: everything outside functions and blocks for type checkers."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            continue
        yield node
        yield from statements([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])


def own_imports(path: Path, lazily: bool) -> set[str]:
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
            name for name in own_imports(path, lazily) if not any(f"{name}.".startswith(f"{one}.") for one in allowed)
        }
        assert not above, f"{path.relative_to(ROOT)} imports {', '.join(sorted(above))}"
