"""How often a harmful label repeats.

    python -m pipeline.studies.labels.label_noise      data/labels -> reports/studies/label_noise.json

Where the greedy rollout says harm, the labels hold sampled rollouts behind the draft token, set against as many behind
the target's own token. Their share of harm is the agreement of a repetition with the label; harmless labels are not
repeated. arXiv 2601.04766 saw 25 % of AutoJudge's important tokens keep the label in four repeated minings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gistgate.certificates.tango import Array
from gistgate.files import write_json
from pipeline.common.entry import run
from pipeline.common.resume import read_shards
from pipeline.labels.mismatches import Table, concatenated
from pipeline.labels.replay import LABELS, POLICIES

OUTPUT = Path("reports/studies/label_noise.json")
RESAMPLES = 2000


def main() -> None:
    report = {policy: repetition(concatenated(read_shards(LABELS / policy))) for policy in POLICIES}
    write_json(OUTPUT, report)
    for policy, found in report.items():
        low, high = found["interval"]
        print(
            f"{policy}: {found['harmful']} of {found['labels']} labels harmful; a repetition agrees with "
            f"{found['agreement']:.3f} of them ({low:.3f} to {high:.3f}), {found['all_repeat']:.3f} repeat every time"
        )


def repetition(table: Table) -> dict[str, Any]:
    """Agreement of sampled rollouts with harmful greedy labels, with a bootstrap interval over problems."""
    again = (table["greedy_kept"] == 0) & (table["rollouts"] > 1)
    rollouts, kept = table["rollouts"][again].double().numpy(), table["kept"][again].double().numpy()
    agreement = ((1 - kept) * rollouts - 1) / (rollouts - 1)  # the first of them is the greedy one, which said harm
    problem = table["problem"][again].numpy()
    return {
        "labels": len(table["kept"]),
        "harmful": int((table["greedy_kept"] == 0).sum()),
        "repeated": len(agreement),
        "agreement": float(agreement.mean()) if len(agreement) else None,
        "interval": interval(agreement, problem) if len(agreement) else [0.0, 1.0],
        "all_repeat": float((agreement > 1 - 1e-6).mean()) if len(agreement) else None,
    }


def interval(values: Array, group: np.ndarray, seed: int = 0) -> list[float]:
    """95 % bootstrap interval of a mean, drawn by group."""
    _, place = np.unique(group, return_inverse=True)
    sums, counts = np.bincount(place, values), np.bincount(place)
    draws = np.random.default_rng(seed).integers(0, len(sums), (RESAMPLES, len(sums)))
    means = sums[draws].sum(1) / counts[draws].sum(1)
    return [float(q) for q in np.quantile(means, (0.025, 0.975))]


if __name__ == "__main__":
    run(main)
