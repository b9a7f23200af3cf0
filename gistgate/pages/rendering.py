"""Templates become pages in which every value is escaped and nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"


def render(
    template: str | Path,
    *,
    scripts: tuple[Path, ...],
    styles: tuple[Path, ...],
    connects: str = "'none'",
    beside: tuple[Path, ...] = (),
    **values: Any,
) -> str:
    """Fill a template of this folder, or one that is given by its whole path.

    Args:
        template: name of the template, or its path.
        scripts: JavaScript files that stand inside the page.
        styles: CSS files that stand inside the page.
        connects: where the page's script may send requests, as a source of a content security policy.
        beside: further folders of templates that this one extends or imports.
        values: what the template shows; all of them are escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    path = TEMPLATES / template
    loader = FileSystemLoader([path.parent, *beside, TEMPLATES])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    script, style = joined(scripts), joined(styles)
    return environment.get_template(path.name).render(
        script=Markup(script), style=Markup(style), policy=policy(script, style, connects), **values
    )


def joined(files: tuple[Path, ...]) -> str:
    """The texts of our own files, one behind the other."""
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def policy(script: str, style: str, connects: str) -> str:
    """A content security policy that allows this script, this style and requests to `connects`, and nothing else."""
    return (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; connect-src {connects}; "
        f"script-src '{digest(script)}'; style-src '{digest(style)}'"
    )


def digest(text: str) -> str:
    """The hash of an inline script or style as a content security policy writes it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
