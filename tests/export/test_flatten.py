"""The copy of the package for plain transformers: flat, complete, and nothing in it that a plain
installation lacks.
"""

import ast
from pathlib import Path

import pytest

from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.export.write import SEGMENTS, copied, flatten, write_code
from gistgate.rules import RULES

EVERYTHING = sorted(
    {thing.__module__ for registry in (RULES, DRAFTERS) for thing in registry.values()}
)


@pytest.mark.parametrize(
    "extra", [(), SEGMENTS, EVERYTHING], ids=["loop", "segments", "every rule and drafter"]
)
def test_every_relative_import_finds_its_file_and_its_name(extra: tuple[str, ...]) -> None:
    texts = flatten(extra)
    trees = {name: ast.parse(text) for name, text in texts.items()}
    assert {"generate.py", "core_decoder.py", "core_guards.py"} <= set(texts)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                defined = ast.dump(trees[f"{node.module}.py"])
                assert all(f"'{alias.name}'" in defined for alias in node.names), (
                    name,
                    ast.unparse(node),
                )
            assert not (
                isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gistgate")
            ), name


def test_what_is_imported_late_and_not_copied_becomes_a_sentence() -> None:
    text = "def f():\n    from gistgate.far import away\n    return away\n"
    assert "but not gistgate.far. Install GistGate" in copied(text, {})
    with pytest.raises(UserError, match="Import it inside the function"):
        copied("import mlflow\n", {})


def test_equal_packages_give_equal_files_and_old_ones_go(tmp_path: Path) -> None:
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate/old.py").write_text("old")
    write_code(tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "custom_generate").iterdir()}
    write_code(tmp_path)
    assert first == {
        path.name: path.read_bytes() for path in (tmp_path / "custom_generate").iterdir()
    }
    assert "old.py" not in first
