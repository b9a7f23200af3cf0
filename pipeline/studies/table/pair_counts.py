"""Count which draft token was refused for which target token: the table of the rule `csd` (arXiv 2604.13634).

    python -m pipeline.studies.table.pair_counts      data/mismatches/strict -> models/table/pairs.safetensors

Only training prompts are counted.
"""

from __future__ import annotations

from pathlib import Path

from gistgate.rules.pair_counts import PairCounts
from pipeline.common.entry import run
from pipeline.labels.schema import MISMATCH_FOLDER, MISMATCHES
from pipeline.labels.texts import read_records

PAIRS = Path("models/table/pairs.safetensors")


def main() -> None:
    shards = read_records(MISMATCH_FOLDER / "strict", MISMATCHES)
    counts = PairCounts()
    for records, _ in shards:
        counts.add(records["draft_id"], records["target_id"])
    counts.save(PAIRS)
    print(f"{len(counts)} pairs in {sum(len(records['draft_id']) for records, _ in shards)} refusals")


if __name__ == "__main__":
    run(main)
