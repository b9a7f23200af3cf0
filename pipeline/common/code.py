"""Fingerprints of the code that made a result. Comments, docstrings and layout do not count, since they change nothing.

A fingerprint describes the sources as they were when this module was imported, at the start of a process. A result that
was made while they changed says so.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gistgate.files import fingerprint, read_json, write_json
from pipeline.common.closure import PACKAGES, ROOT, closure, text_of

STAGES = "pipeline.stages."
UPSTREAM = tuple(STAGES + name for name in ("pair", "prompts", "reference", "collect", "label", "features", "train"))
"""The stages behind every calibration."""
CERTIFYING = (*UPSTREAM, STAGES + "calibrate")
"""The stages that decide which settings of a core method are certified."""
REPORTING = (*CERTIFYING, STAGES + "evaluate", STAGES + "benchmark", STAGES + "report")
"""The stages behind a report."""
KEY = "code"
"""Entry of a published file that names its code."""
FILES, PARTS = "files", "parts"
"""Entries below it: the fingerprints of figures and tables that show the file; the code of every entry by its key."""


WATCHED = (*PACKAGES, "benchmarks")
"""Folders whose sources are compared with those at the start of the process."""


def all_sources(root: Path = ROOT) -> list[Path]:
    """All source files of the project and its benchmarks."""
    return [path for package in WATCHED for path in sorted((root / package).rglob("*.py"))]


STARTED = {path: text_of(path) for path in all_sources()}
"""The sources at the start of this process."""


def made_by(*modules: str, root: Path = ROOT) -> dict[str, Any]:
    """What a published file says about its code: the modules that made it, their fingerprint, and changes meanwhile.

    Args:
        modules: by dotted name.
        root: the project, or a copy of it, whose code ran.
    """
    made = {"modules": sorted(modules), "fingerprint": code_fingerprint(*sorted(modules), root=root)}
    found = changed(*modules) if root == ROOT else []
    if not found:
        return made
    print(f"{', '.join(found)} changed while this was running, so that the code of the result is not known for sure.")
    return {**made, "changed": found}


def changed(*modules: str) -> list[str]:
    """The files behind these modules that are not what they were when this process began, and those that are gone."""
    files = [ROOT / path for path in closure(*modules)]
    gone = [path for path in STARTED if not path.is_file()]
    other = [path for path in files if path not in gone and has_changed(path)]
    return [path.relative_to(ROOT).as_posix() for path in sorted({*other, *gone})]


def has_changed(path: Path) -> bool:
    """Whether the code in a file is another than at the start; comments and layout do not count."""
    if path.relative_to(ROOT).parts[0] not in WATCHED:
        return False
    now = path.read_text(encoding="utf-8")
    if now == STARTED.get(path):
        return False
    try:
        return path not in STARTED or bare(now) != bare(STARTED[path])
    except SyntaxError:
        return True


def running() -> str:
    """The module that this process runs, by dotted name: `python -m benchmarks.block` runs benchmarks.block.

    Code that is not run that way, as in tests, stands for itself.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = spec.name if spec is not None else ""
    return name if name and ROOT.joinpath(*name.split(".")).with_suffix(".py").is_file() else __name__


def write_result(path: Path, value: Mapping[str, Any], *modules: str, files: Iterable[Path] = ()) -> None:
    """Write a result that names the code which made it, these modules with all that they import, and what shows it."""
    write_published(path, value, {KEY: made_by(*modules)}, files)


def write_published(path: Path, value: Mapping[str, Any], code: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
    """Write a result that names its code.

    Args:
        path: the file.
        value: the result.
        code: what `pipeline.report.origin.origin` says about the code.
        files: figures and tables that show this result, as they are now.
    """
    shown = {file.name: fingerprint(file) for file in files}
    write_json(path, {**value, KEY: {**code[KEY], **({FILES: shown} if shown else {})}})


def add_to_result(path: Path, found: Mapping[str, Any], *modules: str, files: Iterable[Path] = ()) -> None:
    """Put entries into a result whose entries are found by several commands; every one keeps the name of its code."""
    earlier = read_json(path) if path.exists() else {}
    known = earlier.get(KEY, {}).get(PARTS, {})
    made = made_by(*modules)
    parts = {key: made if key in found else known.get(key) for key in {**earlier, **found} if key != KEY}
    write_published(path, {**earlier, **found}, {KEY: {PARTS: parts}}, files)


@cache
def code_fingerprint(*modules: str, root: Path = ROOT) -> str:
    """A short hash of everything that running these modules may execute.

    Raises:
        UserError: one of the modules does not exist.
    """
    digest = hashlib.sha256()
    for path in closure(*modules, root=root):
        digest.update(f"{path.as_posix()}\0{bare(text_of(root / path))}\0".encode())
    return digest.hexdigest()[:16]


@cache
def bare(source: str) -> str:
    """The syntax tree of a source as text, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def is_text(node: ast.AST) -> bool:
    """Whether a statement is nothing but a text, as docstrings are."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
