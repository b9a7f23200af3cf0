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
    params = read_params()
    own = with_features(params, read_table_params().span_features)
    train(["logistic"], [SPANS], {"logistic": TABLE_MODELS / "judge"}, "judge", own)


if __name__ == "__main__":
    run(main)
