"""Fingerprints of the code that made a result. Comments, docstrings and layout do not count, since they change nothing.

A fingerprint describes the sources as they were when this module was imported, at the start of a process. A result that
was made while they changed says so.

python -m pipeline.common.code    lists the published files whose code has changed since (`make stale`)
"""

from __future__ import annotations

import ast
import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Any

from gistgate.files import read_json, write_json
from pipeline.common.closure import PACKAGES, ROOT, closure, text_of
from pipeline.common.paths import BENCHMARK_RESULTS, RESULTS

STAGES = "pipeline.stages."
UPSTREAM = tuple(STAGES + name for name in ("pair", "prompts", "reference", "collect", "label", "features", "train"))
"""The stages behind every calibration."""
CERTIFYING = (*UPSTREAM, STAGES + "calibrate")
"""The stages that decide which settings of a core method are certified."""
REPORTING = (*CERTIFYING, STAGES + "evaluate", STAGES + "benchmark", STAGES + "report")
"""The stages behind a report."""
KEY = "code"
"""Entry of a published file that names its code."""


def all_sources(root: Path = ROOT) -> list[Path]:
    """All source files of the project and its benchmarks."""
    return [path for package in (*PACKAGES, "benchmarks") for path in sorted((root / package).rglob("*.py"))]


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


def write_result(path: Path, value: dict[str, Any], *modules: str) -> None:
    """Write a result that names the code which made it: these modules with everything that they import."""
    write_json(path, {**value, KEY: made_by(*modules)})


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


def stale(folders: tuple[Path, ...] = (RESULTS, BENCHMARK_RESULTS), root: Path = ROOT) -> dict[str, str]:
    """Published JSON files whose code has changed since or is not known, each with the reason."""
    found = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*.json")):
        content = read_json(path)
        if isinstance(content, dict) and "looks" in content and "head" in content:
            continue  # the ledger is a record and no result
        reason = why_stale(content.get(KEY) if isinstance(content, dict) else None, root)
        if reason:
            found[path.as_posix()] = reason
    return found


def why_stale(code: Any, root: Path = ROOT) -> str | None:
    """Why a result does not belong to the present code; None where it does."""
    if not isinstance(code, dict):
        return "names no code: it is older than the fingerprints"
    if code.get("changed"):
        return f"was made while {code['changed'][0]} changed, so that its code is not known for sure"
    gone = [name for name in code["modules"] if not root.joinpath(*name.split(".")).with_suffix(".py").is_file()]
    if gone:
        return f"was made by {gone[0]}, which does not exist any more"
    if code_fingerprint(*sorted(code["modules"]), root=root) != code["fingerprint"]:
        return f"was made by other code than the present {code['modules'][-1]} and what it imports"
    return None


def main() -> None:
    """List the published files that are older than their code."""
    found = stale()
    for path, reason in found.items():
        print(f"{path} {reason}")
    print(f"{len(found)} published files are older than their code." if found else "No published file is older.")


if __name__ == "__main__":
    from pipeline.common.entry import run

    run(main)
