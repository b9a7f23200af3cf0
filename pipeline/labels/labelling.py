"""From rollouts to labels. Hard: whether the greedy rollout behind the forced draft token keeps the
meaning. Where it does not, a soft label compares sampled rollouts behind the draft token with as
many behind the target's own token, because sampling changes answers even when nothing is forced.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import HarnessTask
from gistgate.tasks.prompts import Prompt
from pipeline.decode import strict_decoder
from pipeline.labels.rollouts import (
    Cost,
    PrefixCache,
    Rollout,
    RolloutList,
    RolloutRunner,
    decided,
    rejoined_at,
)
from pipeline.labels.schema import (
    BLOCK,
    PLACE,
    Policy,
    Table,
    Texts,
    num_rows,
    picked,
    plain_rows,
    read_references,
    split_by_problem,
)
from pipeline.labels.verdicts import AnswerJudge, Meaning
from pipeline.labels.vllm import Engine, EngineRunner, VllmEngine
from pipeline.pair.pair import Pair, read_pair
from pipeline.params import Params
from pipeline.task import request_of


@dataclass
class Tools:
    """What mining and labelling share: the rollouts of one piece of a stage, and the verdicts on
    them.
    """

    decoder: Decoder  # strict, and it speculates
    meaning: Meaning
    params: Params
    cost: Cost
    prompts: Sequence[Prompt]  # those that the records' column `problem` points into
    request: dict[str, Any]  # what all prompts share
    engine: Engine | None = None  # makes rollouts instead of the decoder

    def __post_init__(self) -> None:
        self.batch_size = self.params.label.batch_size
        memory = self.params.decoding.prompt_memory_mb
        self.prefixes = PrefixCache(self.decoder, self.batch_size, memory)
        # Greedy rollouts go token by token, since drafts cost more than they save in large batches;
        # what sampled ones draw depends on drafts.
        self.runner = self._runner(self.decoder.plain())
        self.sampler = self._runner(self.decoder)

    def _runner(self, decoder: Decoder) -> Any:
        if self.engine is not None:
            return EngineRunner(self.engine, self.meaning.tokenizer, self.cost, **self.request)
        return RolloutRunner(decoder, self.prefixes, self.batch_size, self.cost, **self.request)

    def judge(self, rejoin: int | None) -> AnswerJudge:
        """A judge who has not audited anything yet; `rejoin` as in `label.rejoin`."""
        audit = self.params.label.audit
        return AnswerJudge(self.runner, self.meaning.same, audit, rejoin)


def tools_of(
    params: Params,
    pair: Pair,
    task: HarnessTask,
    prompts: Sequence[Prompt],
    cost: Cost,
    engine: Engine | None = None,
) -> Tools:
    """The tools of a pair and a task, with the references of its training prompts; the rest as in
    `Tools`.
    """
    decoder = strict_decoder(pair, params.decoding.block)
    docs = [prompt["doc"] for prompt in prompts]
    longest = params.label.longest or math.inf
    meaning = Meaning(task, pair.tokenizer, docs, read_references(), longest)
    return Tools(decoder, meaning, params, cost, prompts, request_of(prompts, pair), engine)


def engine_of(params: Params) -> Engine | None:
    """What makes rollouts instead of the decoder, started once for a stage; None lets the decoder
    make them.
    """
    if params.engine.rollouts == "own":
        return None
    if params.decoding.workers > 1:
        raise UserError(
            "Each worker would start a vLLM of its own. Set decoding.workers to 1 in params.yaml."
        )
    return VllmEngine(read_pair(params.pair).target, params.engine.arguments)


@dataclass
class Labeller:
    """Turns records of mismatches into labels."""

    tools: Tools  # makes rollouts and gives verdicts
    title: str = "label"  # begins the titles of the progress bars

    def label(self, table: Table, texts: Texts, chosen: Tensor) -> Table:
        """The records under the mask `chosen [N]` as rows of LABELS, without those on texts that
        have lost their meaning before.
        """
        problems = [*filter(self.tools.meaning.is_comparable, set(table["problem"].tolist()))]
        table = {**table, "chosen": chosen}
        table = picked(table, torch.isin(table["problem"], torch.tensor(problems).long()))
        text = table["problem"] * 4 + table["policy"]
        table = picked(table, torch.argsort(text * 1_000_000 + table["position"]))
        table = picked(table, table["chosen"] | is_asked_of(table))
        is_new = table["greedy_kept"] < 0
        table["greedy_kept"] = self.greedy_kept(table, texts)
        labelled = is_intact(table) & table["chosen"]
        self.tools.cost.labels += int((labelled & is_new).sum())
        table = picked(table, labelled)
        del table["accepted"], table["chosen"]
        return {**table, **self._soft(table, texts)}

    def greedy_kept(self, table: Table, texts: Texts) -> Tensor:
        """1 where the greedy rollout keeps the meaning, else 0 [N]; what mining has found already
        is taken over.
        """
        greedy_kept = table["greedy_kept"].clone()
        unknown = greedy_kept < 0
        rollouts = self._rollouts(picked(table, unknown), texts, "draft_id")
        judge = self.tools.judge(self.tools.params.label.rejoin)
        verdicts = judge.kept(rollouts, f"{self.title}, greedy")
        greedy_kept[unknown] = torch.tensor(verdicts, dtype=torch.int8)
        return greedy_kept

    def pairs(self, table: Table, texts: Texts) -> Table:
        """The records as rows of LABELS by what the whole answer loses if the draft token stands in
        place of the target's own, and the target writes the rest greedily: `trial` has the columns
        TRIAL, and `kept` is 0 where the answer scores less, or is more than `label.longest` times
        as long.
        """
        meaning = self.tools.meaning
        strict = self._rollouts(table, texts, "target_id")
        # A strict text is the answer behind the target's own token already.
        is_loose = (table["policy"] != Policy.STRICT).tolist()
        loose = list(compress(strict, is_loose))
        answers = dict(zip(loose, self._answers(loose, "own token")))
        forced = [
            replace(rollout, token=token, reference=answers.get(rollout, rollout.text))
            for rollout, token in zip(strict, table["draft_id"].tolist())
        ]
        rejoin = self.tools.params.label.rejoin
        written = self._answers(forced, "draft token", rejoin)
        trials = []
        for rollout, ids, draft in zip(forced, written, table["behind"].tolist()):
            answer = rollout.reference
            ids = ids if rejoin is None else completed(rollout, ids, rejoin)
            loss = meaning.score(rollout.problem, answer) - meaning.score(rollout.problem, ids)
            same = [x == y for x, y in zip(draft, ids[rollout.position + 1 :])]
            carried = [*same, False].index(False)
            is_kept = loss <= 0 and len(ids) <= meaning.longest * len(answer)
            trials.append((loss, 1 + carried - (len(ids) - len(answer)), is_kept))
        trials_N3 = torch.tensor(trials, dtype=torch.float32).view(-1, 3)
        kept = trials_N3[:, 2]
        return {
            **{name: table[name] for name in BLOCK},
            "greedy_kept": kept.to(torch.int8),
            "kept": kept,
            "rollouts": torch.ones(len(kept), dtype=torch.int16),
            "trial": trials_N3[:, :2],
        }

    def _answers(
        self,
        rollouts: list[Rollout],
        title: str,
        rejoin: int | None = None,
    ) -> list[list[int]]:
        """The answers of greedy rollouts, up to their ends or to where they rejoin."""
        listed = RolloutList(
            rollouts,
            lambda rollout, answer: decided(rollout, answer, rejoin),
            lambda _rollout, finished: finished.ids,
        )
        return listed.made_by(self.tools.runner, f"{self.title}, {title}")

    def _soft(self, table: Table, texts: Texts) -> Table:
        """The columns `kept` and `rollouts` of LABELS. A lost greedy rollout counts as one of 1 +
        repeats; the others are sampled. What they lose against the same number behind the target's
        own token is charged to the draft token.
        """
        label = table["greedy_kept"].float()
        rollouts = torch.ones(len(label), dtype=torch.int16)
        columns = {"kept": label, "rollouts": rollouts}
        params = self.tools.params
        repeats = params.label.rollouts - 1
        unsure = (label == 0).nonzero().flatten()
        repeated = picked(table, unsure.repeat_interleave(repeats))
        behind_draft = self._rollouts(repeated, texts, "draft_id")
        if not behind_draft:
            return columns
        meaning = self.tools.meaning
        sampled = RolloutList(
            behind_draft + self._rollouts(repeated, texts, "target_id"),  # they share batches
            lambda _rollout, _answer: None,
            lambda rollout, finished: meaning.same(rollout.problem, finished.ids),
        )
        sampling = Sampling(params.label.temperature)
        same = sampled.made_by(self.tools.sampler, f"{self.title}, sampled", sampling)
        kept_x, kept_t = torch.tensor(same, dtype=torch.float32).view(2, -1)
        against_target = (1 + kept_x - kept_t).view(-1, repeats).mean(-1).clamp(0, 1)
        label[unsure] = repeats * against_target / (1 + repeats)
        rollouts[unsure] = 1 + repeats
        return columns

    def _rollouts(self, table: Table, texts: Texts, token: str) -> list[Rollout]:
        """The rollouts behind the tokens that the column `token` names; each has its own seed."""
        rollouts = []
        rows = plain_rows(table, *PLACE, token)
        first = self.tools.params.seed * 1_000_003
        for seed, (problem, policy, position, forced) in enumerate(rows, first):
            prompt = self.tools.prompts[problem]["ids"]
            text = texts[problem, policy]
            reference = self.tools.meaning.references[problem]
            rollouts.append(Rollout(problem, prompt, text, position, forced, reference, seed))
        return rollouts


def completed(rollout: Rollout, ids: list[int], num: int) -> list[int]:
    """An answer that goes on as its reference does, where `num` tokens in a row come back to it."""
    at = rejoined_at(rollout, ids, num)
    if at is None:
        return ids
    reference = rollout.reference
    gram = ids[at : at + num]
    back = next(n for n in range(len(reference)) if reference[n : n + num] == gram)
    return ids[:at] + reference[back:]


def is_asked_of(table: Table) -> Tensor:
    """Where a record is the last accepted one in front of a chosen one on the same text [N]:
    `is_intact` asks it.
    """
    asked_of = torch.zeros(num_rows(table), dtype=torch.bool)
    last = None
    text = None
    rows = plain_rows(table, "problem", "policy", "accepted", "chosen")
    for n, (*place, accepted, chosen) in enumerate(rows):
        if place != text:
            last = None
            text = place
        if chosen and last is not None:
            asked_of[last] = True
        if accepted:
            last = n
    return asked_of


def is_intact(table: Table) -> Tensor:
    """Where the text in front of the record, gone on with strictly, still keeps the meaning [N].
    That continuation is the rollout of the last accepted record in front of it, since every token
    between them is the target's own.
    """
    intact = []
    is_fine = True
    text = None
    rows = plain_rows(table, "problem", "policy", "accepted", "greedy_kept")
    for *place, accepted, is_kept in rows:
        if place != text:
            is_fine = True
            text = place
        intact.append(is_fine)
        if accepted:
            is_fine = bool(is_kept)
    return torch.tensor(intact, dtype=torch.bool)


def chosen_rows(table: Table, params: Params) -> Tensor:
    """The records to label as a mask [N]; all of them within the budget, and those whose outcome is
    known anyway.
    """
    unknown = table["greedy_kept"] < 0
    budget = params.label.budget
    total = int(unknown.sum())
    if budget is None or budget >= total:
        return torch.ones_like(unknown)
    order = torch.randperm(len(unknown), generator=torch.Generator().manual_seed(params.seed))
    if params.label.strategy == "random" or "probability" not in table:
        return ~unknown | first_of(order, unknown, budget)
    # Problems that only measure are drawn at random whatever the pilot thinks.
    fits = split_by_problem(table["problem"], params.train, params.seed).train
    for_fitting = round(budget * int((unknown & fits).sum()) / total)
    doubt = (table["probability"] - 0.5).abs()
    by_doubt = order[torch.argsort(doubt[order], stable=True)]
    measuring = first_of(order, unknown & ~fits, budget - for_fitting)
    return ~unknown | first_of(by_doubt, unknown & fits, for_fitting) | measuring


def first_of(order: Tensor, among: Tensor, num: int) -> Tensor:
    """The first `num` rows in this order that lie in the mask `among`, as a mask [N]."""
    mask = torch.zeros_like(among)
    mask[order[among[order]][:num]] = True
    return mask
