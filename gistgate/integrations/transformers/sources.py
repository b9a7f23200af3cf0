"""Modules of a package as text, with their imports: what the exporter starts from."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gistgate
from gistgate.errors import UserError

LIBRARIES = frozenset({"numpy", "safetensors", "torch", "transformers"})
"""What exported code may import besides the standard library; transformers refuses a folder with missing imports."""
SELF_KNOWLEDGE = frozenset({"__file__", "__import__", "__package__", "__path__", "import_module"})
"""Names through which code finds its package; in the exported folder they would find another one."""


@dataclass(frozen=True)
class Import:
    """One `from package.a.b import names`."""

    module: str
    """Dotted name of the imported module."""
    line: int
    """Line of the statement, counted from 1."""
    column: int
    """UTF-8 bytes in front of it."""
    lazy: bool
    """True inside a function, where it runs after all modules are loaded."""


@dataclass(frozen=True)
class Source:
    """One module."""

    name: str
    """Dotted name."""
    text: str
    imports: tuple[Import, ...]
    """Its imports from its own package, in order."""


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
            UserError: there is no such module, or it does something that cannot be flattened.
        """
        path = self.path(module)
        if path is None:
            raise UserError(f"{module} cannot be exported: there is no such module. Correct the import.")
        text = path.read_text(encoding="utf-8")
        return Source(module, text, tuple(self._imports(module, ast.parse(text), lazy=False)))

    def _imports(self, module: str, node: ast.AST, lazy: bool) -> Iterator[Import]:
        """Imports from the package below `node`; everything else that is imported is checked."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                self._check_import(module, child)
            elif isinstance(child, ast.ImportFrom):
                self._check_from(module, child)
                if self._is_own(child.module or ""):
                    yield Import(child.module or "", child.lineno, child.col_offset, lazy)
            elif (named := name_of(child)) in SELF_KNOWLEDGE:
                refuse(module, child, f"it uses {named}", "Import names with `from package.module import name`")
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from self._imports(module, child, lazy or inside)

    def _check_import(self, module: str, node: ast.Import) -> None:
        for alias in node.names:
            if self._is_own(alias.name):
                refuse(module, node, f"it says `import {alias.name}`", f"Write `from {alias.name} import name`")
            check_library(module, node, alias.name)

    def _check_from(self, module: str, node: ast.ImportFrom) -> None:
        source = node.module or ""
        if node.level:
            refuse(module, node, "its import is relative", f"Write `from {self.name}.module import name`")
        if not self._is_own(source):
            return check_library(module, node, source)
        if source == self.name:
            refuse(module, node, f"it imports from {self.name} itself", "Import from the module that defines the name")
        for alias in node.names:
            if alias.name == "*":
                refuse(module, node, f"it imports everything from {source}", "Name what is needed")
            if self.path(f"{source}.{alias.name}") is not None:
                refuse(module, node, f"it imports the module {source}.{alias.name}", "Import names, not modules")
        return None

    def _is_own(self, module: str) -> bool:
        return module.split(".")[0] == self.name


LIBRARY = Package("gistgate", Path(gistgate.__file__ or "").parent)
"""This very library."""


def name_of(node: ast.AST) -> str | None:
    """The identifier that a node looks up, if it does."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def check_library(module: str, node: ast.stmt, imported: str) -> None:
    """Refuse what a plain transformers installation may lack."""
    top = imported.split(".")[0]
    if top not in LIBRARIES and top not in sys.stdlib_module_names:
        refuse(module, node, f"it imports {top}", f"Use {', '.join(sorted(LIBRARIES))} and the standard library alone")


def refuse(module: str, node: ast.AST, reason: str, remedy: str) -> None:
    """Raise the UserError that names the place."""
    line = getattr(node, "lineno", 0)
    raise UserError(f"{module}, line {line}, cannot be exported: {reason}. {remedy}.")
