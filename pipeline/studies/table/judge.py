"""Train the head `judge` on span labels (arXiv 2501.19309).

python -m pipeline.studies.table.judge      data/spans -> models/table/judge
"""

from __future__ import annotations

from pipeline.common.entry import run
from pipeline.common.paths import SPANS, TABLE_MODELS
from pipeline.params import read_params
from pipeline.stages.train import train, with_features
from pipeline.studies.table.params import read_table_params


def main() -> None:
    params, table, place = read_params(), read_table_params(), TABLE_MODELS / "judge"
    if not table.wants_judge:
        place.mkdir(parents=True, exist_ok=True)  # the graph expects it
        return
    train(["logistic"], [SPANS], {"logistic": place}, "judge", with_features(params, table.span_features))


if __name__ == "__main__":
    run(main)
