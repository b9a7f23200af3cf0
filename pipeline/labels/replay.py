"""Labelled mismatches once more as the first token of a block: what a decoder would do there, in one round.

The decoder goes on from the text in front of the mismatch. Its drafter proposes the mismatching token first and the
tokens that it would write behind it; one target forward judges the block, and the answer ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block
from gistgate.decoding.decoder import Decoder
from gistgate.request.rows import Row
from pipeline.labels.memories import Memories
from pipeline.labels.tables import Table, num_rows, picked
from pipeline.labels.texts import Texts


class FirstBlocks:
    """An observer that hands out the block of one round together with what was accepted of it."""

    def __init__(self, layers: Collection[str] = (), wants_q: bool = False) -> None:
        self.layers, self.wants_q = layers, wants_q
        self._seen: list[tuple[Block, Acceptance]] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        self._seen.append((block, acceptance))

    def take(self) -> tuple[Block, Acceptance]:
        """The only round since the last call."""
        (seen,) = self._seen
        self._seen = []
        return seen


def rounds(
    decoder: Decoder,
    observer: FirstBlocks,
    table: Table,
    texts: Texts,
    prompts: Sequence[dict[str, Any]],
    batch_size: int,
    **request: Any,
) -> Iterator[tuple[Table, Block, Acceptance]]:
    """One round at every record of `table`, in batches; a block holds one row per record.

    Records whose token the drafter does not propose again are left out: near ties may fall differently in another
    batch.
    """
    memories = Memories(decoder, batch_size)
    for part in batches(table, batch_size):
        block, acceptance = one_round(memories, observer, part, texts, prompts, **request)
        if not block.draft_ids.shape[1]:  # a drafter without a model may find nothing anywhere
            continue
        again = block.draft_ids[:, 0].cpu() == part["draft_id"]
        yield picked(part, again), rows_where(block, again), acceptance_where(acceptance, again)


def batches(table: Table, batch_size: int) -> Iterator[Table]:
    """The rows of a table, `batch_size` at a time."""
    for index in torch.arange(num_rows(table)).split(batch_size):
        yield picked(table, index)


def one_round(
    memories: Memories,
    observer: FirstBlocks,
    part: Table,
    texts: Texts,
    prompts: Sequence[dict[str, Any]],
    **request: Any,
) -> tuple[Block, Acceptance]:
    """Decode one round behind the text in front of every record, with the decoder that reads the texts."""
    problems = part["problem"].tolist()
    lengths = [len(prompts[problem]["ids"]) for problem in problems]
    keys = zip(problems, part["policy"].tolist(), strict=True)
    whole = [(*prompts[problem]["ids"], *texts[problem, policy].ids) for problem, policy in keys]
    memories.decoder.resume(
        memories.of(whole),
        [(length + position, []) for length, position in zip(lengths, part["position"].tolist(), strict=True)],
        lengths,
        is_decided=lambda _row: "read",
        remember=False,
        **request,
    )
    return observer.take()


def rows_where(block: Block, chosen: Tensor) -> Block:
    """Some rows of a block, with the fields that one round of a strict or loose rule leaves behind."""
    return Block(
        block.draft_ids[chosen],
        block.valid[chosen],
        block.logits[chosen],
        q=None if block.q is None else block.q[chosen],
        hidden={layer: state[chosen] for layer, state in block.hidden.items()},
        protocol=block.protocol,
    )


def acceptance_where(acceptance: Acceptance, chosen: Tensor) -> Acceptance:
    """Some rows of an acceptance."""
    return Acceptance(acceptance.length[chosen], acceptance.own_ids[chosen], acceptance.reasons[chosen])
