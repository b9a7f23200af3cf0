"""What CSD learns from mismatches."""

import torch

from gistgate.core.files import save_tensors
from gistgate.rules.history import PairCounts
from pipeline.labels.mining import stamped
from pipeline.labels.schema import Policy, pack
from pipeline.paths import COUNTS
from pipeline.stages import counts


def test_refused_pairs_are_counted_over_all_shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index, pairs in enumerate([[(1, 2), (1, 2), (3, 4)], [(1, 2), (4, 3)]]):
        x, t = torch.tensor(pairs).T.contiguous()
        records = {
            "position": x,
            "draft_id": x.clone(),
            "target_id": t.clone(),
            "accepted": torch.zeros(len(x), dtype=torch.int8),
            "behind": torch.full((len(x), 3), -1, dtype=torch.int32),
        }
        shard = pack(stamped(records, 0, Policy.STRICT), {})
        save_tensors(f"data/mismatches/strict/rows-{index:05d}.safetensors", shard)
    counts.main()
    table = PairCounts.load(COUNTS)
    found = table.look_up(torch.tensor([1, 3, 4, 2]), torch.tensor([2, 4, 3, 1]))
    assert found.tolist() == [3, 1, 1, 0]
