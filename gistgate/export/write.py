"""The part of the package that a gate needs, as a few flat files that transformers' dynamic modules can load.

The export starts from an entry module and follows imports at the top of modules. Each folder of the library becomes
one file: gistgate/rules/base.py and gistgate/rules/exact.py are two sections of rules.py. An import inside a function
of something that is not exported becomes an error that says to install the package.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import gistgate
from gistgate.core.certificate import read_certificate
from gistgate.core.files import write_atomic
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.models.build import GATED, MODEL, STRICT, TUNED
from gistgate.rules import RULES

# ---- Modules of a package as text, with their imports: what the export starts from.


LIBRARIES = frozenset({"numpy", "safetensors", "torch", "transformers"})
"""What exported code may import besides the standard library; transformers refuses a folder with missing imports."""
SELF_KNOWLEDGE = frozenset({"__file__", "__import__", "__package__", "__path__", "import_module"})
"""Names through which code finds its package; in the exported folder they would find another one."""
REGISTRY, IMPORTED = "registry", "imported"
"""The module and its function that import things by name, which flat files cannot do."""
CARRIED = "    raise NotImplementedError(reference)\n"
"""What stands in place of that function's body until it is known what is exported."""


@dataclass(frozen=True)
class Import:
    """One import statement of a module."""

    node: ast.Import | ast.ImportFrom
    is_own: bool
    """Whether it imports from the exported package."""
    is_lazy: bool
    """Whether it stands inside a function, where it runs after all modules are loaded."""

    @property
    def module(self) -> str:
        """Dotted name of the imported module; empty for `import a, b`."""
        return self.node.module or "" if isinstance(self.node, ast.ImportFrom) else ""


@dataclass(frozen=True)
class Source:
    """One module."""

    name: str
    """Dotted name."""
    text: str
    imports: tuple[Import, ...] = ()
    """Its imports in order, without those for type checkers."""
    typing_blocks: tuple[ast.If, ...] = ()
    """Its `if TYPE_CHECKING:` blocks, which are not exported."""

    @property
    def needs(self) -> list[str]:
        """Modules of the package that it cannot be loaded without."""
        return [item.module for item in self.imports if item.is_own and not item.is_lazy]

    @cached_property
    def defined(self) -> dict[str, str]:
        """Names that it defines at its top level -> the text of the definition."""
        found: dict[str, str] = {}
        for node in ast.parse(self.text).body:
            names: list[str] = []
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            found |= {name: ast.unparse(node) for name in names}
        return found


@dataclass
class Reading:
    """What is found while a module is read."""

    imports: list[Import] = field(default_factory=list)
    typing_blocks: list[ast.If] = field(default_factory=list)


@dataclass(frozen=True)
class Package:
    """A package on disk."""

    name: str
    root: Path
    """Folder of its `__init__.py`."""

    def path(self, module: str) -> Path | None:
        """The file of a module; None when there is no such module."""
        parts = module.split(".")[1:]
        places = [self.root.joinpath(*parts, "__init__.py")]
        if parts:
            places.append(self.root.joinpath(*parts[:-1], f"{parts[-1]}.py"))
        return next((place for place in places if place.is_file()), None)

    def read(self, module: str) -> Source:
        """A module and its imports.

        Raises:
            UserError: there is no such module, or it does something that cannot be exported.
        """
        path = self.path(module)
        if path is None:
            raise UserError(f"{module} cannot be exported: there is no such module. Correct the import.")
        text = path.read_text(encoding="utf-8")
        if module == f"{self.name}.{REGISTRY}":
            text = without_imports_by_name(text)
        reading = Reading()
        self._visit(module, ast.parse(text), reading, is_lazy=False)
        for item in reading.imports:
            check_line(module, text.splitlines(), item.node)
        return Source(module, text, tuple(reading.imports), tuple(reading.typing_blocks))

    def _visit(self, module: str, node: ast.AST, reading: Reading, is_lazy: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and name_of(child.test) == "TYPE_CHECKING":
                reading.typing_blocks.append(child)
                continue
            if isinstance(child, ast.Import | ast.ImportFrom):
                reading.imports.append(Import(child, self._check(module, child), is_lazy))
            elif (named := name_of(child)) in SELF_KNOWLEDGE:
                refuse(module, child, f"it uses {named}", "Import names with `from package.module import name`")
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            self._visit(module, child, reading, is_lazy or inside)

    def _check(self, module: str, node: ast.Import | ast.ImportFrom) -> bool:
        """Whether an import is from this package; imports that cannot be exported are refused."""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if self._is_own(alias.name):
                    refuse(module, node, f"it says `import {alias.name}`", f"Write `from {alias.name} import name`")
                check_library(module, node, alias.name)
            return False
        source = node.module or ""
        if node.level:
            refuse(module, node, "its import is relative", f"Write `from {self.name}.module import name`")
        if not self._is_own(source):
            check_library(module, node, source)
            return False
        if source == self.name:
            refuse(module, node, f"it imports from {self.name} itself", "Import from the module that defines the name")
        for alias in node.names:
            if alias.name == "*":
                refuse(module, node, f"it imports everything from {source}", "Name what is needed")
            if self.path(f"{source}.{alias.name}") is not None:
                refuse(module, node, f"it imports the module {source}.{alias.name}", "Import names, not modules")
        return True

    def _is_own(self, module: str) -> bool:
        return module.split(".")[0] == self.name


LIBRARY = Package("gistgate", Path(gistgate.__file__ or "").parent)
"""This very library."""


def without_imports_by_name(text: str) -> str:
    """The registry's module without `import_module`."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name == IMPORTED:
            lines[node.body[0].lineno - 1 : node.end_lineno] = [CARRIED]
        elif isinstance(node, ast.ImportFrom) and node.module == "importlib":
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines)


def name_of(node: ast.AST) -> str | None:
    """The identifier that a node looks up; None where it looks up none."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def check_library(module: str, node: ast.stmt, imported: str) -> None:
    """Refuse what a plain transformers installation may lack."""
    top = imported.split(".")[0]
    if top not in LIBRARIES and top not in sys.stdlib_module_names:
        refuse(module, node, f"it imports {top}", f"Use {', '.join(sorted(LIBRARIES))} and the standard library alone")


def check_line(module: str, lines: list[str], node: ast.stmt) -> None:
    """Refuse an import that shares its lines with another statement."""
    before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    behind = lines[(node.end_lineno or 0) - 1].encode()[node.end_col_offset :].decode().strip()
    if before.strip() or (behind and not behind.startswith("#")):
        refuse(module, node, "the import shares its line with another statement", "Give it a line of its own")


def refuse(module: str, node: ast.AST, reason: str, remedy: str) -> None:
    """Raise the UserError that names the place."""
    line = getattr(node, "lineno", 0)
    raise UserError(f"{module}, line {line}, cannot be exported: {reason}. {remedy}.")


def in_order(needs: dict[str, list[str]]) -> list[str]:
    """Names behind those that they need; names that are not among the keys are passed over.

    Raises:
        UserError: the needs form a cycle.
    """
    done: list[str] = []

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            circle = " -> ".join((*path[path.index(name) :], name))
            raise UserError(f"{circle} cannot be exported: the imports form a cycle. Move one into a function.")
        if name not in done:
            for needed in needs[name]:
                if needed in needs:
                    visit(needed, (*path, name))
            done.append(name)

    for name in sorted(needs):
        visit(name, ())
    return done


ENTRY = "gistgate.export.generate"
"""The module whose folder becomes generate.py."""
SEGMENTS = ("gistgate.segments.build", "gistgate.segments.build")
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
    proofs = [
        certificate for place in places if place.is_dir() and (certificate := read_certificate(place)) is not None
    ]
    rules = {STRICT, *([certificate.rule for certificate in proofs] or [GATED])}
    drafters = {certificate.drafter for certificate in proofs if certificate.drafter in DRAFTERS} or {MODEL}
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
