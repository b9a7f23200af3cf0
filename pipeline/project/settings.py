"""Write every parameter of a user's project, defaults included, to settings.yaml.

    python -m pipeline.project.settings     params.yaml -> settings.yaml

A project's params.yaml is short. The stages of its dvc.yaml depend on the keys of settings.yaml, so a changed value
repeats exactly the stages that read it, whether it was a default before or not. The stage runs every time, because the
documents behind `task_data` and the prompts of `adversarial.file` lie where DVC does not look: their fingerprints stand
behind their names.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from gistgate.errors import UserError
from gistgate.files import fingerprint, write_text
from pipeline.common.entry import run
from pipeline.common.yaml_file import read_yaml
from pipeline.params import Params, read_params

SETTINGS = Path("settings.yaml")
GRAPH = Path("dvc.yaml")


def main() -> None:
    params = read_params()
    content = {**settings(params), "task_data": with_content(params.task_data)}
    content["adversarial"]["file"] = with_content(params.adversarial.file)
    check_graph(content, read_yaml(GRAPH))
    write_text(SETTINGS, yaml.safe_dump(content, sort_keys=False))


def settings(params: Params) -> dict[str, Any]:
    """All parameters as plain values, methods in the groups that the file knows."""
    content: dict[str, Any] = json.loads(json.dumps(asdict(params)))  # tuples become lists
    groups: dict[str, dict[str, Any]] = {"lossless": {}, "free": {}, "learned": {}}
    for name, method in content["methods"].items():
        learned = method.pop("learned")
        group = "learned" if learned else "lossless" if method["knob"] is None else "free"
        groups[group][name] = method
    return {**content, "methods": groups}


def with_content(path: str | None) -> str | None:
    """A file or folder with the fingerprint of what it holds; a missing one is refused by the stage that reads it."""
    return f"{path}, {fingerprint(Path(path))}" if path and Path(path).exists() else path


def check_graph(content: dict[str, Any], graph: dict[str, Any]) -> None:
    """dvc.yaml names the same learned methods, and the head that is exported.

    Raises:
        UserError: it names others.
    """
    stages = graph["stages"]
    wanted = {name: {"head": method["head"]} for name, method in content["methods"]["learned"].items()}
    if stages["calibrate_learned"]["foreach"] != wanted:
        raise UserError(
            f"dvc.yaml calibrates other learned methods than params.yaml names. Write {json.dumps(wanted)} behind "
            "`foreach` of its stage `calibrate_learned`."
        )
    head = f"models/heads/{content['train']['headline_head']}"
    for name in ("domain", "export"):
        if head not in stages[name]["deps"]:
            raise UserError(
                f"The stage `{name}` of dvc.yaml waits for another head than 'train.headline_head'. Write {head} among "
                "its dependencies."
            )


if __name__ == "__main__":
    run(main)
