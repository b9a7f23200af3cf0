"""Self-contained HTML pages: one layout, and a template for each kind of content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gistgate.observing.trace import TracedToken
from gistgate.pages import rendering
from gistgate.pages.rendering import render
from gistgate.pages.runs import STRICT, Run
from gistgate.pages.tokens import MEANINGS, visible
from gistgate.pages.trace import flat, side_by_side
from gistgate.request.statistics import Statistics
from pipeline.report.results import Results
from pipeline.report.tables import percent

TEMPLATES = Path(__file__).with_name("templates")
STYLES = (rendering.TEMPLATES / "page.css", rendering.TEMPLATES / "tokens.css", TEMPLATES / "report.css")
SCRIPTS = (rendering.TEMPLATES / "tokens.js",)


def page(name: str, folder: Path = TEMPLATES, **content: Any) -> str:
    """The page of the template `<name>.html.j2` in `folder`; a study keeps its template in its own folder."""
    template = folder / f"{name}.html.j2"
    return render(template, scripts=SCRIPTS, styles=STYLES, beside=(TEMPLATES,), pct=percent, **content)


def explained(trace: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the report shows of reports/trace.json: both answers, aligned; None without a trace."""
    if trace is None:
        return None
    loose, strict = (
        Run(name, [TracedToken(**token) for token in trace[key]["tokens"]], Statistics())
        for key, name in (("loose", f"{trace['method']}, {trace['knob']:g}"), ("strict", STRICT))
    )
    marks = {key: {name: trace[key][name] for name in ("score", "mean_accepted_length")} for key in ("loose", "strict")}
    shown = {"id": trace["id"], "context": visible(trace["context"]), "meanings": MEANINGS, "marks": marks}
    return {**shown, **side_by_side(loose, strict)}


def provenance(results: Results) -> dict[str, dict[str, str]]:
    """For each calibrated method what its certificates depend on, by dotted name."""
    proofs = {name: found["proof"] for name, found in results.calibration.items() if found.get("proof")}
    return {name: flat({"scope": proof["scope"], "prompts": proof["source"]}) for name, proof in proofs.items()}
