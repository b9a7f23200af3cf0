"""A package's modules as one flat folder, the only form of many files that transformers' dynamic modules can load.

Starting from an entry module, the closure of its imports becomes one file per module: gistgate.rules.base becomes
rules_base.py, and `from gistgate.rules.base import Rule` in it `from .rules_base import Rule`. Nothing else changes.
"""

from __future__ import annotations

import re
from pathlib import Path

from gistgate.errors import UserError
from gistgate.files import write_atomic
from gistgate.integrations.transformers.sources import LIBRARY, Import, Package, Source

ENTRY = "gistgate.integrations.transformers.generate"
"""The module that becomes generate.py."""
FOLDER, FILE = "custom_generate", "generate"
"""Where transformers looks for a function `generate`."""
HEADER = "# Generated from {module}. Do not edit: change that module and export again.\n"
SEEN_BY_TRANSFORMERS = re.compile(r"^\s*from\s+\.(\S+)\s+import", re.MULTILINE)
"""How transformers finds the files that a file needs; it reads comments and docstrings as well."""


def write_code(folder: str | Path, entry: str = ENTRY) -> None:
    """Write `custom_generate/` into a gate folder; one that is there already is replaced."""

    def fill(place: Path) -> None:
        place.mkdir()
        for name, text in flatten(entry).items():
            (place / name).write_text(text, encoding="utf-8")

    write_atomic(Path(folder) / FOLDER, fill)


def flatten(entry: str = ENTRY, package: Package = LIBRARY) -> dict[str, str]:
    """File name -> content, for `entry` and everything it imports.

    Raises:
        UserError: something cannot be flattened; module, line and remedy are named.
    """
    modules = closure(entry, package)
    check_cycles(modules, entry)
    names = flat_names(modules, entry)
    return {f"{names[name]}.py": rewritten(source, names) for name, source in sorted(modules.items())}


def closure(entry: str, package: Package) -> dict[str, Source]:
    """`entry` and every module of the package that it needs, directly or not."""
    found: dict[str, Source] = {}
    todo = [entry]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = package.read(name)
            todo += [item.module for item in found[name].imports]
    return found


def check_cycles(modules: dict[str, Source], entry: str) -> None:
    """Refuse modules that import each other while they load: without their packages they load in another order."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise UserError(f"{circle} cannot be exported: the imports form a cycle. Move one into a function.")
        if name not in done:
            for item in modules[name].imports:
                if not item.lazy:
                    visit(item.module, (*path, name))
            done.add(name)

    visit(entry, ())


def flat_names(modules: dict[str, Source], entry: str) -> dict[str, str]:
    """Dotted name -> flat name; the entry is called as transformers wants it."""
    names = {name: FILE if name == entry else "_".join(name.split(".")[1:]) for name in modules}
    owners: dict[str, str] = {}
    for name, flat in names.items():
        if flat in owners:
            raise UserError(
                f"{owners[flat]} and {name} cannot be exported together: both become {flat}.py. Rename one."
            )
        owners[flat] = name
    return names


def rewritten(source: Source, names: dict[str, str]) -> str:
    """The module with flat imports and a header."""
    lines = source.text.splitlines(keepends=True)
    for item in source.imports:
        lines[item.line - 1] = with_flat_import(source.name, lines[item.line - 1], item, names[item.module])
    text = HEADER.format(module=source.name) + "".join(lines)
    wanted = {names[item.module] for item in source.imports}
    for unwanted in set(SEEN_BY_TRANSFORMERS.findall(text)) ^ wanted:
        raise UserError(
            f"{source.name} cannot be exported: transformers would misread its imports at '.{unwanted}'. "
            "Put every import on a line of its own and keep examples of relative imports out of texts."
        )
    return text


def with_flat_import(module: str, line: str, item: Import, flat: str) -> str:
    """One line with `from package.a.b import` replaced by `from .a_b import`."""
    before = line.encode()[: item.column].decode()
    old = f"from {item.module} import"
    rest = line[len(before) :]
    if not rest.startswith(old):
        raise UserError(
            f"{module}, line {item.line}, cannot be exported: the import is spread out. Write `{old} ...` on one line."
        )
    return f"{before}from .{flat} import{rest[len(old) :]}"
