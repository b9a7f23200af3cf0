"""The part of the package that a gate needs, copied into one flat folder that transformers' dynamic
modules can load. The copy follows imports at the top of modules: gistgate/core/block.py becomes
core_block.py. An import in a function of something that is not copied becomes an error that says to
install the package."""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from inspect import getsource
from pathlib import Path
from typing import TypeGuard

from gistgate.core.files import write_atomic
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import read_certificate
from gistgate.coverage.choose import GATED, MODEL, STRICT
from gistgate.drafters import DRAFTERS
from gistgate.models.tuned import TUNED
from gistgate.rules import RULES

ENTRY = "gistgate.export.generate"
"""The module that becomes generate.py."""
ALWAYS = (
    "gistgate.core.guards",
    "gistgate.drafters.adaptive",
    "gistgate.drafters.stopping",
    "gistgate.drafters.suffix",
    "gistgate.drafters.text",
)
"""Parts of every folder, though a decoder imports them only where somebody asks for guards or
another way to draft."""
SEGMENTS = ("gistgate.segments.build",)
"""The module that a folder of segment probes needs besides the loop."""
FOLDER = "custom_generate"
"""Where transformers looks for generate.py and its function `generate`."""
LIBRARIES = {"numpy", "safetensors", "torch", "transformers"} | sys.stdlib_module_names
"""What copied code may import; transformers refuses a folder with missing imports."""
MISSING = (
    "This folder carries what its gate was certified with, but not {module}. Install GistGate"
    f" (`pip install .` in its clone) and call {ENTRY}.generate(model, ...) in place of"
    " custom_generate."
)
REFERENCE = re.compile(r'"(gistgate(?:\.\w+)+):(\w+)"')
"""How a registry names what it imports on first use: a module and a name in it."""


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
    certificates = [proof for proof in map(read_certificate, places) if proof is not None]
    rules = [proof.rule for proof in certificates] or [GATED]
    drafters = [proof.drafter for proof in certificates if proof.drafter in DRAFTERS] or [MODEL]
    kinds = [RULES[rule] for rule in (STRICT, *rules)] + [DRAFTERS[name] for name in drafters]
    return sorted({kind.__module__ for kind in kinds})


def flatten(extra: Sequence[str] = ()) -> dict[str, str]:
    """File name -> content, for the entry, the modules that are named, and everything that they
    import at their top.
    """
    texts: dict[str, str] = {}
    queue = [ENTRY, *ALWAYS, *extra]
    while queue:
        module = queue.pop()
        if module not in texts:
            texts[module] = getsource(import_module(module))
            queue += [node.module or "" for node in ast.parse(texts[module]).body if is_ours(node)]
    files = {module: module.removeprefix("gistgate.").replace(".", "_") for module in texts}
    files[ENTRY] = "generate"
    references = {match for text in texts.values() for match in REFERENCE.findall(text)}
    carried = sorted(match for match in references if match[0] in files)
    return {f"{files[name]}.py": copied(texts[name], files, carried) for name in sorted(texts)}


def is_ours(node: ast.AST) -> TypeGuard[ast.ImportFrom]:
    """Whether a statement imports from this package."""
    return isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gistgate")


def copied(text: str, files: dict[str, str], carried: Sequence[tuple[str, str]] = ()) -> str:
    """A module whose imports name the files beside it; `imported` finds what registries name, the
    `carried` (module, name).
    """
    lines = text.splitlines()
    for node in reversed([*statements(ast.parse(text))]):
        new = replacement(node, files, carried)
        if new is not None:
            start = node.lineno - 1
            lines[start : node.end_lineno] = [" " * node.col_offset + line for line in new]
    return "\n".join(line for line in lines if line != "from importlib import import_module") + "\n"


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """All statements in order, but those inside of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if not is_for_typing(node):
            yield from statements(node)


def is_for_typing(node: ast.AST) -> bool:
    """Whether a statement is read by type checkers alone."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def replacement(
    node: ast.stmt, files: dict[str, str], carried: Sequence[tuple[str, str]]
) -> list[str] | None:
    """The lines in place of a statement; None where it stays. An import of what is not copied
    becomes an error, and is refused at the top of a module.
    """
    if is_for_typing(node):
        return []
    if isinstance(node, ast.FunctionDef) and node.name == "imported":
        return finder(files, carried)
    if is_ours(node) and node.module in files:
        names = ", ".join(map(ast.unparse, node.names))
        return [f"from .{files[node.module]} import {names}"]
    modules: list[str] = []
    if isinstance(node, ast.ImportFrom):
        modules = [node.module or ""]
    elif isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    missing = [module for module in modules if module.split(".")[0] not in LIBRARIES]
    if not missing:
        return None
    if not node.col_offset:
        raise UserError(
            f"{missing[0]} cannot be exported. Import it inside the function that needs it."
        )
    refusal = f"raise UserError({MISSING.format(module=missing[0])!r})"
    return ["from .core_utils import UserError", refusal]


def finder(files: dict[str, str], carried: Sequence[tuple[str, str]]) -> list[str]:
    """The function `imported` of a folder that carries these (module, name)."""
    lines = [
        "def imported(reference: str) -> Any:",
        '    """What "module:name" refers to, of what lies here."""',
    ]
    for module, name in carried:
        lines += [
            f'    if reference == "{module}:{name}":',
            f"        from .{files[module]} import {name}",
            f"        return {name}",
        ]
    return [*lines, f"    raise UserError({MISSING!r}.format(module=reference))"]
