"""lm-eval on the test prompts for what only the large table compares; writes reports/table/evaluation.

python -m pipeline.studies.table.evaluate
"""

from __future__ import annotations

from pipeline.common.entry import run
from pipeline.stages.evaluate import evaluate_all
from pipeline.studies.table.params import table_params


def main() -> None:
    params = table_params()
    evaluate_all(params, [name for name, method in params.methods.items() if method.extra])


if __name__ == "__main__":
    run(main)
