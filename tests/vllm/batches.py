"""Batches made by hand for the hook of the vLLM plug-in, with stand-ins for vLLM's own
functions.
"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gistgate.core.block import Block
from gistgate.vllm import during, v1, v2, wrap_once
from gistgate.vllm.judge import VllmJudge
from gistgate.vllm.policy import Policy

VOCABULARY, WIDTH, NUM = 11, 4, 3
LENGTHS = [3, 0, 1, 2]
"""Drafted tokens of each request of the ragged batch."""
PROMPT, ANSWER = [1, 2], [3, 4]
"""What every request has read before the token in front of its draft."""
GREEDY = SimpleNamespace(all_greedy=True, all_random=False, temperature=None)
"""vLLM's sampling metadata of a batch in which nobody samples."""


def accepted(best: list[int], drafted: list[int]) -> list[int]:
    """The greedy test on one request: the target's tokens up to the first that differs from the
    draft, included.
    """
    num = next((place for place, own in enumerate(drafted) if best[place] != own), len(drafted))
    return best[: num + 1]


def native_v1(
    draft_token_ids: Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: Tensor,
    draft_probs: Any,
    target_logits: Tensor,
    bonus_token_ids: Tensor,
    sampling_metadata: Any,
) -> Tensor:
    """vLLM's `rejection_sample` in the first runner, for greedy requests."""
    result = torch.full((len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32)
    best, drafted = (
        target_logits.argmax(-1).split(num_draft_tokens),
        draft_token_ids.split(num_draft_tokens),
    )
    for row, bonus in enumerate(bonus_token_ids.tolist()):
        text = accepted(best[row].tolist() + bonus, drafted[row].tolist())
        result[row, : len(text)] = torch.tensor(text)
    return result


def native_v2(
    target_logits: Tensor,
    draft_logits: Any,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    pos: Tensor,
    idx_mapping: Tensor,
    expanded_idx_mapping: Tensor,
    temperature: Tensor,
    num_speculative_steps: int,
) -> tuple[Tensor, Tensor]:
    """The same for the second runner."""
    sizes = cu_num_logits.diff().tolist()
    best, read = target_logits.argmax(-1).split(sizes), draft_sampled.split(sizes)
    texts = [accepted(b.tolist(), r[1:].tolist()) for b, r in zip(best, read, strict=True)]
    padded = [text + [0] * (num_speculative_steps + 1 - len(text)) for text in texts]
    return torch.tensor(padded), torch.tensor([*map(len, texts)])


def hooked(native: Any, verify: Any, call: Any, *arguments: Any, **options: Any) -> Any:
    """What a replaced `rejection_sample` returns within a step of the engine."""
    module = SimpleNamespace(rejection_sample=native)
    wrap_once(module, verify)
    with during(call):
        return module.rejection_sample(*arguments, **options)


class Batch:
    """A ragged batch in the terms of both runners."""

    def __init__(self, seed: int = 0, lengths: list[int] = LENGTHS) -> None:
        self.lengths, self.known = lengths, ANSWER
        generator = torch.Generator().manual_seed(seed)
        self.num_rows = sum(lengths) + len(lengths)
        self.logits = 2 * torch.randn(self.num_rows, VOCABULARY, generator=generator)
        self.hidden = torch.randn(self.num_rows, WIDTH, generator=generator)
        self.read = torch.randint(VOCABULARY, (self.num_rows,), generator=generator)
        self.ends = torch.tensor([0, *lengths]).cumsum(0) + torch.arange(len(lengths) + 1)
        self.bonus = self.ends[1:] - 1
        rows = torch.arange(self.num_rows)
        self.targets = rows[~torch.isin(rows, self.bonus)]
        first = len(PROMPT + ANSWER)
        self.places = torch.cat([torch.arange(first, first + length + 1) for length in lengths])
        self.params = {
            f"r{index}": SimpleNamespace(extra_args=None) for index in range(len(lengths))
        }

    def running(self) -> dict[str, Any]:
        """The requests as a runner knows them."""
        return {
            name: SimpleNamespace(
                sampling_params=params, prompt_token_ids=PROMPT, output_token_ids=self.known
            )
            for name, params in self.params.items()
        }

    def wish(self, name: str, value: Any) -> None:
        """Let a request be another one, with a wish."""
        self.params[name] = SimpleNamespace(extra_args={"gistgate": value})

    def through_v1(
        self, judge: VllmJudge, sampling: Any = GREEDY, draft: Tensor | None = None
    ) -> list[list[int]]:
        """Tokens of each request from the first runner; `draft` are the drafter's logits [B, K,
        V].
        """
        ids, rows = self.read[self.targets + 1], torch.arange(self.num_rows)
        metadata = SimpleNamespace(
            bonus_logits_indices=self.bonus, logits_indices=rows, target_logits_indices=self.targets
        )
        runner = SimpleNamespace(
            requests=self.running(),
            input_batch=SimpleNamespace(req_ids=list(self.params)),
            input_ids=SimpleNamespace(gpu=self.read),
            positions=self.places,
        )
        call = v1.Call(judge, runner, self.hidden, metadata, self.logits)
        logits, bonus = self.logits[self.targets], self.logits[self.bonus].argmax(-1, keepdim=True)
        ends = torch.tensor(self.lengths).cumsum(0)
        q = (
            None
            if draft is None
            else torch.cat([z[:n] for z, n in zip(draft, self.lengths)]).softmax(-1)
        )
        widest = max(self.lengths)
        drafted = (ids, self.lengths, widest, ends, q)
        found = hooked(native_v1, v1.verify, call, *drafted, logits, bonus, sampling)
        assert torch.equal(logits, self.logits[self.targets])
        return [[token for token in row if token >= 0] for row in found.tolist()]

    def through_v2(
        self, judge: VllmJudge, cuts: tuple[int, ...] = (0, 4), draft: Tensor | None = None
    ) -> list[list[int]]:
        """Tokens of each request from the second runner, in chunks of whole requests between
        `cuts`.
        """
        mapping = torch.arange(len(self.lengths))
        batch = SimpleNamespace(req_ids=list(self.params), idx_mapping_np=mapping.numpy())
        texts_BT = torch.zeros(len(self.lengths), len(PROMPT + ANSWER) + 1, dtype=torch.long)
        texts_BT[:, :-1], texts_BT[:, -1] = (
            torch.tensor(PROMPT + self.known),
            self.read[self.ends[:-1]],
        )
        states = SimpleNamespace(all_token_ids=SimpleNamespace(gpu=texts_BT))
        cold = torch.zeros(len(self.lengths)).numpy()
        call = v2.Call(judge, self.running(), states, cold, self.hidden, batch)
        texts = []
        for start, stop in pairwise(cuts):
            low, high = int(self.ends[start]), int(self.ends[stop])
            expanded = torch.repeat_interleave(mapping, torch.tensor(self.lengths) + 1)[low:high]
            logits = self.logits[low:high].clone()
            tokens, lengths = hooked(
                native_v2,
                v2.verify,
                call,
                logits,
                draft,
                self.read[low:high],
                self.ends[start : stop + 1] - low,
                self.places[low:high],
                mapping[start:stop],
                expanded,
                temperature=torch.zeros(8),
                num_speculative_steps=NUM,
            )
            assert torch.equal(logits, self.logits[low:high])
            texts += [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
        return texts

    def padded(self, protected: tuple[int, ...] = ()) -> Block:
        """The same batch as the library's own block."""
        places = torch.minimum(self.ends[:-1, None] + torch.arange(NUM + 1), self.bonus[:, None])
        following = (places[:, :-1] + 1).clamp_max(self.num_rows - 1)
        return Block(
            self.read[following],
            torch.arange(NUM) < torch.tensor(self.lengths)[:, None],
            self.logits[places],
            hidden={"post": self.hidden[places]},
            protocol=torch.tensor(protected, dtype=torch.long),
        )


class Head:
    """A gate that shows what it is given."""

    features: ClassVar[dict[str, int]] = {"h_tok:post": WIDTH, "scalars": 8}

    def __call__(self, block: Block) -> Tensor:
        before, after = block.hidden["post"][:, :-1].sum(-1), block.hidden["post"][:, 1:].sum(-1)
        return torch.sigmoid(before - after + block.entropy[:, 1:] - block.draft_rank)


def make_judge(
    rule: Any,
    protected: tuple[int, ...] = (),
    gate: Any = None,
    guard: bool = False,
    sampled: bool = True,
    **more: Any,
) -> VllmJudge:
    return VllmJudge(
        Policy(rule, gate, "test", sampled), protected, 8, torch.device("cpu"), guard, **more
    )
