"""The large table: summary, frontier, figures and page with every rule of the library, in reports/table.

python -m pipeline.studies.table.report
"""

from __future__ import annotations

from pipeline.common.entry import run
from pipeline.stages.report import report
from pipeline.studies.table.params import table_params


def main() -> None:
    report(table_params())


if __name__ == "__main__":
    run(main)
