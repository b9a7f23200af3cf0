"""Train the head `judge` on span labels (arXiv 2501.19309).

python -m pipeline.studies.table.judge      data/spans -> models/table/judge
"""

from __future__ import annotations

from pathlib import Path

from pipeline.common.entry import run
from pipeline.params import read_params
from pipeline.stages.train import train, with_features
from pipeline.studies.table.spans import SPANS

JUDGE = Path("models/table/judge")


def main() -> None:
    params = read_params()
    train(["logistic"], [SPANS], {"logistic": JUDGE}, "judge", with_features(params, params.table.span_features))


if __name__ == "__main__":
    run(main)
