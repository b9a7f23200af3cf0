"""The part of the repository that every project of a user shares: the graph, the methods, the tasks.

    python -m pipeline.project.shared             names the copies in gistgate/project/shared that are out of date
    python -m pipeline.project.shared --write     writes them again (`make deps`)

A project has no code of ours beside it. There a stage depends on requirements.txt, which pins the package, and reads
its parameters from settings.yaml, which the stage `settings` writes with all defaults put in.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from gistgate.errors import UserError
from gistgate.files import read_text, write_text
from pipeline.common.closure import PACKAGES, ROOT
from pipeline.common.entry import run

SHARED = Path("gistgate/project/shared")
SETTINGS = "settings.yaml"
PACKAGE = "requirements.txt"
FIRST = {
    "cmd": "python -m pipeline.project.settings",
    "deps": ["params.yaml", PACKAGE],
    "outs": [SETTINGS],
    "always_changed": True,
}
"""The stage before all others."""
HEADING = "# Written by `gistgate init` from the stages of GistGate's own repository.\n\n"


def copies(root: Path = ROOT) -> dict[str, str]:
    """The content of every shared file by its name."""
    params = yaml.safe_load(read_text(root / "params.yaml"))
    graph = project_graph(yaml.safe_load(read_text(root / "dvc.yaml")), params)
    tasks = sorted((root / "data/tasks").glob("*.yaml"))
    return {
        "graph.yaml": HEADING + yaml.safe_dump(graph, sort_keys=False, width=4096),
        "methods.yaml": yaml.safe_dump(params["methods"], sort_keys=False, width=4096),
        "embedded.yaml": read_text(root / "models/pairs/embedded.yaml"),
        **{f"tasks/{path.name}": read_text(path) for path in tasks},
    }


def project_graph(content: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """The repository's graph for a project: other dependencies, the same commands and outputs."""
    stages = {name: with_body(stage, params) for name, stage in content["stages"].items()}
    return {**content, "stages": {"settings": FIRST, **stages}}


def with_body(stage: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """A stage of the repository as a stage of a project."""
    if "do" not in stage:
        return own_body(stage, params)
    each = stage["foreach"]
    if each == "${methods.learned}":
        each = {name: {"head": method["head"]} for name, method in params["methods"]["learned"].items()}
    return {**stage, "foreach": each, "do": own_body(stage["do"], params)}


def own_body(body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Dependencies without code, parameters from settings.yaml; of the templates only the pair and items remain."""
    deps = [resolved(dep, params) for dep in body["deps"] if dep.split("/")[0] not in PACKAGES]
    asked = {"params": [{SETTINGS: list(body["params"])}]} if "params" in body else {}
    return {**body, "deps": [PACKAGE, *deps], **asked}


def resolved(text: str, params: dict[str, Any]) -> str:
    """A text whose templates with a dot that name no item are replaced by the repository's value."""

    def value(found: re.Match[str]) -> str:
        block, key = found.groups()
        return found.group(0) if block == "item" else str(params[block][key])

    return re.sub(r"\$\{(\w+)\.(\w+)\}", value, text)


def stale(root: Path = ROOT) -> dict[str, str]:
    """The shared files that differ from the repository, with what they should hold."""
    wanted = copies(root)
    places = {name: root / SHARED / name for name in wanted}
    return {
        name: text for name, text in wanted.items() if not places[name].is_file() or read_text(places[name]) != text
    }


def main(write: Annotated[bool, typer.Option("--write", help="Rewrite the files.")] = False) -> None:
    """Compare the shared files with the repository."""
    found = stale()
    for name, text in found.items():
        if write:
            write_text(ROOT / SHARED / name, text)
        print(f"{SHARED / name} {'is rewritten' if write else 'is out of date'}")
    if found and not write:
        raise UserError("The files that projects share are out of date. Run `make deps`.")


if __name__ == "__main__":
    run(main)
