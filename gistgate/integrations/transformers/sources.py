"""Modules of a package as text, with their imports: what the export starts from."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import gistgate
from gistgate.errors import UserError

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
