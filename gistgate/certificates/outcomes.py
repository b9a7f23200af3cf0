"""What "quality" means when strict and loose answers are compared: four scores with one interface.

Each gives d = strict - loose score for every prompt, in [-1, 1]; equal answers have d = 0 and are
not scored. Axis letters: B rows, T tokens, V vocabulary, N prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.certificates.bounds import Array
from gistgate.core.files import fingerprint, named_files, read_json_lines, write_json_lines
from gistgate.core.request import Statistics, total
from gistgate.coverage.ask import Settings

if TYPE_CHECKING:
    from gistgate.models.loading import Target
    from gistgate.tasks.task import Task

# nats per token at which a log-probability counts as worst; a budget of 0.01 is 0.05 nats per token
CLIP = 5.0
MOST_LOST = 1.0  # nats per token; an answer that loses or gains more counts as much
WORSE = -1e4  # stands for the log-probability of no token at all
READ_TOGETHER = 4
"""Finished answers in one read, whose logits take a gigabyte in large vocabularies."""
CHUNK = 256  # prompts that are decoded between two looks at the outcomes

Prompt = dict[str, Any]
Ids = list[int]
Text = tuple[tuple[int, ...], tuple[int, ...]]  # a prompt and its answer


def where_different(strict: Sequence[Ids], loose: Sequence[Ids]) -> list[int]:
    """Indices of the prompts whose two answers are not the same tokens."""
    pairs = enumerate(zip(strict, loose, strict=True))
    return [index for index, (strict_ids, loose_ids) in pairs if strict_ids != loose_ids]


class Scorer:
    """Compares two answers to every prompt."""

    id: ClassVar[str]
    ternary: ClassVar[bool] = True
    """Whether d is -1, 0 or 1 unless the data show otherwise, so that the exact bound may be used.
    """

    def differences(
        self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]
    ) -> Array:
        """Return d = strict - loose score [N] of these answers."""
        d = np.zeros(len(prompts))
        for index in where_different(strict, loose):
            d[index] = self.compare(prompts[index], strict[index], loose[index])
        return d

    def compare(self, prompt: Prompt, strict: Ids, loose: Ids) -> float:
        """Return d of one prompt whose answers differ."""
        raise NotImplementedError


@dataclass(frozen=True)
class TaskScore(Scorer):
    """The task's own metric against its solution: right or wrong."""

    task: Task
    tokenizer: PreTrainedTokenizerBase
    id: ClassVar[str] = "task"

    def compare(self, prompt: Prompt, strict: Ids, loose: Ids) -> float:
        """Return the difference of both scores."""
        return self.score(prompt, strict) - self.score(prompt, loose)

    def score(self, prompt: Prompt, ids: Ids) -> float:
        """Return what the task gives for an answer, in [0, 1]."""
        return self.task.score(prompt["doc"], self.task.text(self.tokenizer, ids))


@dataclass(frozen=True)
class LogProbability(Scorer):
    """The mean log-probability per token under the target, clipped to [-CLIP, 0] nats and moved to
    [0, 1]; or the loss of it in nats, as a second claim beside another score.
    """

    target: PreTrainedModel
    batch_size: int = 32
    read: dict[Text, float] = field(default_factory=dict, repr=False)
    """Means of answers: strict ones serve several settings."""
    id: ClassVar[str] = "logprob"
    ternary: ClassVar[bool] = False

    def differences(
        self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]
    ) -> Array:
        """Return d [N]; the answers that differ are read in batches."""
        d = np.zeros(len(prompts))
        rows = where_different(strict, loose)
        means_2R = self.both_means(rows, prompts, strict, loose)
        scores_2R = np.clip(means_2R, -CLIP, 0.0) / CLIP
        d[rows] = scores_2R[0] - scores_2R[1]
        return d

    def losses(
        self, prompts: Sequence[Prompt], strict: Sequence[Ids], loose: Sequence[Ids]
    ) -> Array:
        """Return strict - loose mean [N] in nats per token, each clipped to MOST_LOST at most."""
        lost = np.zeros(len(prompts))
        rows = where_different(strict, loose)
        means_2R = self.both_means(rows, prompts, strict, loose)
        lost[rows] = np.clip(means_2R[0] - means_2R[1], -MOST_LOST, MOST_LOST)
        return lost

    def both_means(
        self,
        rows: Sequence[int],
        prompts: Sequence[Prompt],
        strict: Sequence[Ids],
        loose: Sequence[Ids],
    ) -> Array:
        """Return the means of both answers of these rows [2, R]; nothing is read twice."""
        keys: list[Text] = []
        for side in (strict, loose):
            keys += [(tuple(prompts[row]["ids"]), tuple(side[row])) for row in rows]
        fresh = [key for key in dict.fromkeys(keys) if key not in self.read]
        for start in range(0, len(fresh), self.batch_size):
            batch = fresh[start : start + self.batch_size]
            self.read.update(zip(batch, self.means(batch), strict=True))
        return np.array([self.read[key] for key in keys], float).reshape(2, len(rows))

    @torch.no_grad()
    def means(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
        """Mean log-probability of every answer behind its prompt, in nats; of an empty one the
        worst there is.
        """
        device = self.target.device
        rows = [torch.tensor([*prompt, *answer]) for prompt, answer in texts]
        ids_BT = pad_sequence(rows, batch_first=True).to(device)
        mask_BT = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(device)
        logits_BTV = self.target(input_ids=ids_BT, attention_mask=mask_BT).logits
        means = []
        for row, (prompt, answer) in enumerate(texts):
            start = len(prompt)
            end = start + len(answer)
            logp_TV = logits_BTV[row, start - 1 : end - 1].float().log_softmax(-1)
            logp_T1 = logp_TV.gather(-1, ids_BT[row, start:end, None])
            means.append(float(logp_T1.mean()) if answer else WORSE)
        return means


class Capped(Scorer):
    """Whether an answer ends by itself: a budget of 0.01 means that capped answers rise by at most
    one point.
    """

    id = "capped"

    def compare(self, prompt: Prompt, strict: Ids, loose: Ids) -> float:
        """Return 1 if only the loose answer is as long as it may be, -1 if only the strict one."""
        limit = prompt["max_new_tokens"]
        return float(len(loose) >= limit) - float(len(strict) >= limit)


@dataclass(frozen=True)
class PairwiseJudge(Scorer):
    """For open text: which of both answers a language model prefers; asked in both orders,
    disagreement is a tie.
    """

    judge: Target  # its weights are part of what a certificate says
    tokenizer: PreTrainedTokenizerBase
    id: ClassVar[str] = "judge"

    def compare(self, prompt: Prompt, strict: Ids, loose: Ids) -> float:
        """Return 1 if the judge prefers the strict answer, -1 if the loose one, 0 for a tie."""
        context = prompt["context"]
        texts = self.tokenizer.batch_decode([strict, loose], skip_special_tokens=True)
        forth = self.prefers_first(context, *texts)
        back = self.prefers_first(context, *reversed(texts))
        return float(forth) - float(back)

    @torch.no_grad()
    def prefers_first(self, context: str, first: str, second: str) -> bool:
        """Whether "A" is a more probable verdict than "B"."""
        text = (
            f"Which answer serves the request better?\n\nRequest:\n{context}\n\nAnswer"
            f" A:\n{first}\n\nAnswer B:\n{second}\n\nThe better answer is"
        )
        model = self.judge.model
        tokenizer = self.judge.tokenizer
        ids_1T = tokenizer(text, return_tensors="pt").input_ids.to(model.device)
        logits_V = model(input_ids=ids_1T).logits[0, -1]
        a, b = (tokenizer.encode(f" {letter}", add_special_tokens=False)[-1] for letter in "AB")
        return bool(logits_V[a] > logits_V[b])


@dataclass(frozen=True)
class Answer:
    """One decoded prompt."""

    ids: Ids  # the new tokens
    statistics: Statistics  # what was counted
    finish: str = ""  # why it ended, as of `Generation`


Decode = Callable[[Settings, Sequence[Prompt], int], list[Answer]]
"""Answers of a rule at these settings to prompts, the first of which has this index in its
split.
"""
Strict = Callable[[Sequence[Prompt], int], list[Ids]]  # the same of strict answers


@dataclass(frozen=True)
class Decoded:
    """Some prompts, decoded at one setting."""

    differences: Array  # d = strict - loose score [N]
    statistics: list[Statistics] = field(default_factory=list)  # what was counted, by prompt
    tokens: Array = field(default_factory=lambda: np.zeros((0, 3)))
    """Tokens of the strict answer, of the loose answer, and the most that an answer may have [N,
    3].
    """
    differs: list[bool] = field(default_factory=list)  # whether the answers differ, by prompt
    fluency: Array = field(default_factory=lambda: np.zeros(0))
    """Strict - loose mean log-probability in nats per token [N]; empty where nobody asked."""

    @property
    def counted(self) -> Statistics:
        """What was counted, summed over the prompts."""
        return total(self.statistics)

    def __add__(self, later: Decoded) -> Decoded:
        """These prompts and those behind them."""
        return Decoded(
            np.concatenate([self.differences, later.differences]),
            self.statistics + later.statistics,
            np.concatenate([self.tokens, later.tokens]),
            self.differs + later.differs,
            np.concatenate([self.fluency, later.fluency]),
        )

    @property
    def growth(self) -> float:
        """By what share answers are longer on average than the strict ones; 0 where no lengths are
        known.
        """
        strict, loose, _ = self.tokens.sum(0)
        return float(loose / strict - 1) if strict else 0.0

    @property
    def fluency_loss(self) -> float:
        """Mean loss of log-probability in nats per token; 0 where nobody asked."""
        return float(self.fluency.mean()) if len(self.fluency) else 0.0

    @property
    def lengths(self) -> dict[str, float]:
        """Mean lengths in tokens, and shares of answers as long as they may be; empty where no
        lengths are known.
        """
        if not len(self.tokens):
            return {}
        strict, loose, limit = self.tokens.T
        return {
            "mean_tokens": float(loose.mean()),
            "strict_mean_tokens": float(strict.mean()),
            "capped": float((loose >= limit).mean()),
            "strict_capped": float((strict >= limit).mean()),
        }


NOTHING = Decoded(np.zeros(0))


@dataclass(frozen=True)
class Outcomes:
    """One method on prompts by split."""

    prompts: Mapping[str, Sequence[Prompt]]
    """Prompts by split; `development` chooses settings, `calibration` certifies them."""
    scorer: Scorer  # what quality means
    strict: Strict  # strict decoding, the reference
    loose: Decode  # the method
    chunk: int | None = CHUNK
    """Prompts that are decoded at once; None decodes a whole split at once."""
    reader: LogProbability | None = None
    """What reads the answers for a claim on their log-probability; None: no such claim."""

    def decoded(
        self, split: str, settings: Settings, start: int = 0, stop: int | None = None
    ) -> Decoded:
        """Prompts `start` to `stop` of a split at these settings of the rule."""
        prompts = self.prompts[split][start:stop]
        strict = self.strict(prompts, start)
        answers = self.loose(settings, prompts, start)
        loose = [answer.ids for answer in answers]
        limits = [prompt["max_new_tokens"] for prompt in prompts]
        lengths = [list(map(len, strict)), list(map(len, loose)), limits]
        return Decoded(
            self.scorer.differences(prompts, strict, loose),
            [answer.statistics for answer in answers],
            np.array(lengths, float).T,
            [strict_ids != loose_ids for strict_ids, loose_ids in zip(strict, loose, strict=True)],
            self.reader.losses(prompts, strict, loose) if self.reader else np.zeros(0),
        )

    def chunks(self, split: str, settings: Settings, n: int) -> Iterator[Decoded]:
        """The first n prompts of a split, chunk by chunk, in their order; a chunk is decoded when
        it is asked for.
        """
        size = self.chunk or n
        for start in range(0, n, size):
            yield self.decoded(split, settings, start, min(start + size, n))


def cached(decode: Decode, folder: Path, name: str, *depends: Any) -> Decode:
    """The same function, with answers kept in `folder`; `depends` decides them besides settings,
    files and prompts.
    """

    def answers(settings: Settings, prompts: Sequence[Prompt], start: int) -> list[Answer]:
        requests = [
            [prompt["ids"], prompt["stops"], prompt["max_new_tokens"]] for prompt in prompts
        ]
        key = fingerprint(*depends, settings, *named_files(settings), start, requests)
        path = folder / f"{name}-{key}.jsonl"
        if not path.exists():
            rows = [
                {**vars(answer), "statistics": answer.statistics.as_dict()}
                for answer in decode(settings, prompts, start)
            ]
            write_json_lines(path, rows)
        return [
            Answer(**{**row, "statistics": Statistics.from_dict(row["statistics"])})
            for row in read_json_lines(path)
        ]

    return answers
