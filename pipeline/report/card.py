"""The model card of an exported gate: what it is, what was found, how to use it, where it ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gistgate.core.certificate import Certificate
from gistgate.core.files import read_json, read_text
from gistgate.core.gate import GateConfig
from gistgate.core.utils import printable
from pipeline.paths import REPORTS, TASKS
from pipeline.report.summary import STRICT


def evaluations(method: str) -> dict[str, dict[str, Any]]:
    """Summaries of the test prompts by name, the strict reference first; empty where they were not evaluated."""
    paths = {name: REPORTS / "evaluation" / name / "summary.json" for name in (STRICT, method)}
    return {name: read_json(path) for name, path in paths.items()} if all(map(Path.exists, paths.values())) else {}


def plain_markdown(value: Any) -> Any:
    """A text that begins no tag, line or code of its own in Markdown; other values unchanged."""
    if not isinstance(value, str):
        return value
    return printable(" ".join(value.split())).replace("<", "&lt;").replace("`", "'")


def card(
    config: GateConfig, certificate: Certificate, report: dict[str, Any], evaluated: dict[str, dict[str, Any]]
) -> str:
    """The text of README.md, from the calibration `report` of a method and what `evaluations` returned."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
        finalize=plain_markdown,
    )
    return templates.get_template("card.md.j2").render(
        gate=config,
        certificate=certificate,
        report=report,
        evaluated=evaluated,
        splits={"development": report["development"], "calibration": report["settings"]},
        lighter=config.draft.quantisation if config.draft else None,
        partners={"target": config.target, "draft": config.draft},
        task_options=task_options(config.labels.get("task")),
        percent=lambda share: f"{100 * share:.1f}",
    )


def task_options(name: str | None) -> str:
    """Options by which lm-eval finds a task of this project and may run its programs; nothing for its own tasks."""
    file = TASKS / f"{name}.yaml"
    if not file.is_file():
        return ""
    unsafe = re.search(r"(?m)^unsafe_code:\s*true\b", read_text(file))
    return f"--include_path {TASKS.as_posix()}{' --confirm_run_unsafe_code' if unsafe else ''}"
