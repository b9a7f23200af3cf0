"""Every labelled mismatch once more as the first token of a block: what a decoder would do there, in one round.

The decoder goes on from the text in front of the mismatch, so its drafter proposes the mismatching token first and the
tokens that it would write behind it; one target forward judges the block, and the answer ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gistgate.block import Acceptance, Block
from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Row
from pipeline.common.resume import read_shards
from pipeline.labels.mismatches import Table, concatenated, num_rows, picked
from pipeline.labels.texts import Trunk, unpack

MISMATCHES, LABELS = Path("data/mismatches"), Path("data/labels")
POLICIES = ("strict", "gated")

Trunks = dict[tuple[int, int], Trunk]


class FirstBlocks:
    """An observer that hands out the blocks of one round together with what was accepted of them."""

    def __init__(self, layers: Sequence[str] = ()) -> None:
        self.layers, self.wants_q = tuple(layers), False
        self._seen: list[tuple[Block, Acceptance]] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        self._seen.append((block, acceptance))

    def take(self) -> tuple[Block, Acceptance]:
        """The only round since the last call."""
        (seen,) = self._seen
        self._seen = []
        return seen


def read_labelled() -> tuple[Table, Trunks]:
    """All labelled mismatches of both policies, and the texts they lie on."""
    trunks: Trunks = {}
    for policy in POLICIES:
        for shard in read_shards(MISMATCHES / policy):
            trunks |= unpack(shard)[1]
    return concatenated([shard for policy in POLICIES for shard in read_shards(LABELS / policy)]), trunks


def rounds(
    decoder: Decoder,
    observer: FirstBlocks,
    table: Table,
    trunks: Trunks,
    prompts: Sequence[dict[str, Any]],
    batch_size: int,
    **request: Any,
) -> Iterator[tuple[Table, Block, Acceptance]]:
    """One round at every record of `table`, in batches.

    Records whose token the drafter does not propose again are left out: near ties may fall differently in another
    batch. A block holds one row per record.
    """
    for index in torch.arange(num_rows(table)).split(batch_size):
        part = picked(table, index)
        texts = [text_before(part, row, trunks, prompts) for row in range(len(index))]
        prompt_lengths = [len(prompts[problem]["ids"]) for problem in part["problem"].tolist()]
        decoder.resume(
            decoder.remember(texts),
            [(len(text), []) for text in texts],
            prompt_lengths,
            is_decided=lambda _row: "read",
            remember=False,
            **request,
        )
        block, acceptance = observer.take()
        again = block.draft_ids[:, 0].cpu() == part["draft_id"]
        yield picked(part, again), rows_where(block, again), kept_of(acceptance, again)


def text_before(part: Table, row: int, trunks: Trunks, prompts: Sequence[dict[str, Any]]) -> list[int]:
    """Prompt and answer up to the mismatch, as token ids."""
    problem = int(part["problem"][row])
    trunk = trunks[problem, int(part["prefix"][row])]
    return [*prompts[problem]["ids"], *trunk.answer[: int(part["position"][row])]]


def rows_where(block: Block, chosen: torch.Tensor) -> Block:
    """Some rows of a block; only what records of one round are asked for."""
    return Block(
        block.draft_ids[chosen],
        block.valid[chosen],
        block.logits[chosen],
        q=None if block.q is None else block.q[chosen],
        hidden={layer: state[chosen] for layer, state in block.hidden.items()},
        protocol=block.protocol,
    )


def kept_of(acceptance: Acceptance, chosen: torch.Tensor) -> Acceptance:
    """Some rows of an acceptance."""
    return Acceptance(acceptance.length[chosen], acceptance.own_ids[chosen], acceptance.reasons[chosen])
