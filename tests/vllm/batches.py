"""Batches made by hand for the hook of the vLLM plug-in, with stand-ins for vLLM's own functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gistgate.core.block import Block
from gistgate.vllm import v1, v2
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.policy import Policy

VOCABULARY, WIDTH, NUM = 11, 4, 3
LENGTHS = [3, 0, 1, 2]
"""Drafted tokens of each request of the ragged batch."""


def native_v1(
    draft_token_ids: Tensor, num_draft_tokens: list[int], max_spec_len: int, _ends: Tensor, _probs: Any,
    target_logits: Tensor, bonus_token_ids: Tensor, _sampling: Any, *_more: Any,
) -> Tensor:  # fmt: skip
    """vLLM's greedy test, written as a loop."""
    result = torch.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32)
    best, start = target_logits.argmax(-1), 0
    for row, length in enumerate(num_draft_tokens):
        for place in range(length + 1):
            own = bonus_token_ids[row, 0] if place == length else best[start + place]
            result[row, place] = own
            if place < length and own != draft_token_ids[start + place]:
                break
        start += length
    return result


def native_v2(
    target_logits: Tensor, _draft: Any, draft_sampled: Tensor, cu_num_logits: Tensor, *more: Any
) -> tuple[Tensor, Tensor]:
    """The same for the second runner."""
    num = more[6]
    result, lengths = torch.zeros(len(cu_num_logits) - 1, num + 1, dtype=torch.int64), []
    best = target_logits.argmax(-1)
    for row, (start, end) in enumerate(zip(cu_num_logits[:-1].tolist(), cu_num_logits[1:].tolist(), strict=True)):
        place = 0
        result[row, 0] = best[start]
        while start + place + 1 < end and best[start + place] == draft_sampled[start + place + 1]:
            place += 1
            result[row, place] = best[start + place]
        lengths.append(place + 1)
    return result, torch.tensor(lengths)


KNOWN: dict[tuple[str, str], Any] = {}
GREEDY = SimpleNamespace(all_greedy=True, all_random=False, temperature=None)
"""vLLM's sampling metadata of a batch in which nobody samples."""


def sampled_at(*temperatures: float) -> Any:
    """vLLM's sampling metadata of a batch with these temperatures, of which at least one is above 0."""
    return SimpleNamespace(all_greedy=False, all_random=0.0 not in temperatures, temperature=torch.tensor(temperatures))


def wishing(name: str, wish: Any) -> Any:
    """Sampling parameters with a wish; the same object as long as the request lives."""
    return KNOWN.setdefault((name, repr(wish)), SimpleNamespace(extra_args=wish))


class Batch:
    """A ragged batch in the terms of both runners."""

    def __init__(self, seed: int = 0, lengths: list[int] | None = None) -> None:
        self.lengths = LENGTHS if lengths is None else lengths
        generator = torch.Generator().manual_seed(seed)
        self.num_rows = sum(self.lengths) + len(self.lengths)
        self.logits = 2 * torch.randn(self.num_rows, VOCABULARY, generator=generator)
        self.hidden = torch.randn(self.num_rows, WIDTH, generator=generator)
        self.read = torch.randint(VOCABULARY, (self.num_rows,), generator=generator)
        self.ends = torch.tensor([0, *self.lengths]).cumsum(0) + torch.arange(len(self.lengths) + 1)
        self.bonus = self.ends[1:] - 1
        rows = torch.arange(self.num_rows)
        self.targets = rows[~torch.isin(rows, self.bonus)]
        self.names = [f"r{index}" for index in range(len(self.lengths))]
        self.extra: dict[str, Any] = {}

    def params(self) -> dict[str, Any]:
        return {name: wishing(name, self.extra.get(name)) for name in self.names}

    def through_v1(self, judge: VllmJudge, sampling: Any = GREEDY) -> tuple[Tensor, Tensor]:
        """Result of the first runner, and the logits afterwards."""
        ids = self.read[self.targets + 1]
        metadata = SimpleNamespace(
            bonus_logits_indices=self.bonus,
            logits_indices=torch.arange(self.num_rows),
            target_logits_indices=self.targets,
        )
        runner = SimpleNamespace(
            requests={name: SimpleNamespace(sampling_params=params) for name, params in self.params().items()},
            input_batch=SimpleNamespace(req_ids=self.names),
            input_ids=SimpleNamespace(gpu=self.read),
        )
        call = v1.Call(judge, runner, self.hidden, metadata, self.logits)
        logits = self.logits[self.targets]
        bonus = self.logits[self.bonus].argmax(-1, keepdim=True)
        ends = torch.tensor(self.lengths).cumsum(0)
        found = v1.verify(call, native_v1, ids, self.lengths, max(self.lengths), ends, None, logits, bonus, sampling)
        assert torch.equal(logits, self.logits[self.targets])
        return found, logits

    def through_v2(self, judge: VllmJudge, chunks: list[slice], draft: Tensor | None = None) -> list[list[int]]:
        """Tokens of each request from the second runner, in chunks of whole requests."""
        mapping = torch.arange(len(self.lengths))
        batch = SimpleNamespace(req_ids=self.names, idx_mapping_np=mapping.numpy())
        call = v2.Call(judge, self.params(), torch.zeros(len(self.lengths)).numpy(), self.hidden, batch)
        texts = []
        for chunk in chunks:
            low, high = int(self.ends[chunk.start]), int(self.ends[chunk.stop])
            expanded = torch.repeat_interleave(mapping, torch.tensor(self.lengths) + 1)[low:high]
            logits = self.logits[low:high].clone()
            tokens, lengths = v2.verify(
                call, native_v2, logits, draft, self.read[low:high], self.ends[chunk.start : chunk.stop + 1] - low,
                torch.arange(low, high), mapping[chunk], expanded, torch.zeros(high - low), torch.zeros(8),
                torch.zeros(8), NUM,
            )  # fmt: skip
            assert torch.equal(logits, self.logits[low:high])
            texts += [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
        return texts

    def padded(self, protected: tuple[int, ...] = ()) -> Block:
        """The same batch as the library's own block."""
        places = torch.minimum(self.ends[:-1, None] + torch.arange(NUM + 1), self.bonus[:, None])
        following = (places[:, :-1] + 1).clamp_max(self.num_rows - 1)
        return Block(
            self.read[following], torch.arange(NUM) < torch.tensor(self.lengths)[:, None], self.logits[places],
            hidden={"post": self.hidden[places]}, protocol=torch.tensor(protected, dtype=torch.long),
        )  # fmt: skip


class Head:
    """A gate that shows what it is given."""

    features: ClassVar[dict[str, int]] = {"h_tok:post": WIDTH, "scalars": 8}

    def __call__(self, block: Block) -> Tensor:
        before, after = block.hidden["post"][:, :-1].sum(-1), block.hidden["post"][:, 1:].sum(-1)
        return torch.sigmoid(before - after + block.entropy[:, 1:] - block.draft_rank)


def make_judge(
    rule: Any, protected: tuple[int, ...] = (), gate: Any = None, guard: bool = False, sampled: bool = True, **more: Any
) -> VllmJudge:
    return VllmJudge(Policy(rule, gate, "test", sampled), protected, 8, torch.device("cpu"), guard, **more)


def tokens_of(result: Tensor) -> list[list[int]]:
    return [[token for token in row if token >= 0] for row in result.tolist()]
