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

from gistgate.build.choose import GATED, MODEL, STRICT
from gistgate.build.preference import TUNED
from gistgate.certificates.certificate import read_proof
from gistgate.drafters import DRAFTERS
from gistgate.errors import UserError
from gistgate.files import write_atomic
from gistgate.integrations.transformers.sources import CARRIED, LIBRARY, Import, Package, Source, in_order
from gistgate.rules import RULES

ENTRY = "gistgate.integrations.transformers.generate"
"""The module whose folder becomes generate.py."""
SEGMENTS = ("gistgate.build.segments", "gistgate.optional.segments.building")
"""The modules that a folder of segment probes needs besides the loop."""
FOLDER, FILE, BASE = "custom_generate", "generate", "base"
"""Where transformers looks for a function `generate`; the last is the file of modules that lie in no folder."""
HEADER = '"""Generated from {names}. Do not edit: change the library and export again."""\n\n'
MISSING = (
    "This folder carries what its gate was certified with, but not {module}. Install GistGate (`pip install .` in "
    f"its clone) and call {ENTRY}.generate(model, ...) in place of custom_generate."
)
REFERENCE = re.compile(r'"([A-Za-z_]\w*(?:\.\w+)+):(\w+)"')
"""How a registry names what it imports on first use."""
SEEN_BY_TRANSFORMERS = re.compile(r"^\s*from\s+\.(\S+)\s+import", re.MULTILINE)
"""How transformers finds the files that a file needs; it reads comments and docstrings as well."""


def write_code(folder: str | Path, extra: Sequence[str] | None = None) -> None:
    """Write `custom_generate/` into a gate folder; one that is there already is replaced.

    `extra` names the modules that are exported besides the loop; default: the rule and the drafter that the gate in
    the folder was certified with.
    """
    wanted = certified_modules(folder) if extra is None else extra

    def fill(place: Path) -> None:
        place.mkdir()
        for name, text in flatten(extra=wanted).items():
            (place / name).write_text(text, encoding="utf-8")

    write_atomic(Path(folder) / FOLDER, fill)


def certified_modules(folder: str | Path) -> list[str]:
    """The modules of strict verification and of the certified rule and drafter, or of the usual ones without a proof.

    A choice of `gistgate tune` has a proof of its own.
    """
    places = [Path(folder), Path(folder) / TUNED]
    proofs = [proof for place in places if place.is_dir() and (proof := read_proof(place)) is not None]
    rules = {STRICT, *([proof.rule for proof in proofs] or [GATED])}
    drafters = {proof.drafter for proof in proofs if proof.drafter in DRAFTERS} or {MODEL}
    return sorted({*(RULES[rule].__module__ for rule in rules), *(DRAFTERS[name].__module__ for name in drafters)})


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
    texts = {f"{file}.py": written(file, parts, files) for file, parts in sorted(sections.items())}
    carried = {found for source in modules.values() for found in REFERENCE.findall(source.text) if found[0] in files}
    texts = {file: text.replace(CARRIED, resolver(sorted(carried), files)) for file, text in texts.items()}
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
    return folder[0] if folder else BASE


def written(file: str, parts: Sequence[Source], files: dict[str, str]) -> str:
    """One exported file: the imports of its modules, and the modules one below the other."""
    check_names(parts)
    top: dict[str, set[str]] = {}
    sections = []
    for source in parts:
        text = section(source, file, files, top)
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


def section(source: Source, file: str, files: dict[str, str], top: dict[str, set[str]]) -> str:
    """The text of a module without the imports at its top, which are added to `top`."""
    lines: list[str | None] = list(source.text.splitlines(keepends=True))
    for block in source.typing_blocks:
        replace(lines, block, [])
    for item in source.imports:
        if item.is_lazy:
            if item.is_own:
                replace(lines, item.node, late(item, file, files))
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


def late(item: Import, file: str, files: dict[str, str]) -> list[str]:
    """What stands in place of an import inside a function."""
    names = ", ".join(ast.unparse(alias) for alias in item.node.names)
    if item.module not in files:
        error = [] if file == BASE else [f"from .{BASE} import UserError"]
        return [*error, *missing(item.module)]
    if files[item.module] == file:
        return [f"{alias.asname} = {alias.name}" for alias in item.node.names if alias.asname]
    return [f"from .{files[item.module]} import {names}"]


def missing(module: str) -> list[str]:
    """Lines that say that a module is not exported."""
    return ["raise UserError(", f"    {MISSING.format(module=module)!r}", ")"]


def resolver(carried: Sequence[tuple[str, str]], files: dict[str, str]) -> str:
    """The lines that find what a registry refers to, in place of an import by name."""
    lines = ['"""What "module:name" refers to, among what this folder carries."""']
    for module, name in carried:
        where = [] if files[module] == BASE else [f"    from .{files[module]} import {name}"]
        lines += [f'if reference == "{module}:{name}":', *where, f"    return {name}"]
    lines += ["raise UserError(", f"    {MISSING.format(module='{reference}')!r}.format(reference=reference)", ")"]
    return "".join(f"    {line}\n" for line in lines)


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
