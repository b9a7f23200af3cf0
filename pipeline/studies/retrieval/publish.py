"""Copy the last run's results into Git and renew the table of the page about retrieval.

    python -m pipeline.studies.retrieval.publish

Reads reports/retrieval, writes docs/results/retrieval/summary.json and the part of docs/retrieval.md between its
markers, and the page reports/retrieval/index.html.
"""

from __future__ import annotations

from pathlib import Path

from gistgate.files import read_json, read_text, write_text
from pipeline.common import paths
from pipeline.common.code import REPORTING, write_published
from pipeline.common.entry import run
from pipeline.report import markers
from pipeline.report.looks import publish_looks
from pipeline.report.origin import check_finished, origin
from pipeline.report.page import page
from pipeline.report.publish import PART
from pipeline.studies.retrieval.params import REPORTS, retrieval_params
from pipeline.studies.retrieval.summary import summarise
from pipeline.studies.retrieval.tables import content, parts

MODULES = tuple(f"pipeline.studies.retrieval.{name}" for name in ("datastore", "calibrate", "evaluate", "benchmark"))
"""What makes the results, besides the stages of the core."""
RESULTS, PAGE = paths.RESULTS / "retrieval", Path("docs/retrieval.md")


def main() -> None:
    markers.split(read_text(PAGE), PART)
    check_finished((paths.STUDIES / "retrieval/dvc.yaml").as_posix())
    found, code = summarise(retrieval_params()), origin((*REPORTING, *MODULES))
    publish_looks(REPORTS / "calibration", RESULTS / "summary.json")
    write_published(RESULTS / "summary.json", found, code)
    summary = {**found, **code}
    write_text(REPORTS / "index.html", page("page", Path(__file__).parent, **parts(summary)))
    markers.renew(PAGE, PART, content(read_json(RESULTS / "summary.json")))


if __name__ == "__main__":
    run(main)
