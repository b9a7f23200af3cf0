"""Count which draft token was refused for which target token: the table of the rule `csd` (arXiv 2604.13634).

    python -m pipeline.studies.table.pair_counts      data/mismatches/strict -> models/table/pairs.safetensors

Only training prompts are counted.
"""

from __future__ import annotations

from pathlib import Path

from gistgate.rules.pair_counts import PairCounts
from pipeline.common.entry import run
from pipeline.common.resume import read_shards
from pipeline.labels.replay import MISMATCHES

PAIRS = Path("models/table/pairs.safetensors")


def main() -> None:
    shards = read_shards(MISMATCHES / "strict")
    counts = PairCounts()
    for shard in shards:
        counts.add(shard["draft_id"], shard["target_id"])
    counts.save(PAIRS)
    print(f"{len(counts)} pairs in {sum(len(shard['draft_id']) for shard in shards)} refusals")


if __name__ == "__main__":
    run(main)
