"""The features of labelled mismatches, read again: a record holds the draft tokens from the
mismatch on, so its block is rebuilt from the ids and nothing is proposed again. The same `extract`
serves a gate, so training and serving cannot drift apart. Axis letters: B rows, K drafted tokens, V
vocabulary, N mismatches."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.features import extract, layers_needed
from gistgate.core.reader import left_padded, num_ids
from gistgate.core.request import Row
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from pipeline.labels.rollouts import PrefixCache
from pipeline.labels.schema import Table, Texts, concatenated, num_rows, picked
from pipeline.pair.pair import Pair


class Replay:
    """Shows recorded mismatches again: one round of a decoder, whose observer it is, behind the
    text in front of each. The block holds what `names`, ids of features, are made from."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[dict[str, Any]],
        names: Sequence[str],
        batch_size: int,
    ) -> None:
        self.layers = layers_needed(names)
        self.wants_q = True
        self.prompts = prompts
        self.batch_size = batch_size
        self._prefixes = PrefixCache(decoder.having(observer=self), batch_size)
        self._blocks: list[Block] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        self._blocks.append(block)

    def block(self, part: Table, texts: Texts, **request: Any) -> Block:
        """The block of one round at every record of `part`."""
        problems, policies, positions = (
            part[name].tolist() for name in ("problem", "policy", "position")
        )
        lengths = [len(self.prompts[problem]["ids"]) for problem in problems]
        keys = zip(problems, policies, strict=True)
        whole = [
            (*self.prompts[problem]["ids"], *texts[problem, policy].ids) for problem, policy in keys
        ]
        self._prefixes.decoder.resume(
            self._prefixes.of(whole),
            [(length + position, []) for length, position in zip(lengths, positions, strict=True)],
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
    """Proposes the tokens `blocks [B, K]` (-1: none), without probabilities."""

    blocks: Tensor

    def propose(self, texts: Sequence[Sequence[int]], num_draft: int, **_: Any) -> Draft:
        blocks_BK = self.blocks[:, :num_draft]
        return Draft(blocks_BK.clamp_min(0), blocks_BK >= 0)


class RecordedBlocks(ModelDrafter):
    """The same with probabilities, which the draft model names in one forward."""

    blocks: Tensor

    def propose(
        self, texts: Sequence[Sequence[int]], num_draft: int, *, vocabulary: int, **_: Any
    ) -> Draft:
        blocks_BK = self.blocks[:, :num_draft].to(self.model.device)
        valid_BK = blocks_BK >= 0
        x_BK = blocks_BK.clamp_min(0)
        ids, known = left_padded(self.reader.unread(texts), self.model.device)
        known = torch.ones_like(ids, dtype=torch.bool) if known is None else known
        read = torch.cat([ids, x_BK[:, :-1]], dim=1), torch.cat([known, valid_BK[:, :-1]], dim=1)
        z_BKV = self.reader.read(*read, keep=x_BK.shape[1])[..., :vocabulary]
        return Draft(x_BK, valid_BK, z_BKV.softmax(-1), forwards=1)


class FeatureReader:
    """Reads the features of labelled mismatches with the pair that they were found with."""

    def __init__(
        self, pair: Pair, prompts: Sequence[dict[str, Any]], names: Sequence[str], block: int
    ) -> None:
        """`names`: feature ids; `block`: K of the decoder that recorded the mismatches."""
        self.prompts = prompts
        self.names = tuple(names)
        self.drafter = RecordedTexts() if pair.draft is None else RecordedBlocks(pair.draft)
        more: Any = {"tokenizer": pair.tokenizer, "vocabulary": num_ids(pair.tokenizer)}
        self.decoder = Decoder(pair.target, self.drafter, make_rule("exact"), block, **more)

    @torch.no_grad()
    def read(self, table: Table, texts: Texts, batch_size: int, **request: Any) -> Table:
        """The columns `kl` and `same_target` of the schema FEATURES and all features, for every row
        of `table`.
        """
        parts = []
        replay = Replay(self.decoder, self.prompts, self.names, batch_size)
        for part in batches(table, batch_size):
            self.drafter.blocks = blocks_of(part)
            parts.append(
                at_mismatch(replay.block(part, texts, **request), self.names, part["target_id"])
            )
        return concatenated(parts)


def blocks_of(part: Table) -> Tensor:
    """The draft tokens from every mismatch on [B, K], -1 behind the draft's end."""
    return torch.cat([part["draft_id"][:, None], part["behind"].long()], dim=1)


def at_mismatch(block: Block, names: Sequence[str], target_id_B: Tensor) -> Table:
    """The columns of FEATURES that are read from blocks which begin with their mismatches."""
    first = torch.zeros(len(block.draft_ids), dtype=torch.long, device=block.draft_ids.device)
    columns = {name: values[:, 0].float() for name, values in extract(block, names).items()}
    columns["kl"] = divergence(block, torch.arange(len(first), device=first.device), first)
    columns["same_target"] = (block.top_ids[:, 0] == target_id_B.to(first.device)).to(torch.int8)
    return {name: column.cpu() for name, column in columns.items()}


def divergence(block: Block, at_B: Tensor, at_K: Tensor) -> Tensor:
    """KL(p || q) in nats at the given places [N]; nan without draft probabilities. q is floored at
    1e-10.
    """
    if block.q is None:
        return torch.full((len(at_B),), torch.nan, device=at_B.device)
    logp_NV = block.logprobs[at_B, at_K]
    logq_NV = block.q[at_B, at_K].float().clamp_min(1e-10).log()
    return (logp_NV.exp() * (logp_NV.clamp_min(-1e9) - logq_NV)).sum(-1)
