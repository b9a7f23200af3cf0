"""A shard of problems on whose answers target and draft agree is empty, and no obstacle to the
others.
"""

from typing import Any

import pytest
import torch

from pipeline.labels.labelling import Labeller
from pipeline.labels.schema import LABELS, MISMATCHES, checked, concatenated, num_rows, pack, unpack
from pipeline.stages.collect import no_records
from tests.pipeline.labels.test_mining import mined, pair, tools_for

__all__ = ["mined", "pair"]


@pytest.mark.parametrize("more", [(), ("probability",)])
def test_an_empty_shard_stands_beside_others(mined: Any, more: tuple[str, ...]) -> None:
    empty, _ = unpack(pack(checked(no_records(4, more), MISMATCHES, "nothing"), {}))
    table, _ = mined
    full = {**table, **{name: torch.ones(num_rows(table)) for name in more}}
    for tables in ([empty, full], [full, empty]):
        joined = concatenated(tables)
        assert num_rows(joined) == num_rows(table) and ("probability" in joined) is bool(more)


def test_nothing_to_label_is_no_error(pair: Any) -> None:
    labeller = Labeller(tools_for(pair))
    labels = labeller.label(no_records(4), {}, torch.ones(0, dtype=torch.bool))
    assert num_rows(checked(labels, LABELS, "nothing")) == 0
