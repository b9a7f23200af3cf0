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

from gistgate.block import Sampling
from pipeline.labels.rollouts import Listed, Rollout, decided
from pipeline.labels.tables import Table, num_rows, picked
from pipeline.labels.texts import Texts
from pipeline.labels.tools import Tools
from pipeline.params import LabelParams


@dataclass
class Labeller:
    """Turns records of mismatches into labels."""

    tools: Tools
    """What makes rollouts and gives verdicts."""
    prompts: Sequence[dict[str, Any]]
    """The prompts that the records' column `problem` points into."""
    params: LabelParams
    seed: int
    """Seed of the sampled rollouts."""
    title: str | None = None
    """Begins the titles of the progress bars; None shows none."""

    def label(self, table: Table, texts: Texts, chosen: Tensor | None = None) -> Table:
        """The records as rows of the schema LABELS, without those on a text that has lost its meaning before.

        `chosen [N]` names those to label, where it is not all of them. The rollout that tells whether the text in front
        of one is intact is made as well.
        """
        table = {**table, "chosen": torch.ones(num_rows(table), dtype=torch.bool) if chosen is None else chosen}
        table = in_order(self._comparable(table))
        table = picked(table, table["chosen"] | is_asked_of(table))
        unknown = table["greedy_kept"] < 0
        greedy_kept = self.greedy_kept(table, texts)
        labelled = is_intact(table, greedy_kept) & table["chosen"]
        self.tools.cost.labels += int((labelled & unknown).sum())
        table, greedy_kept = picked(table, labelled), greedy_kept[labelled]
        kept, rollouts = self._kept(table, texts, greedy_kept)
        rest = {name: column for name, column in table.items() if name not in ("accepted", "chosen")}
        return {**rest, "greedy_kept": greedy_kept, "kept": kept, "rollouts": rollouts}

    def _comparable(self, table: Table) -> Table:
        """The records of problems in whose own answer the task finds something to compare with."""
        known = [problem for problem in set(table["problem"].tolist()) if self.tools.meaning.is_comparable(problem)]
        return picked(table, torch.isin(table["problem"], torch.tensor(known, dtype=torch.int64)))

    def greedy_kept(self, table: Table, texts: Texts) -> Tensor:
        """1 where the greedy rollout keeps the meaning, else 0 [N]; what mining knows already is taken over."""
        greedy_kept = table["greedy_kept"].clone()
        unknown = (greedy_kept < 0).nonzero().flatten().tolist()
        rollouts = [self._rollout(table, texts, n, "draft_id") for n in unknown]
        found = self.tools.judge(self.params.rejoin).kept(rollouts, self._titled("greedy"))
        greedy_kept[unknown] = torch.tensor(found, dtype=torch.int8)
        return greedy_kept

    def _kept(self, table: Table, texts: Texts, greedy_kept: Tensor) -> tuple[Tensor, Tensor]:
        """P(kept) of every record [N], and how many rollouts stand behind it [N].

        A lost greedy rollout counts as one of 1 + repeats; the others are sampled. What they lose against the same
        number behind the target's own token is charged to the draft token.
        """
        kept, rollouts = greedy_kept.float(), torch.ones(len(greedy_kept), dtype=torch.int16)
        repeats = self.params.rollouts - 1
        unsure = (greedy_kept == 0).nonzero().flatten()
        rows = unsure.repeat_interleave(repeats).tolist()
        if not rows:
            return kept, rollouts
        kept_x, kept_t = self._sampled(table, texts, rows)
        against_target = (1 + kept_x - kept_t).view(-1, repeats).mean(-1).clamp(0, 1)
        kept[unsure] = repeats * against_target / (1 + repeats)
        rollouts[unsure] = 1 + repeats
        return kept, rollouts

    def _sampled(self, table: Table, texts: Texts, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """1 where a sampled rollout behind the draft token keeps the meaning [len(rows)], and behind the target's.

        Both kinds share batches.
        """
        rollouts = [
            self._rollout(table, texts, n, token, seed=self.seed * 1_000_003 + place)
            for token in ("draft_id", "target_id")
            for place, n in enumerate(rows)
        ]
        sampling = Sampling(temperature=self.params.temperature)
        meaning = self.tools.meaning
        listed = Listed(
            rollouts,
            lambda rollout, answer: decided(rollout, answer, None, meaning.is_given),
            lambda rollout, ended: meaning.same(rollout.problem, ended.ids),
        )
        same = listed.made_by(self.tools.sampler, sampling, self._titled("sampled"))
        kept_x, kept_t = torch.tensor(same, dtype=torch.float32).view(2, -1)
        return kept_x, kept_t

    def _titled(self, kind: str) -> str | None:
        return None if self.title is None else f"{self.title}, {kind}"

    def _rollout(self, table: Table, texts: Texts, n: int, token: str, seed: int = 0) -> Rollout:
        problem = int(table["problem"][n])
        text = texts[problem, int(table["policy"][n])]
        position, forced = int(table["position"][n]), int(table[token][n])
        reference = self.tools.meaning.references[problem]
        return Rollout(problem, self.prompts[problem]["ids"], text.ids, position, forced, reference, seed)


def in_order(table: Table) -> Table:
    """Records by problem, policy and position."""
    key = (table["problem"] * 4 + table["policy"]) * 1_000_000 + table["position"]
    return picked(table, torch.argsort(key))


def is_asked_of(table: Table) -> Tensor:
    """Where the rollout of a record tells whether the text in front of a chosen one is intact [N].

    That is the last accepted record in front of it on the same text (see `is_intact`).
    """
    asked = torch.zeros(num_rows(table), dtype=torch.bool)
    columns = (table["problem"], table["policy"], table["accepted"], table["chosen"])
    last, text = None, None
    for n, (problem, policy, accepted, chosen) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
        if (problem, policy) != text:
            last, text = None, (problem, policy)
        if chosen and last is not None:
            asked[last] = True
        last = n if accepted else last
    return asked


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
