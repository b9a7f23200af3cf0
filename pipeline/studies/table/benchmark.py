"""Time every method of the large table, core ones included, prompt by prompt; writes reports/table/benchmark.json.

python -m pipeline.studies.table.benchmark
"""

from __future__ import annotations

from pipeline.common.entry import run
from pipeline.stages.benchmark import benchmark
from pipeline.studies.table.params import table_params


def main() -> None:
    benchmark(table_params())


if __name__ == "__main__":
    run(main)
