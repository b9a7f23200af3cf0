"""Copy the last run's results into Git and renew the table of the page about retrieval.

    python -m pipeline.studies.retrieval.publish

Reads reports/retrieval, writes docs/results/retrieval/summary.json and the part of docs/retrieval.md between its
markers.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.common.entry import run  # first: it sets the environment that the libraries read at import

# isort: split
from gistgate.files import read_json, read_text, write_json, write_text
from pipeline.report.publish import split, with_table
from pipeline.studies.retrieval.params import retrieval_params
from pipeline.studies.retrieval.summary import summarise
from pipeline.studies.retrieval.tables import content

RESULTS, PAGE = Path("docs/results/retrieval"), Path("docs/retrieval.md")


def main() -> None:
    split(read_text(PAGE))
    write_json(RESULTS / "summary.json", summarise(retrieval_params()))
    write_text(PAGE, with_table(read_text(PAGE), content(read_json(RESULTS / "summary.json"))))


if __name__ == "__main__":
    run(main)
