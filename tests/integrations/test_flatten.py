"""Modules become one flat folder, and what cannot become one is refused with module, line and remedy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from gistgate.errors import UserError
from gistgate.integrations.transformers.flatten import flatten, write_code
from gistgate.integrations.transformers.sources import Package


def package(folder: Path, **modules: str) -> Package:
    """A package `pkg`; "a__b" is the file a/b.py, "init" the package's own."""
    for name, text in {"init": "", **modules}.items():
        path = folder / "pkg" / ("__init__.py" if name == "init" else name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Package("pkg", folder / "pkg")


def test_the_closure_runs_alone(tmp_path: Path) -> None:
    source = package(
        tmp_path,
        main="from __future__ import annotations\nfrom pkg.a.b import (\n    one,  # stays\n)\nprint(one() + 1)\n",
        a__b="from math import floor\n\ndef one():\n    from pkg.c import value\n    return floor(value)\n",
        c="value = 1.5\n",
        unused="raise SystemExit('never exported')\n",
    )
    files = flatten("pkg.main", source)
    assert list(files) == ["a_b.py", "c.py", "generate.py"]
    assert "from .a_b import (\n    one,  # stays\n)" in files["generate.py"]
    assert files["a_b.py"].startswith("# Generated from pkg.a.b. Do not edit")
    flat = tmp_path / "flat"
    flat.mkdir()
    for name, text in files.items():
        (flat / name).write_text(text)
    done = subprocess.run([sys.executable, "-m", "flat.generate"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import pkg.c", "pkg.main, line 1, .* `import pkg.c`. Write `from pkg.c import name`"),
        ("import pkg.c as c", "`import pkg.c`"),
        ("from pkg import thing", "imports from pkg itself"),
        ("from pkg.a import b", "imports the module pkg.a.b"),
        ("from pkg.c import *", "imports everything from pkg.c"),
        ("from .c import value", "its import is relative"),
        ("from pkg.missing import value", "pkg.missing cannot be exported: there is no such module"),
        ("import yaml", "it imports yaml. Use numpy, safetensors, torch, transformers and the standard library"),
        ("def f():\n    from sklearn.svm import SVC", "line 2, .* it imports sklearn"),
        ("from importlib import import_module\nimport_module('pkg.c')", "it uses import_module"),
        ("path = __file__", "it uses __file__"),
        ("from pkg.c \\\n    import value", "the import is spread out"),
        ("x = 1; from pkg.c import value", "transformers would misread its imports at '.c'"),
        ("'''\nfrom .other import value\n'''", "transformers would misread its imports at '.other'"),
        ("from pkg.a.b import x\nfrom pkg.a_b import y", "both become a_b.py"),
        ("from pkg.generate import x", "both become generate.py"),
        ("from pkg.circle import x", "pkg.main -> pkg.circle -> pkg.main cannot be exported"),
    ],
)
def test_what_cannot_be_flattened_is_refused(tmp_path: Path, text: str, message: str) -> None:
    others = {"c": "value = 1", "a____init__": "", "a__b": "x = 1", "a_b": "y = 1", "generate": "x = 1"}
    source = package(tmp_path, main=text + "\n", circle="from pkg.main import y\n", **others)
    with pytest.raises(UserError, match=message):
        flatten("pkg.main", source)


def test_a_circle_that_closes_inside_a_function_is_fine(tmp_path: Path) -> None:
    late = "def f():\n    from pkg.main import y\n    return y\n"
    source = package(tmp_path, main="from pkg.late import f\ny = 1\n", late=late)
    assert set(flatten("pkg.main", source)) == {"generate.py", "late.py"}


def test_the_library_flattens(tmp_path: Path) -> None:
    files = flatten()
    assert {"generate.py", "block.py", "rules.py", "gates_gate.py", "decoding_decoder.py"} <= files.keys()
    for text in files.values():
        imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [node for node in imported if "gistgate" in ast.unparse(node)]


def test_equal_libraries_give_equal_folders_and_old_files_go(tmp_path: Path) -> None:
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate" / "old.py").write_text("")
    write_code(tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "custom_generate").iterdir()}
    write_code(tmp_path)
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "custom_generate").iterdir()}
    assert first.keys() == flatten().keys()
