"""Put together what the run found: `python -m pipeline.stages.report` writes
reports/{summary.json,frontier.csv,figures/*.png,index.html}. The page is one file: figures are
inside it, and it loads nothing. Every method becomes a run of MLflow.
"""

import base64

from gistgate.core.files import write_json, write_text
from pipeline import tracking
from pipeline.params import Params, read_params
from pipeline.paths import REPORTS, calibration_file, evaluation_folder, prompts_of
from pipeline.report import tables
from pipeline.report.figures import DESCRIBED, draw_all, save
from pipeline.report.summary import Results, Summary, as_csv, frontier, read_results, summarise
from pipeline.run import run

FIGURES = REPORTS / "figures"
SETTINGS = ("rule", "drafter", "block", "budget", "knob")
COMMON = ("pair", "task", "seed", "headline_budget")
UNTRACKED = ("block", "budget", "knob", "certificates")  # entries of a method that are no metrics


def main() -> None:
    params = read_params()
    results = read_results(params)
    summary = summarise(params, results)
    rows = frontier(results)
    write_json(REPORTS / "summary.json", summary)
    write_text(REPORTS / "frontier.csv", as_csv(rows))
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, figure in draw_all(summary, rows, results).items():
        save(figure, FIGURES / name)
    figures = {
        path.stem: base64.b64encode(path.read_bytes()).decode()
        for path in sorted(FIGURES.glob("*.png"))
    }
    page = tables.page(
        "report",
        summary=summary,
        machine=results.benchmark.get("machine"),
        provenance=tables.provenance(results),
        described=DESCRIBED,
        columns=list(tables.COLUMNS),
        rows=tables.rows(summary),
        figures=figures,
    )
    write_text(REPORTS / "index.html", page)
    track(params, summary, results)
    print(tables.markdown(summary))


def track(params: Params, summary: Summary, results: Results) -> None:
    """A run for the comparison, with a nested one for each method."""
    with tracking.run(params, "comparison", kind="comparison") as record:
        record.log_params({key: summary[key] for key in COMMON})
        record.log_metrics({"plain": summary["plain"]})
        record.log_artifacts(FIGURES)
        record.log_data(prompts_of("test"), "test")
        for name, row in summary["methods"].items():
            settings = results.evaluation[name].get("settings", {})
            with tracking.run(params, name, kind="method") as record:
                record.log_params({key: row[key] for key in SETTINGS} | {"settings": settings})
                record.log_metrics({key: row[key] for key in row if key not in UNTRACKED})
                record.log_artifacts(evaluation_folder(name))
                if name in results.calibration:
                    record.log_artifacts(calibration_file(name))


if __name__ == "__main__":
    run(main)
