"""What "quality" means when strict and loose answers are compared: four scores with one interface.

Each gives d = strict score - loose score for every prompt, in [-1, 1]. Equal answers have d = 0 and are not scored.

Axis letters: B rows, T tokens, V vocabulary, N prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.certificates.tango import Array

CLIP = 5.0
"""Nats per token at which a log-probability counts as worst; a budget of 0.01 is 0.05 nats per token."""
WORSE = -1e4
"""Stands for the log-probability of no token at all."""

Prompt = dict[str, Any]
Ids = list[int]


class Judge(Protocol):
    """A task that scores answers."""

    def text(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
        """The answer as it is scored."""
        ...

    def score(self, doc: dict[str, Any], text: str) -> float:
        """The verdict on an answer, in [0, 1]."""
        ...


class Scorer(Protocol):
    """Compares two answers to the same prompt."""

    id: ClassVar[str]
    ternary: ClassVar[bool]
    """Whether d is -1, 0 or 1 unless the data show otherwise, so that the exact bound may be used."""

    def differences(self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]) -> Array:
        """d of every prompt [N]."""
        ...


def where_different(strict: Sequence[Ids], loose: Sequence[Ids]) -> list[int]:
    """Indices of the prompts whose two answers are not the same tokens."""
    return [index for index, (one, other) in enumerate(zip(strict, loose, strict=True)) if one != other]


@dataclass(frozen=True)
class TaskScore:
    """The task's own metric against its solution: right or wrong."""

    task: Judge
    tokenizer: PreTrainedTokenizerBase
    id: ClassVar[str] = "task"
    ternary: ClassVar[bool] = True

    def differences(self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]) -> Array:
        d = np.zeros(len(prompts))
        for index in where_different(strict, loose):
            d[index] = self.score(prompts[index], strict[index]) - self.score(prompts[index], loose[index])
        return d

    def score(self, prompt: Prompt, ids: Ids) -> float:
        """The metric's value for one answer."""
        return self.task.score(prompt["doc"], self.task.text(self.tokenizer, ids))


@dataclass(frozen=True)
class LogProbability:
    """For open text without a right answer: how probable the target finds the answer it did not quite write.

    The mean log-probability per token, clipped to [-CLIP, 0] and moved to [0, 1].
    """

    target: PreTrainedModel
    batch_size: int = 32
    id: ClassVar[str] = "logprob"
    ternary: ClassVar[bool] = False

    def differences(self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]) -> Array:
        d, rows = np.zeros(len(prompts)), where_different(strict, loose)
        texts = [(prompts[i]["ids"], answer[i]) for i in rows for answer in (strict, loose)]
        starts = range(0, len(texts), self.batch_size)
        means = [mean for at in starts for mean in self.means(texts[at : at + self.batch_size])]
        scores = 1 + np.clip(np.array(means, float), -CLIP, 0.0) / CLIP
        d[rows] = scores[::2] - scores[1::2]
        return d

    @torch.no_grad()
    def means(self, texts: Sequence[tuple[Ids, Ids]]) -> list[float]:
        """Mean log-probability of every answer behind its prompt, in nats; of an empty one the worst there is."""
        device = self.target.device
        rows = [torch.tensor([*prompt, *answer]) for prompt, answer in texts]
        ids_BT = pad_sequence(rows, batch_first=True).to(device)
        mask_BT = pad_sequence([torch.ones(len(row), dtype=torch.long) for row in rows], batch_first=True).to(device)
        logits_BTV = self.target(input_ids=ids_BT, attention_mask=mask_BT).logits
        found = []
        for row, (prompt, answer) in enumerate(texts):
            at = slice(len(prompt) - 1, len(prompt) + len(answer) - 1)
            logp_TV = logits_BTV[row, at].float().log_softmax(-1)
            tokens_T = ids_BT[row, len(prompt) : len(prompt) + len(answer)]
            found.append(float(logp_TV.gather(-1, tokens_T[:, None]).mean()) if answer else WORSE)
        return found


@dataclass(frozen=True)
class Capped:
    """Whether an answer ends by itself: 0 where it is as long as it may be, else 1.

    A budget of 0.01 then means that capped answers rise by at most one point.
    """

    id: ClassVar[str] = "capped"
    ternary: ClassVar[bool] = True

    def differences(self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]) -> Array:
        limits = np.array([prompt["max_new_tokens"] for prompt in prompts])
        one, other = (np.array([len(ids) for ids in answers]) >= limits for answers in (strict, loose))
        return other.astype(float) - one


@dataclass(frozen=True)
class PairwiseJudge:
    """For open text: which of both answers a language model prefers; asked in both orders, disagreement is a tie."""

    judge: PreTrainedModel
    """Its weights are part of what a certificate says."""
    judge_tokenizer: PreTrainedTokenizerBase
    tokenizer: PreTrainedTokenizerBase
    id: ClassVar[str] = "judge"
    ternary: ClassVar[bool] = True

    def differences(self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]) -> Array:
        d = np.zeros(len(prompts))
        for index in where_different(strict, loose):
            one, other = (self.tokenizer.decode(ids[index], skip_special_tokens=True) for ids in (strict, loose))
            context = prompts[index]["context"]
            forth, back = self.prefers_first(context, one, other), self.prefers_first(context, other, one)
            d[index] = 0.0 if forth == back else 1.0 if forth else -1.0
        return d

    @torch.no_grad()
    def prefers_first(self, context: str, first: str, second: str) -> bool:
        """Whether "A" is a more probable verdict than "B"."""
        text = (
            f"Which answer serves the request better?\n\nRequest:\n{context}\n\nAnswer A:\n{first}\n\n"
            f"Answer B:\n{second}\n\nThe better answer is"
        )
        ids = self.judge_tokenizer(text, return_tensors="pt").input_ids.to(self.judge.device)
        logits_V = self.judge(input_ids=ids).logits[0, -1]
        a, b = (self.judge_tokenizer.encode(f" {letter}", add_special_tokens=False)[-1] for letter in "AB")
        return bool(logits_V[a] > logits_V[b])
