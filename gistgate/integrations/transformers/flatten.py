"""The part of the package that a gate needs, as a few flat files that transformers' dynamic modules can load.

The export starts from an entry module and follows imports at the top of modules. Each folder of the library becomes
one file: gistgate/rules/base.py and gistgate/rules/exact.py are two sections of rules.py. An import inside a function
of something that is not exported becomes an error that says to install the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from gistgate.errors import UserError
from gistgate.files import write_atomic
from gistgate.integrations.transformers.sources import LIBRARY, Import, Package, Source, in_order

ENTRY = "gistgate.integrations.transformers.generate"
"""The module whose folder becomes generate.py."""
FOLDER, FILE, BASE = "custom_generate", "generate", "base"
"""Where transformers looks for a function `generate`; the last is the file of modules that lie in no folder."""
HEADER = '"""Generated from {names}. Do not edit: change the library and export again."""\n\n'
MISSING = "{module} is not part of this folder. Install it with `pip install {package}`, and use that package."
SEEN_BY_TRANSFORMERS = re.compile(r"^\s*from\s+\.(\S+)\s+import", re.MULTILINE)
"""How transformers finds the files that a file needs; it reads comments and docstrings as well."""


def write_code(folder: str | Path, extra: Sequence[str] = (), entry: str = ENTRY) -> None:
    """Write `custom_generate/` into a gate folder; one that is there already is replaced.

    `extra` names further modules that are exported, such as the rule that the gate was certified with.
    """

    def fill(place: Path) -> None:
        place.mkdir()
        for name, text in flatten(entry, extra).items():
            (place / name).write_text(text, encoding="utf-8")

    write_atomic(Path(folder) / FOLDER, fill)


def flatten(entry: str = ENTRY, extra: Sequence[str] = (), package: Package = LIBRARY) -> dict[str, str]:
    """File name -> content, for the modules that are named and everything that they need.

    Raises:
        UserError: something cannot be exported; module, line and remedy are named.
    """
    modules = closure([entry, *extra], package)
    files = {name: file_of(name, entry, package) for name in modules}
    sections: dict[str, list[Source]] = {}
    for name in in_order({name: source.needs for name, source in modules.items()}):
        sections.setdefault(files[name], []).append(modules[name])
    texts = {f"{file}.py": written(file, parts, files, package) for file, parts in sorted(sections.items())}
    check_files(texts)
    return texts


def closure(roots: Sequence[str], package: Package) -> dict[str, Source]:
    """Modules and all modules that they cannot be loaded without."""
    found: dict[str, Source] = {}
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = package.read(name)
            todo += found[name].needs
    return found


def file_of(module: str, entry: str, package: Package) -> str:
    """The exported file of a module: that of its folder below the package, generate for the entry's folder."""
    parts = module.split(".")[1:]
    path = package.path(module)
    folder = parts if path is not None and path.name == "__init__.py" else parts[:-1]
    if folder == entry.split(".")[1:-1]:
        return FILE
    return "_".join(folder[:2] if folder[:1] == ["optional"] else folder[:1]) or BASE


def written(file: str, parts: Sequence[Source], files: dict[str, str], package: Package) -> str:
    """One exported file: the imports of its modules, and the modules one below the other."""
    check_names(parts)
    top: dict[str, set[str]] = {}
    sections = []
    for source in parts:
        text = section(source, file, files, package, top)
        sections.append(f"# ---- {'/'.join(source.name.split('.'))}\n\n{text.strip()}\n")
    names = ", ".join(source.name for source in parts)
    text = HEADER.format(names=names) + head(top) + "\n\n" + "\n\n".join(sections)
    return re.sub(r"\n{4,}", "\n\n\n", text)


def check_names(parts: Sequence[Source]) -> None:
    """Refuse two modules of one file that give one name two meanings."""
    owners: dict[str, Source] = {}
    for source in parts:
        for name, definition in source.defined.items():
            other = owners.setdefault(name, source)
            if other.defined[name] != definition:
                raise UserError(
                    f"{other.name} and {source.name} cannot be exported together: both define {name}. Rename one."
                )


def section(source: Source, file: str, files: dict[str, str], package: Package, top: dict[str, set[str]]) -> str:
    """The text of a module without the imports at its top, which are added to `top`."""
    lines: list[str | None] = list(source.text.splitlines(keepends=True))
    for block in source.typing_blocks:
        replace(lines, block, [])
    for item in source.imports:
        if item.is_lazy:
            if item.is_own:
                replace(lines, item.node, late(item, file, files, package))
            continue
        replace(lines, item.node, [])
        for alias in item.node.names:
            if item.is_own and files[item.module] == file:
                if alias.asname:
                    lines[item.node.lineno - 1] = f"{alias.asname} = {alias.name}\n"
                continue
            where = f".{files[item.module]}" if item.is_own else item.module
            top.setdefault(where, set()).add(ast.unparse(alias))
    return "".join(line for line in lines if line is not None)


def replace(lines: list[str | None], node: ast.stmt, new: list[str]) -> None:
    """Put lines of text in place of a statement, with its indentation."""
    end = node.end_lineno or node.lineno
    lines[node.lineno - 1 : end] = [None] * (end - node.lineno + 1)
    if new:
        lines[node.lineno - 1] = "".join(f"{' ' * node.col_offset}{line}\n" for line in new)


def late(item: Import, file: str, files: dict[str, str], package: Package) -> list[str]:
    """What stands in place of an import inside a function."""
    names = ", ".join(ast.unparse(alias) for alias in item.node.names)
    if item.module not in files:
        missing = MISSING.format(module=item.module, package=package.name)
        return [*([] if file == BASE else [f"from .{BASE} import UserError"]), f'raise UserError("{missing}")']
    return [] if files[item.module] == file else [f"from .{files[item.module]} import {names}"]


def head(top: dict[str, set[str]]) -> str:
    """All imports of a file: `from __future__` first, own files last."""
    lines = ["from __future__ import annotations"]
    top.pop("__future__", None)
    lines += [f"import {name}" for name in sorted(top.pop("", ()))]
    lines += [f"from {where} import {', '.join(sorted(top[where]))}" for where in sorted(top, key=import_order)]
    return "\n".join(lines) + "\n"


def import_order(where: str) -> tuple[bool, str]:
    """Libraries before own files, each by name."""
    return where.startswith("."), where


def check_files(texts: dict[str, str]) -> None:
    """Refuse files that transformers would misread.

    Raises:
        UserError: a text looks like a relative import, or the files import each other in a circle.
    """
    needs: dict[str, list[str]] = {}
    for file, text in texts.items():
        tree = ast.parse(text)
        imported = {node.module: node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level}
        for unwanted in set(SEEN_BY_TRANSFORMERS.findall(text)) ^ set(imported):
            raise UserError(
                f"{file} cannot be exported: transformers would misread its imports at '.{unwanted}'. "
                "Keep examples of relative imports out of texts."
            )
        needs[file] = [f"{node.module}.py" for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
    in_order(needs)
