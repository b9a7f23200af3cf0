"""From outcomes of rollouts to labels: was the meaning kept, and how sure is that?

Hard outcome: the greedy rollout behind the forced draft token. Soft label: where that says harm, the share of sampled
rollouts that keep the meaning behind the draft token against the same share behind the target's own token, because
sampling changes answers even when nothing is forced.
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
from pipeline.labels.mismatches import Table, num_rows, picked
from pipeline.labels.rollouts import Roller, Rollout, rejoined_at
from pipeline.labels.texts import STRICT, Trunk
from pipeline.params import Params

Trunks = dict[tuple[int, int], Trunk]


@dataclass
class Labeller:
    """Turns records of mismatches into labelled ones."""

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

    def label(self, table: Table, trunks: Trunks) -> Table:
        """The records with `greedy_kept`, `kept` and `rollouts`; those on a text already spoilt are dropped."""
        table = in_order(self._answered(table))
        outcome = self._outcomes(table, trunks)
        informative = unspoilt(table, outcome)
        table, outcome = picked(table, informative), outcome[informative]
        harm, rollouts = self._harm(table, trunks, outcome)
        rest = {name: column for name, column in table.items() if name not in ("outcome", "accepted")}
        return {**rest, "greedy_kept": outcome, "kept": 1 - harm, "rollouts": rollouts}

    def _answered(self, table: Table) -> Table:
        """The records of problems in whose own answer the task finds something to compare with."""
        known = [problem for problem in set(table["problem"].tolist()) if self._same(problem, self.references[problem])]
        return picked(table, torch.isin(table["problem"], torch.tensor(known, dtype=torch.int64)))

    def _outcomes(self, table: Table, trunks: Trunks) -> Tensor:
        """1 where the greedy rollout keeps the meaning, else 0 [N]; known ones are taken over."""
        outcome = table["outcome"].clone()
        unknown = (outcome < 0).nonzero().flatten().tolist()
        rollouts = [self._rollout(table, trunks, n, "draft_id") for n in unknown]
        for n, kept in zip(unknown, self._kept(rollouts, table["problem"][unknown].tolist()), strict=True):
            outcome[n] = int(kept)
        return outcome

    def _kept(self, rollouts: Sequence[Rollout], problems: Sequence[int]) -> list[bool]:
        """Whether each greedy rollout keeps the meaning; the first few run to their end and audit the early stop."""
        audit, rejoin = self.params.label.audit, self.params.label.rejoin
        whole = self._roller(None).answers(rollouts[:audit])
        kept = [self._same(problem, answer) for problem, (answer, _) in zip(problems[:audit], whole, strict=True)]
        if rejoin is not None and not trustworthy(rollouts[:audit], [answer for answer, _ in whole], kept, rejoin):
            rejoin = None
        rest = self._roller(rejoin).answers(rollouts[audit:])
        return kept + [
            rejoined or self._same(problem, answer)
            for problem, (answer, rejoined) in zip(problems[audit:], rest, strict=True)
        ]

    def _harm(self, table: Table, trunks: Trunks, outcome: Tensor) -> tuple[Tensor, Tensor]:
        """P(harm) of every record [N], and how many rollouts stand behind it [N]."""
        harm, rollouts = 1 - outcome.float(), torch.ones(len(outcome), dtype=torch.int16)
        repeats = self.params.label.rollouts - 1
        unsure = (outcome == 0).nonzero().flatten() if repeats else []
        rows = [int(n) for n in unsure for _ in range(repeats)]
        if not rows:
            return harm, rollouts
        kept_x, kept_t = (self._sampled(table, trunks, rows, token) for token in ("draft_id", "target_id"))
        sampled = (kept_t - kept_x).view(-1, repeats).mean(-1).clamp(0, 1)
        harm[unsure] = (1 + repeats * sampled) / (1 + repeats)
        rollouts[unsure] = 1 + repeats
        return harm, rollouts

    def _sampled(self, table: Table, trunks: Trunks, rows: Sequence[int], token: str) -> Tensor:
        """1 where a sampled rollout behind `token` keeps the meaning [len(rows)]."""
        sampling = Sampling(temperature=self.params.label.temperature)
        rollouts = [
            self._rollout(table, trunks, n, token, seed=self.params.seed * 1_000_003 + place)
            for place, n in enumerate(rows)
        ]
        answers = self._roller(None).answers(rollouts, sampling)
        same = [self._same(int(table["problem"][n]), answer) for n, (answer, _) in zip(rows, answers, strict=True)]
        return torch.tensor(same, dtype=torch.float32)

    def _roller(self, rejoin: int | None) -> Roller:
        return Roller(self.decoder, self.params.label.batch_size, rejoin, **self.request)

    def _rollout(self, table: Table, trunks: Trunks, n: int, token: str, seed: int = 0) -> Rollout:
        problem = int(table["problem"][n])
        trunk = trunks[problem, int(table["prefix"][n])]
        position, forced = int(table["position"][n]), int(table[token][n])
        return Rollout(self.prompts[problem]["ids"], trunk.answer, position, forced, self.references[problem], seed)

    def _same(self, problem: int, answer: list[int]) -> bool:
        """Whether the meaning is kept; what cannot be compared counts as lost."""
        text, expected = (self.task.text(self.tokenizer, ids) for ids in (answer, self.references[problem]))
        return bool(self.task.same_meaning(self.prompts[problem]["doc"], text, expected))


def trustworthy(rollouts: Sequence[Rollout], answers: Sequence[list[int]], kept: Sequence[bool], num: int) -> bool:
    """True when of the whole rollouts that ever rejoin their reference at least 99 % keep the meaning."""
    said = [
        fine
        for rollout, answer, fine in zip(rollouts, answers, kept, strict=True)
        if rejoined_at(rollout, answer, num) is not None
    ]
    return bool(said) and sum(said) >= 0.99 * len(said)


def in_order(table: Table) -> Table:
    """Records by problem, policy and position."""
    key = (table["problem"] * 4 + table["prefix"]) * 1_000_000 + table["position"]
    return picked(table, torch.argsort(key))


def unspoilt(table: Table, outcome: Tensor) -> Tensor:
    """Where the text, gone on with strictly, would still keep the meaning [N].

    On a gated text the answer may be lost before the record. Between two records every token is the target's own, so
    the strict continuation of one is the rollout of the record before it: of its draft token if that was accepted,
    else of whatever came before. No rollout is needed to know it.
    """
    good, fine, text = [], True, None
    columns = (table["problem"], table["prefix"], table["accepted"], outcome)
    for problem, prefix, accepted, kept in zip(*(column.tolist() for column in columns), strict=True):
        if (problem, prefix) != text:
            fine, text = True, (problem, prefix)
        good.append(fine)
        if accepted:
            fine = bool(kept)
    return torch.tensor(good, dtype=torch.bool)


def references_of(rows: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """The target's own answers by index of their prompt."""
    return {index: row["ids"] for index, row in enumerate(rows)}


def outcome_rates(table: Table) -> dict[str, Any]:
    """How many records of each policy there are, how many harm, and how many of the harmful repeat."""
    names = {STRICT: "strict", 1: "sequential", 2: "gated"}
    rates = {}
    for prefix, name in names.items():
        rows = picked(table, table["prefix"] == prefix)
        if not num_rows(rows):
            continue
        again = rows["kept"][rows["greedy_kept"] == 0]
        rates[name] = {
            "records": num_rows(rows),
            "harmful": float((rows["greedy_kept"] == 0).float().mean()),
            "mean_soft_harm_of_harmful": float((1 - again).mean()) if len(again) else None,
        }
    return rates
