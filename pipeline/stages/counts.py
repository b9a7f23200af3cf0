"""Count which draft token strict decoding refused for which target token, for the rule `csd` (arXiv
2604.13634): `python -m pipeline.stages.counts` reads the mismatches of the strict pass and writes
models/counts.safetensors.
"""

from gistgate.rules.history import PairCounts
from pipeline.labels import schema
from pipeline.paths import COUNTS
from pipeline.run import run


def main() -> None:
    counts = PairCounts()
    refusals = 0
    for records, _ in schema.read_records(schema.MISMATCH_FOLDER / "strict", schema.MISMATCHES):
        counts.add(records["draft_id"], records["target_id"])
        refusals += schema.num_rows(records)
    counts.save(COUNTS)
    print(f"{len(counts)} pairs in {refusals} refusals")


if __name__ == "__main__":
    run(main)
