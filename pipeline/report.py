"""Put together what the run found.

    python -m pipeline.report     writes reports/{summary.json,frontier.csv,figures/*.png,index.html}

The page is one file: figures are inside it, and it loads nothing. Every method becomes a run of the tracking store.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from gistgate.files import read_json, write_json, write_text
from pipeline import table, tracking
from pipeline.figures import draw_all, save
from pipeline.operating import calibration_file
from pipeline.params import Params, read_params
from pipeline.results import Results, read_results
from pipeline.stage import run
from pipeline.summary import Summary, as_csv, frontier, summarise

REPORTS = Path("reports")
FIGURES = REPORTS / "figures"


def main() -> None:
    params = read_params()
    results = read_results(params)
    summary, rows = summarise(params, results), frontier(results)
    write_json(REPORTS / "summary.json", summary)
    write_text(REPORTS / "frontier.csv", as_csv(rows))
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, figure in draw_all(summary, rows, results).items():
        save(figure, FIGURES / name)
    trace_file = REPORTS / "trace.json"
    trace = read_json(trace_file) if trace_file.exists() else None
    write_text(REPORTS / "index.html", page(summary, results.benchmark.get("machine"), trace))
    track(params, summary, results)
    print(table.markdown(summary))


def page(summary: Summary, machine: dict[str, Any] | None, trace: dict[str, Any] | None) -> str:
    """The report as one self-contained HTML page."""
    templates = Environment(loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True)
    return templates.get_template("report.html.j2").render(
        summary=summary,
        machine=machine,
        trace=trace,
        table=Markup(table.html(summary)),
        pct=table.percent,
        figures={path.stem: base64.b64encode(path.read_bytes()).decode() for path in sorted(FIGURES.glob("*.png"))},
    )


def track(params: Params, summary: Summary, results: Results) -> None:
    """One run per method, with its numbers and samples."""
    for name, method in summary["methods"].items():
        with tracking.run(params, name, kind="method") as record:
            record.log_params({key: method[key] for key in ("rule", "drafter", "block", "budget", "knob")})
            record.log_params({"settings": results.evaluation[name].get("settings", {})})
            record.log_metrics({key: value for key, value in method.items() if key not in ("block", "budget", "knob")})
            record.log_artifacts(REPORTS / "evaluation" / name)
            if name in results.calibration:
                record.log_artifacts(calibration_file(params, name))
            record.log_artifacts(FIGURES)


if __name__ == "__main__":
    run(main)
