"""The part of the package that a gate needs, copied into one flat folder that transformers' dynamic
modules can load. The copy follows imports at the top of modules: gistgate/core/block.py becomes
core_block.py. An import in a function of something that is not copied becomes an error that says to
install the package."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

import gistgate
from gistgate.core.certificate import read_certificate
from gistgate.core.files import write_atomic
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.models.build import TUNED
from gistgate.models.choose import GATED, MODEL, STRICT
from gistgate.rules import RULES

ENTRY = "gistgate.export.generate"  # the module that becomes generate.py
# Parts of every folder, though a decoder imports them only where somebody asks for guards or
# another way to draft.
DRAFTING = ("adaptive", "stopping", "suffix", "text")
ASKED = ("gistgate.core.guards", *(f"gistgate.drafters.{name}" for name in DRAFTING))
SEGMENTS = (
    "gistgate.segments.build",
)  # the module that a folder of segment probes needs besides the loop
FOLDER = "custom_generate"  # where transformers looks for generate.py and its function `generate`
# What copied code may import; transformers refuses a folder with missing imports.
LIBRARIES = {"numpy", "safetensors", "torch", "transformers"} | sys.stdlib_module_names
MISSING = (
    "This folder carries what its gate was certified with, but not {module}. Install GistGate"
    f" (`pip install .` in its clone) and call {ENTRY}.generate(model, ...) in place of"
    " custom_generate."
)
REFERENCE = re.compile(
    r'"(gistgate(?:\.\w+)+):(\w+)"'
)  # how a registry names what it imports on first use


def write_code(folder: str | Path, extra: Sequence[str] | None = None) -> None:
    """Write `custom_generate/` into a gate folder anew, with the modules `extra` (default:
    `certified_modules`).
    """
    texts = flatten(certified_modules(folder) if extra is None else extra)

    def fill(place: Path) -> None:
        place.mkdir()
        for name, text in texts.items():
            (place / name).write_text(text, encoding="utf-8")

    write_atomic(Path(folder) / FOLDER, fill)


def certified_modules(folder: str | Path) -> list[str]:
    """Modules of strict verification, and of rules and drafters of the folder's certificates (else
    the usual ones).
    """
    places = [place for place in (Path(folder), Path(folder) / TUNED) if place.is_dir()]
    found = [
        certificate for place in places if (certificate := read_certificate(place)) is not None
    ]
    rules = {STRICT, *([one.rule for one in found] or [GATED])}
    drafters = {one.drafter for one in found if one.drafter in DRAFTERS} or {MODEL}
    return sorted(
        {*(RULES[one].__module__ for one in rules), *(DRAFTERS[one].__module__ for one in drafters)}
    )


def flatten(extra: Sequence[str] = ()) -> dict[str, str]:
    """File name -> content, for the entry, the modules that are named, and everything that they
    import at their top.
    """
    texts: dict[str, str] = {}
    todo = [ENTRY, *ASKED, *extra]
    while todo:
        if (module := todo.pop()) not in texts:
            path = Path(gistgate.__file__ or "").parent.joinpath(*module.split(".")[1:])
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            texts[module] = path.read_text(encoding="utf-8")
            todo += [node.module or "" for node in ast.parse(texts[module]).body if is_own(node)]
    files = {
        module: "generate" if module == ENTRY else "_".join(module.split(".")[1:])
        for module in texts
    }
    named = {
        match for text in texts.values() for match in REFERENCE.findall(text) if match[0] in files
    }
    return {
        f"{files[module]}.py": copied(text, files, sorted(named))
        for module, text in sorted(texts.items())
    }


def is_own(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    """Whether a statement imports from this package."""
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gistgate"


def copied(text: str, files: dict[str, str], named: Sequence[tuple[str, str]] = ()) -> str:
    """A module whose imports name the files beside it; `imported` finds the `named` (module, name)
    of registries.
    """
    lines = text.splitlines()
    tree = ast.parse(text)
    typing = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    hidden = {id(node) for block in typing for node in ast.walk(block)}
    changes: list[tuple[ast.stmt, list[str]]] = [(node, []) for node in typing]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "imported":
            new = [
                "def imported(reference: str) -> Any:",
                '    """What "module:name" refers to, of what lies here."""',
            ]
            for module, name in named:
                new += [
                    f'    if reference == "{module}:{name}":',
                    f"        from .{files[module]} import {name}",
                ]
                new.append(f"        return {name}")
            changes.append(
                (node, [*new, f"    raise UserError({MISSING!r}.format(module=reference))"])
            )
        if id(node) in hidden or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        modules = (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
        if is_own(node) and modules[0] in files:
            names = ", ".join(map(ast.unparse, node.names))
            changes.append((node, [f"from .{files[modules[0]]} import {names}"]))
        elif not all(one.split(".")[0] in LIBRARIES for one in modules):
            if not node.col_offset:
                raise UserError(
                    f"{modules[0]} cannot be exported. Import it inside the function that needs it."
                )
            said = f"raise UserError({MISSING.format(module=modules[0])!r})"
            changes.append((node, ["from .core_utils import UserError", said]))
    for node, new in sorted(changes, key=lambda change: -change[0].lineno):
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + line for line in new]
    return "\n".join(line for line in lines if line != "from importlib import import_module") + "\n"
