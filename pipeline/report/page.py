"""Self-contained HTML pages: one layout, and a template for each kind of content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pipeline.report.tables import percent

TEMPLATES = Path(__file__).with_name("templates")


def page(name: str, folder: Path = TEMPLATES, **content: Any) -> str:
    """The page of the template `<name>.html.j2` in `folder`; a study keeps its template in its own folder."""
    loader = FileSystemLoader([folder, TEMPLATES])
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return templates.get_template(f"{name}.html.j2").render(pct=percent, **content)
