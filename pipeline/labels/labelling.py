"""From rollouts to labels: was the meaning kept, and how sure is that?

Hard label: whether the greedy rollout behind the forced draft token keeps the meaning. Where it does not, a soft label
compares sampled rollouts behind the draft token with as many behind the target's own token, because sampling changes
answers even when nothing is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.integrations.lm_eval.task import Task
from pipeline.labels.rollouts import Roller, Rollout, is_trustworthy
from pipeline.labels.tables import Table, picked
from pipeline.labels.texts import Texts
from pipeline.params import Params


@dataclass
class Labeller:
    """Turns records of mismatches into labels."""

    decoder: Decoder
    """Strict decoding with the pair that the labels are for."""
    task: Task
    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[dict[str, Any]]
    """The prompts that the records' column `problem` points into."""
    params: Params
    request: dict[str, Any]
    """Arguments of the decoder that all prompts share."""
    references: dict[int, list[int]]
    """The target's own answer to each problem, as token ids."""

    def label(self, table: Table, texts: Texts) -> Table:
        """The records as rows of the schema LABELS, without those on a text that has lost its meaning before."""
        table = in_order(self._comparable(table))
        greedy_kept = self._greedy_kept(table, texts)
        intact = is_intact(table, greedy_kept)
        table, greedy_kept = picked(table, intact), greedy_kept[intact]
        kept, rollouts = self._kept(table, texts, greedy_kept)
        rest = {name: column for name, column in table.items() if name != "accepted"}
        return {**rest, "greedy_kept": greedy_kept, "kept": kept, "rollouts": rollouts}

    def _comparable(self, table: Table) -> Table:
        """The records of problems in whose own answer the task finds something to compare with."""
        known = [problem for problem in set(table["problem"].tolist()) if self._same(problem, self.references[problem])]
        return picked(table, torch.isin(table["problem"], torch.tensor(known, dtype=torch.int64)))

    def _greedy_kept(self, table: Table, texts: Texts) -> Tensor:
        """1 where the greedy rollout keeps the meaning, else 0 [N]; what mining knows already is taken over."""
        greedy_kept = table["greedy_kept"].clone()
        unknown = (greedy_kept < 0).nonzero().flatten().tolist()
        rollouts = [self._rollout(table, texts, n, "draft_id") for n in unknown]
        found = self._keep(rollouts, table["problem"][unknown].tolist())
        greedy_kept[unknown] = torch.tensor(found, dtype=torch.int8)
        return greedy_kept

    def _keep(self, rollouts: Sequence[Rollout], problems: Sequence[int]) -> list[bool]:
        """Whether each greedy rollout keeps the meaning; the first few run to their end and audit the early stop."""
        audit, rejoin = self.params.label.audit, self.params.label.rejoin
        whole = self._roller(None).answers(rollouts[:audit])
        kept = [self._same(problem, answer) for problem, (answer, _) in zip(problems[:audit], whole, strict=True)]
        if rejoin is not None and not is_trustworthy(rollouts[:audit], [answer for answer, _ in whole], kept, rejoin):
            rejoin = None
        rest = self._roller(rejoin).answers(rollouts[audit:])
        return kept + [
            rejoined or self._same(problem, answer)
            for problem, (answer, rejoined) in zip(problems[audit:], rest, strict=True)
        ]

    def _kept(self, table: Table, texts: Texts, greedy_kept: Tensor) -> tuple[Tensor, Tensor]:
        """P(kept) of every record [N], and how many rollouts stand behind it [N].

        A lost greedy rollout counts as one of 1 + repeats; the others are sampled. What they lose against the same
        number behind the target's own token is charged to the draft token.
        """
        kept, rollouts = greedy_kept.float(), torch.ones(len(greedy_kept), dtype=torch.int16)
        repeats = self.params.label.rollouts - 1
        unsure = (greedy_kept == 0).nonzero().flatten()
        rows = unsure.repeat_interleave(repeats).tolist()
        if not rows:
            return kept, rollouts
        kept_x, kept_t = (self._sampled(table, texts, rows, token) for token in ("draft_id", "target_id"))
        against_target = (1 + kept_x - kept_t).view(-1, repeats).mean(-1).clamp(0, 1)
        kept[unsure] = repeats * against_target / (1 + repeats)
        rollouts[unsure] = 1 + repeats
        return kept, rollouts

    def _sampled(self, table: Table, texts: Texts, rows: Sequence[int], token: str) -> Tensor:
        """1 where a sampled rollout behind `token` keeps the meaning [len(rows)]."""
        sampling = Sampling(temperature=self.params.label.temperature)
        rollouts = [
            self._rollout(table, texts, n, token, seed=self.params.seed * 1_000_003 + place)
            for place, n in enumerate(rows)
        ]
        answers = self._roller(None).answers(rollouts, sampling)
        same = [self._same(int(table["problem"][n]), answer) for n, (answer, _) in zip(rows, answers, strict=True)]
        return torch.tensor(same, dtype=torch.float32)

    def _roller(self, rejoin: int | None) -> Roller:
        return Roller(self.decoder, self.params.label.batch_size, rejoin, **self.request)

    def _rollout(self, table: Table, texts: Texts, n: int, token: str, seed: int = 0) -> Rollout:
        problem = int(table["problem"][n])
        text = texts[problem, int(table["policy"][n])]
        position, forced = int(table["position"][n]), int(table[token][n])
        return Rollout(self.prompts[problem]["ids"], text.ids, position, forced, self.references[problem], seed)

    def _same(self, problem: int, answer: list[int]) -> bool:
        """Whether the meaning is kept; an answer that cannot be compared counts as lost."""
        text, expected = (self.task.text(self.tokenizer, ids) for ids in (answer, self.references[problem]))
        return bool(self.task.same_meaning(self.prompts[problem]["doc"], text, expected))


def in_order(table: Table) -> Table:
    """Records by problem, policy and position."""
    key = (table["problem"] * 4 + table["policy"]) * 1_000_000 + table["position"]
    return picked(table, torch.argsort(key))


def is_intact(table: Table, greedy_kept: Tensor) -> Tensor:
    """Where the text in front of the record, gone on with strictly, still keeps the meaning [N].

    On a gated text the answer may be lost before the record. Between two records every token is the target's own, so
    the strict continuation of one is the rollout of the record before it: of its draft token if that was accepted,
    else of whatever came before. No rollout is needed to know it.
    """
    intact, fine, text = [], True, None
    columns = (table["problem"], table["policy"], table["accepted"], greedy_kept)
    for problem, policy, accepted, kept in zip(*(column.tolist() for column in columns), strict=True):
        if (problem, policy) != text:
            fine, text = True, (problem, policy)
        intact.append(fine)
        if accepted:
            fine = bool(kept)
    return torch.tensor(intact, dtype=torch.bool)
