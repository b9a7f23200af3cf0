"""Put together what the run found.

    python -m pipeline.stages.report          writes reports/{summary.json,frontier.csv,figures/*.png,index.html}
    python -m pipeline.stages.report table    the same with every rule of the library, in reports/table

The page is one file: figures are inside it, and it loads nothing. Every method becomes a run of the tracking store.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from gistgate.files import read_json, write_json, write_text
from pipeline.common import tracking
from pipeline.common.entry import run
from pipeline.common.operating_point import calibration_file, evaluation_folder
from pipeline.common.views import params_of_view
from pipeline.params import Params
from pipeline.report import tables
from pipeline.report.figures import draw_all, save
from pipeline.report.results import Results, read_results
from pipeline.report.summary import Summary, as_csv, frontier, summarise
from pipeline.studies.retrieval.params import retrieval_params
from pipeline.studies.retrieval.summary import summarise as summarise_retrieval
from pipeline.studies.retrieval.tables import parts


def main() -> None:
    params = params_of_view()
    reports, results = params.reports, read_results(params)
    summary, rows = summarise(params, results), frontier(results)
    write_json(reports / "summary.json", summary)
    write_text(reports / "frontier.csv", as_csv(rows))
    figures = reports / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for name, figure in draw_all(summary, rows, results).items():
        save(figure, figures / name)
    more = {name: optional(reports / f"{name}.json") for name in ("trace", "judgements", "shadow", "domain")}
    more["retrieval"] = drafters(reports / "retrieval")
    write_text(reports / "index.html", page(summary, results.benchmark.get("machine"), figures, **more))
    track(params, summary, results)
    print(tables.markdown(summary))


def optional(path: Path) -> dict[str, Any] | None:
    """The content of a file that only one of the views has."""
    return read_json(path) if path.exists() else None


def drafters(reports: Path) -> dict[str, Any] | None:
    """What `make retrieval` found, where it has been run."""
    finished = all((reports / f"{name}.json").exists() for name in ("benchmark", "evaluation", "datastore"))
    return parts(summarise_retrieval(retrieval_params(), reports)) if finished else None


def page(summary: Summary, machine: dict[str, Any] | None, figures: Path, **more: dict[str, Any] | None) -> str:
    """The report as one self-contained HTML page."""
    templates = Environment(loader=FileSystemLoader(Path(__file__).parents[1] / "report/templates"), autoescape=True)
    return templates.get_template("report.html.j2").render(
        summary=summary,
        machine=machine,
        **more,
        table=Markup(tables.html(summary)),
        pct=tables.percent,
        figures={path.stem: base64.b64encode(path.read_bytes()).decode() for path in sorted(figures.glob("*.png"))},
    )


def track(params: Params, summary: Summary, results: Results) -> None:
    """One run per method, with its numbers and samples."""
    for name, method in summary["methods"].items():
        with tracking.run(params, name, kind="method") as record:
            record.log_params({key: method[key] for key in ("rule", "drafter", "block", "budget", "knob")})
            record.log_params({"settings": results.evaluation[name].get("settings", {})})
            record.log_metrics({key: value for key, value in method.items() if key not in ("block", "budget", "knob")})
            record.log_artifacts(evaluation_folder(params, name))
            if name in results.calibration:
                record.log_artifacts(calibration_file(params, name))
            record.log_artifacts(params.reports / "figures")


if __name__ == "__main__":
    run(main)
