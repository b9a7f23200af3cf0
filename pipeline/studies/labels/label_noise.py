"""How often a label repeats where the greedy rollout loses the meaning.

    python -m pipeline.studies.labels.label_noise      data/labels -> reports/studies/label_noise.json

There the labels hold sampled rollouts behind the draft token, set against as many behind the target's own token. The
share of them that loses the meaning is the agreement of a repetition with the label; labels whose greedy rollout keeps
the meaning are not repeated. arXiv 2601.04766 saw 25 % of AutoJudge's important tokens keep their label in four
repeated minings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from gistgate.certificates.tango import Array
from pipeline.common.code import write_result
from pipeline.common.entry import run
from pipeline.labels.schema import LABEL_FOLDER, LABELS, PASSES
from pipeline.labels.tables import Table, concatenated
from pipeline.labels.texts import read_records

OUTPUT = Path("reports/studies/label_noise.json")
RESAMPLES = 2000


def main() -> None:
    report = {}
    for name in PASSES:
        shards = read_records(LABEL_FOLDER / name, LABELS)
        found = report[name] = repetition(concatenated([records for records, _ in shards]))
        print(f"{name}: {found['lost']} of {found['labels']} greedy rollouts lose the meaning; {repeated(found)}")
    write_result(OUTPUT, report, "pipeline.studies.labels.label_noise")


def repeated(found: dict[str, Any]) -> str:
    """What repetitions say, as the end of a sentence."""
    if not found["repeated"]:
        return "none of them was sampled again (label.rollouts)"
    low, high = found["interval"]
    return (
        f"a repetition agrees with {found['agreement']:.3f} of them ({low:.3f} to {high:.3f}), "
        f"{found['all_repeat']:.3f} repeat every time"
    )


def repetition(table: Table) -> dict[str, Any]:
    """Agreement of sampled rollouts with lost greedy ones, with a bootstrap interval over problems."""
    again = (table["greedy_kept"] == 0) & (table["rollouts"] > 1)
    rollouts, kept = table["rollouts"][again].double().numpy(), table["kept"][again].double().numpy()
    agreement = 1 - kept * rollouts / (rollouts - 1)  # the first rollout is the greedy one, which keeps nothing
    return {
        "labels": len(table["kept"]),
        "lost": int((table["greedy_kept"] == 0).sum()),
        "repeated": len(agreement),
        "agreement": float(agreement.mean()) if len(agreement) else None,
        "interval": interval(agreement, table["problem"][again].numpy()),
        "all_repeat": float((agreement > 1 - 1e-6).mean()) if len(agreement) else None,
    }


def interval(values: Array, problem: np.ndarray, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of a mean, drawn by problem; [0, 1] with fewer than two problems."""
    _, place = np.unique(problem, return_inverse=True)
    sums, counts = np.bincount(place, values), np.bincount(place)
    if len(sums) < 2:
        return [0.0, 1.0]
    found = bootstrap(
        (sums, counts),
        lambda s, n, axis: s.sum(axis) / n.sum(axis),
        paired=True, vectorized=True, method="percentile", n_resamples=RESAMPLES, rng=seed,
    )  # fmt: skip
    return [float(end) for end in found.confidence_interval]


if __name__ == "__main__":
    run(main)
