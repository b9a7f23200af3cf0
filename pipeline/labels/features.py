"""The features of labelled mismatches, read again: a record holds the draft tokens from the
mismatch on, so its block is rebuilt from the ids and nothing is proposed again. The same `extract`
serves a gate, so training and serving cannot drift apart. Axis letters: B rows, K drafted tokens, V
vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.core.architecture import num_ids
from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.features import extract, layers_needed
from gistgate.core.parts import Observer
from gistgate.core.reader import left_padded
from gistgate.core.request import Row
from gistgate.core.rule import Exact
from gistgate.drafters.model import ModelDrafter
from pipeline.labels.rollouts import PrefixCache
from pipeline.labels.schema import PLACE, Table, Texts, concatenated, num_rows, picked, plain_rows
from pipeline.pair.pair import Pair


class Replay(Observer):
    """Shows recorded mismatches again: one round of a decoder, whose observer it is, behind the
    text in front of each. The block holds what `names`, ids of features, are made from.
    """

    wants_q = True

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Any],
        names: Sequence[str],
        batch_size: int,
    ) -> None:
        self.layers = layers_needed(names)
        self.prompts = prompts
        self.batch_size = batch_size
        self._decoder = decoder.watched_by(self)
        self._prefixes = PrefixCache(self._decoder, batch_size)
        self._blocks: list[Block] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        self._blocks.append(block)

    def block(self, part: Table, texts: Texts, **request: Any) -> Block:
        """The block of one round at every record of `part`."""
        whole = []
        starts = []
        lengths = []
        for problem, policy, position in plain_rows(part, *PLACE):
            prompt = self.prompts[problem]["ids"]
            whole.append((*prompt, *texts[problem, policy]))
            starts.append((len(prompt) + position, ()))
            lengths.append(len(prompt))
        self._decoder.resume(
            self._prefixes.of(whole),
            starts,
            lengths,
            is_decided=lambda _row: "read",
            remember=False,
            **request,
        )
        return self._blocks.pop()

    def rounds(self, table: Table, texts: Texts, **request: Any) -> Iterator[tuple[Table, Block]]:
        """Records of `table` in batches with their blocks; those whose token a near tie changes are
        left out.
        """
        for part in batches(table, self.batch_size):
            block = self.block(part, texts, **request)
            if block.draft_ids.shape[1]:  # a drafter without a model may find nothing anywhere
                again = block.draft_ids[:, 0].cpu() == part["draft_id"]
                yield picked(part, again), block.of_rows(again)


def batches(table: Table, batch_size: int) -> Iterator[Table]:
    """The rows of a table, `batch_size` at a time."""
    return (picked(table, index) for index in torch.arange(num_rows(table)).split(batch_size))


class RecordedTexts(Drafter):
    """Proposes the draft tokens from every mismatch on, `blocks [B, K]` (-1: none), without
    probabilities.
    """

    blocks: Tensor

    def propose(self, texts: Sequence[Sequence[int]], num_draft: int, **_: Any) -> Draft:
        return recorded_draft(self.blocks[:, :num_draft])


class RecordedBlocks(ModelDrafter):
    """Proposes the same with probabilities, which the draft model names in one forward."""

    blocks: Tensor

    def propose(
        self, texts: Sequence[Sequence[int]], num_draft: int, *, vocabulary: int, **_: Any
    ) -> Draft:
        device = self.model.device
        draft = recorded_draft(self.blocks[:, :num_draft].to(device))
        ids, is_token = left_padded(self.reader.unread(texts), device)
        if is_token is None:
            is_token = torch.ones_like(ids, dtype=torch.bool)
        z_BKV = self.reader.read(
            torch.cat([ids, draft.ids[:, :-1]], dim=1),
            torch.cat([is_token, draft.valid[:, :-1]], dim=1),
            keep=draft.ids.shape[1],
        )
        return Draft(draft.ids, draft.valid, z_BKV[..., :vocabulary].softmax(-1), forwards=1)


def recorded_draft(blocks_BK: Tensor) -> Draft:
    """These tokens as a draft; -1 stands for none."""
    return Draft(blocks_BK.clamp_min(0), blocks_BK >= 0)


class FeatureReader:
    """Reads the features of labelled mismatches with the pair that they were found with."""

    def __init__(self, pair: Pair, prompts: Sequence[Any], names: Sequence[str], block: int):
        """`names`: feature ids; `block`: K of the decoder that recorded the mismatches."""
        self.prompts = prompts
        self.names = tuple(names)
        self.drafter = RecordedTexts() if pair.draft is None else RecordedBlocks(pair.draft)
        self.decoder = Decoder(
            pair.target,
            self.drafter,
            Exact(),
            block,
            tokenizer=pair.tokenizer,
            vocabulary=num_ids(pair.tokenizer),
        )

    @torch.no_grad()
    def read(self, table: Table, texts: Texts, batch_size: int, **request: Any) -> Table:
        """The columns `kl` and `same_target` of the schema FEATURES and all features, for every row
        of `table`.
        """
        parts = []
        replay = Replay(self.decoder, self.prompts, self.names, batch_size)
        for part in batches(table, batch_size):
            self.drafter.blocks = torch.cat([part["draft_id"][:, None], part["behind"].long()], 1)
            block = replay.block(part, texts, **request)
            features = extract(block, self.names)
            columns = {name: values[:, 0].float() for name, values in features.items()}
            columns["kl"] = divergence(block)
            same_target = block.top_ids[:, 0].cpu() == part["target_id"]
            columns["same_target"] = same_target.to(torch.int8)
            parts.append({name: column.cpu() for name, column in columns.items()})
        return concatenated(parts)


def divergence(block: Block) -> Tensor:
    """KL(p || q) in nats at the first token of every block [B]; nan without draft probabilities. q
    is floored at 1e-10.
    """
    if block.q is None:
        return torch.full((len(block.draft_ids),), torch.nan)
    logp_BV = block.logprobs[:, 0]
    logq_BV = block.q[:, 0].float().clamp_min(1e-10).log()
    return (logp_BV.exp() * (logp_BV.clamp_min(-1e9) - logq_BV)).sum(-1)
