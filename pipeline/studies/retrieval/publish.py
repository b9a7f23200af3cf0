"""Copy the last run's results into Git and renew the table of the page about retrieval.

    python -m pipeline.studies.retrieval.publish

Reads reports/retrieval, writes docs/results/retrieval/summary.json and the part of docs/retrieval.md between its
markers, and the page reports/retrieval/index.html.
"""

from __future__ import annotations

from pathlib import Path

from gistgate.files import read_json, read_text, write_json, write_text
from pipeline.common import paths
from pipeline.common.entry import run
from pipeline.report.page import page
from pipeline.report.publish import split, with_table
from pipeline.studies.retrieval.params import REPORTS, retrieval_params
from pipeline.studies.retrieval.summary import summarise
from pipeline.studies.retrieval.tables import content, parts

RESULTS, PAGE = paths.RESULTS / "retrieval", Path("docs/retrieval.md")


def main() -> None:
    split(read_text(PAGE))
    summary = summarise(retrieval_params())
    write_json(RESULTS / "summary.json", summary)
    write_text(REPORTS / "index.html", page("page", Path(__file__).parent, **parts(summary)))
    write_text(PAGE, with_table(read_text(PAGE), content(read_json(RESULTS / "summary.json"))))


if __name__ == "__main__":
    run(main)
