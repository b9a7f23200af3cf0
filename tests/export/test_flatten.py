"""Modules become a few flat files, and what cannot be exported is refused with module, line and remedy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from gistgate.core.utils import UserError
from gistgate.export.write import Package, flatten, write_code

REGISTRY = """from importlib import import_module

def imported(reference):
    return import_module(reference)
"""


def package(folder: Path, **modules: str) -> Package:
    """A package `pkg`; "a__b" is the file a/b.py, "init" the package's own."""
    for name, text in {"init": "", **modules}.items():
        path = folder / "pkg" / ("__init__.py" if name == "init" else name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Package("pkg", folder / "pkg")


def run_flat(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the exported generate.py prints."""
    flat = folder / "flat"
    flat.mkdir()
    for name, text in files.items():
        (flat / name).write_text(text)
    return subprocess.run([sys.executable, "-m", "flat.generate"], cwd=folder, capture_output=True, text=True)


def test_the_closure_runs_alone(tmp_path: Path) -> None:
    source = package(
        tmp_path,
        main__start="from __future__ import annotations\nfrom pkg.a.b import (\n    one,  # one\n)\nprint(one() + 1)\n"
        "from pkg.registry import imported\nprint(imported('pkg.a.c:value'))\n",
        a__b="from math import floor\n\ndef one():\n    from pkg.a.c import value as found\n    return floor(found)\n",
        a__c='from pkg.d import half as part\nvalue = 1 + part\nKNOWN = "pkg.a.c:value"\n',
        d="half = 0.5\n",
        registry=REGISTRY,
        unused="raise SystemExit('never exported')\n",
    )
    files = flatten("pkg.main.start", ["pkg.a.c"], source)
    assert list(files) == ["a.py", "base.py", "generate.py"]
    assert "from .a import one\n" in files["generate.py"] and "from .base import half as part\n" in files["a.py"]
    assert files["a.py"].startswith('"""Generated from pkg.a.')
    done = run_flat(tmp_path, files)
    assert done.stdout == "2\n1.5\n", done.stderr


def test_what_is_imported_late_and_not_exported_becomes_a_sentence(tmp_path: Path) -> None:
    source = package(
        tmp_path,
        main__start="from pkg.errors import UserError\n\ndef f():\n    from pkg.other import rare\n    return rare\n\n"
        "try:\n    f()\nexcept UserError as error:\n    print(error)\n",
        errors="class UserError(Exception):\n    pass\n",
        other="rare = 1\n",
    )
    done = run_flat(tmp_path, flatten("pkg.main.start", package=source))
    assert "but not pkg.other. Install GistGate (`pip install .` in its clone)" in done.stdout, done.stderr


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
        ("x = 1; from pkg.c import value", "the import shares its line with another statement"),
        ("'''\nfrom .other import value\n'''", "transformers would misread its imports at '.other'"),
        ("from pkg.a.b import x\nfrom pkg.a.d import y", "pkg.a.b and pkg.a.d cannot be .* both define same"),
        ("from pkg.circle import x", "pkg.circle -> pkg.main -> pkg.circle cannot be exported"),
        ("from pkg.a.e import x", "a.py -> f.py -> a.py cannot be exported"),
    ],
)
def test_what_cannot_be_flattened_is_refused(tmp_path: Path, text: str, message: str) -> None:
    others = {
        "c": "value = 1",
        "a____init__": "",
        "a__b": "x = 1\nsame = 1",
        "a__d": "y = 1\nsame = 2",
        "a__e": "from pkg.f.g import x",
        "f__g": "from pkg.a.b import x",
    }
    source = package(tmp_path, main=text + "\n", circle="from pkg.main import y\n", **others)
    with pytest.raises(UserError, match=message):
        flatten("pkg.main", package=source)


def test_names_for_type_checkers_are_not_exported(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg.main import y\nx = 1\n"
    source = package(tmp_path, main="from pkg.late import x\ny = 1\n", late=text)
    assert "import y" not in "".join(flatten("pkg.main", package=source).values())


def test_the_library_exports_what_the_usual_gate_needs(tmp_path: Path) -> None:
    write_code(tmp_path)
    files = {path.name: path.read_text() for path in (tmp_path / "custom_generate").iterdir()}
    assert {"generate.py", "rules.py", "drafters.py", "gates.py", "decoding.py"} <= files.keys() and len(files) <= 12
    for text in files.values():
        imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [node for node in imported if "gistgate" in ast.unparse(node)]
    assert "class AutoJudge" in files["rules.py"] and "class Fly" not in files["rules.py"]
    assert "class CompiledSession" not in files["decoding.py"]


def test_equal_libraries_give_equal_folders_and_old_files_go(tmp_path: Path) -> None:
    (tmp_path / "custom_generate").mkdir()
    (tmp_path / "custom_generate" / "old.py").write_text("")
    write_code(tmp_path)
    first = {path.name: path.read_bytes() for path in (tmp_path / "custom_generate").iterdir()}
    write_code(tmp_path)
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "custom_generate").iterdir()}
    assert "old.py" not in first
