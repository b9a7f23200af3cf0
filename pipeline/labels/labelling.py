"""From rollouts to labels. Hard: whether the greedy rollout behind the forced draft token keeps the
meaning. Where it does not, a soft label compares sampled rollouts behind the draft token with as
many behind the target's own token, because sampling changes answers even when nothing is forced."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.lm_eval.task import INVALID, HarnessTask
from gistgate.tasks.prompts import Prompt
from gistgate.tasks.task import Document
from pipeline.decode import make_decoder
from pipeline.labels.rollouts import (
    REJOINED,
    Answered,
    Cost,
    FinishedRollout,
    PrefixCache,
    Rollout,
    RolloutList,
    RolloutRunner,
    decided,
    rejoined_at,
)
from pipeline.labels.schema import TRIAL, Policy, Table, Texts, num_rows, picked, read_references
from pipeline.labels.vllm import Engine, EngineRunner, VllmEngine, check_alone
from pipeline.methods import MethodParams
from pipeline.pair.pair import Pair, read_pair
from pipeline.params import LabelParams, Params
from pipeline.task import request_of

CHARACTERS = tuple("0123456789.,-+*/%$^_=:;)]}'\" \n\tax")
"""What may follow a text: an answer that one of them extends or replaces is not given yet."""
OTHERS = 2  # references of other problems, with other answers, that are tried behind a text as well


class Meaning:
    """Compares answers with the references of their problems, as the task does."""

    def __init__(
        self,
        task: HarnessTask,
        tokenizer: Any,
        docs: Sequence[Document],
        references: dict[int, list[int]],
        longest: float | None = None,
    ) -> None:
        """`docs` by problem; `references`: the target's own answers by problem, as token ids; an
        answer of more than `longest` times as many tokens loses the meaning."""
        self.task = task
        self.tokenizer = tokenizer
        self.docs = docs
        self.references = references
        self.longest = longest or math.inf
        self._texts: dict[int, str] = {}

    def expected(self, problem: int) -> str:
        """The reference of a problem as text."""
        if problem not in self._texts:
            self._texts[problem] = self.task.text(self.tokenizer, self.references[problem])
        return self._texts[problem]

    def same(self, problem: int, answer: list[int]) -> bool:
        """Whether the meaning is kept; an answer that cannot be compared counts as lost."""
        if len(answer) > self.longest * len(self.references[problem]):
            return False
        text = self.task.text(self.tokenizer, answer)
        return bool(self.task.same_meaning(self.docs[problem], text, self.expected(problem)))

    def is_comparable(self, problem: int) -> bool:
        """Whether the task finds something to compare with in the problem's reference."""
        return self.same(problem, self.references[problem])

    def is_given(self, rollout: Rollout, answer: list[int]) -> bool:
        """Whether the task finds an answer that nothing which was tried behind the text can
        change.
        """
        doc = self.docs[rollout.problem]
        text = self.task.text(self.tokenizer, answer)
        given = self.task.answer(doc, text)
        if given in (INVALID, [INVALID], self.task.answer(doc, "")):
            return False
        others = (
            problem
            for problem in self.references
            if self.task.answer(doc, self.expected(problem)) != given
        )
        texts = [self.expected(problem) for problem, _ in zip(others, range(OTHERS), strict=False)]
        endings = [*(gap + other for other in texts for gap in ("\n", " ")), *CHARACTERS]
        return all(self.task.answer(doc, text + ending) == given for ending in endings)


class AnswerJudge:
    """Gives the verdict on greedy rollouts, in whatever order they come and end. The first ones run
    to their end, and a way of stopping early that was wrong for one of these is given up, so that
    verdicts are those of whole rollouts."""

    def __init__(
        self,
        runner: Any,
        same: Callable[[int, list[int]], bool],
        given: Answered | None,
        audit: int,
        rejoin: int | None,
    ) -> None:
        """After an audit of `audit` rollouts, one stops where its answer is `given`, or where
        `rejoin` tokens in a row equal its reference's; either may be None. `same`: does (problem,
        answer) keep the meaning?"""
        self.runner = runner
        self.same = same
        self.given = given
        self.rejoin = rejoin
        self._left = audit
        self._concluded = False
        self._running: set[Rollout] = set()
        self._audited: list[tuple[Rollout, list[int], bool]] = []

    def take_up(self, rollout: Rollout) -> None:
        """Hear of a rollout that is to be made; the first ones are audited."""
        if self._left:
            self._left -= 1
            self._running.add(rollout)

    def audits(self, rollout: Rollout) -> bool:
        """Whether it has to run to its end."""
        return rollout in self._running

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Why a rollout may end here: its outcome is known by a way of telling that the audit has
        found right.
        """
        return decided(rollout, answer, self.rejoin, self.given) if self._has_audited() else None

    def verdict(self, rollout: Rollout, finished: FinishedRollout) -> bool:
        """Whether a rollout keeps the meaning."""
        kept = finished.finish == REJOINED or self.same(rollout.problem, finished.ids)
        if self.audits(rollout):
            self._running.remove(rollout)
            self._audited.append((rollout, finished.ids, kept))
        return kept

    def kept(self, rollouts: Sequence[Rollout], title: str | None = None) -> list[bool]:
        """Make these rollouts; whether each keeps the meaning. `title` names the progress bar."""
        for rollout in rollouts:
            self.take_up(rollout)
        whole = set(self._running)
        listed = RolloutList(
            rollouts, self.decided, lambda one, ended: (ended.ids, self.verdict(one, ended)), whole
        )
        verdicts = listed.made_by(self.runner, title=title)
        # One that ended before the audit did could not stop early where it rejoined; the verdict is
        # the same.
        rejoin = self.rejoin if self._has_audited() else None
        return [
            kept or (rollout not in whole and decided(rollout, answer, rejoin, None) is not None)
            for rollout, (answer, kept) in zip(rollouts, verdicts, strict=True)
        ]

    def _has_audited(self) -> bool:
        """Whether the audit is over; as soon as it is, ways of stopping early that it has found
        wrong are given up.
        """
        if self._left or self._running:
            return False
        if not self._concluded:
            if self.rejoin is not None and not is_trustworthy(self._audited, self.rejoin):
                self.rejoin = None
            for rollout, answer, kept in self._audited:
                given = self.given
                lengths = range(rollout.position + 2, len(answer))
                if given is None:
                    break
                first = next(
                    (length for length in lengths if given(rollout, answer[:length])), len(answer)
                )
                if first < len(answer) and self.same(rollout.problem, answer[:first]) != kept:
                    self.given = None
            self._audited = []
            self._concluded = True
        return True


def is_trustworthy(audited: Sequence[tuple[Rollout, list[int], bool]], num: int) -> bool:
    """Whether at least 99 % of the whole rollouts that ever rejoin their reference keep the
    meaning.
    """
    rejoining = [
        kept for rollout, answer, kept in audited if rejoined_at(rollout, answer, num) is not None
    ]
    return bool(rejoining) and sum(rejoining) >= 0.99 * len(rejoining)


class Tools:
    """What mining and labelling share: the rollouts of one piece of a stage, and the verdicts on
    them.
    """

    def __init__(
        self,
        decoder: Decoder,
        meaning: Meaning,
        params: Params,
        cost: Cost,
        engine: Engine | None = None,
        **request: Any,
    ) -> None:
        """The `decoder` is strict and speculates; an `engine` makes rollouts instead of it. Greedy
        ones go token by token, since drafts cost more than they save in large batches; what sampled
        ones draw depends on drafts."""
        self.decoder = decoder
        self.meaning = meaning
        self.cost = cost
        self.request = request
        self.batch_size = params.label.batch_size
        self._audit = params.label.audit
        self.prefixes = PrefixCache(decoder, self.batch_size, params.decoding.prompt_memory_mb)
        self.runner: Any
        self.sampler: Any
        if engine is None:
            self.runner, self.sampler = (
                RolloutRunner(one, self.prefixes, self.batch_size, cost, **request)
                for one in (decoder.plain(), decoder)
            )
        else:
            self.runner = self.sampler = EngineRunner(engine, meaning.tokenizer, cost, **request)

    def judge(self, rejoin: int | None) -> AnswerJudge:
        """A judge who has not audited anything yet; `rejoin` as in `label.rejoin`."""
        return AnswerJudge(
            self.runner, self.meaning.same, self.meaning.is_given, audit=self._audit, rejoin=rejoin
        )


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
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    meaning = Meaning(
        task,
        pair.tokenizer,
        [prompt["doc"] for prompt in prompts],
        read_references(),
        params.label.longest,
    )
    return Tools(decoder, meaning, params, cost, engine, **request_of(prompts, pair))


def engine_of(params: Params) -> Engine | None:
    """What makes rollouts instead of the decoder, started once for a stage; None lets the decoder
    make them.
    """
    if params.engine.rollouts == "own":
        return None
    check_alone(params)
    return VllmEngine(read_pair(params.pair).target, params.engine.arguments)


@dataclass
class Labeller:
    """Turns records of mismatches into labels."""

    tools: Tools  # makes rollouts and gives verdicts
    prompts: Sequence[Prompt]  # those that the records' column `problem` points into
    params: LabelParams
    seed: int  # of the sampled rollouts
    title: str | None = None  # begins the titles of the progress bars

    def label(self, table: Table, texts: Texts, chosen: Tensor | None = None) -> Table:
        """Records as rows of LABELS, but for texts that have lost their meaning before; `chosen
        [N]` picks some.
        """
        table = {
            **table,
            "chosen": torch.ones(num_rows(table), dtype=torch.bool) if chosen is None else chosen,
        }
        comparable = [
            one for one in set(table["problem"].tolist()) if self.tools.meaning.is_comparable(one)
        ]
        table = picked(
            table, torch.isin(table["problem"], torch.tensor(comparable, dtype=torch.int64))
        )
        table = picked(
            table,
            torch.argsort((table["problem"] * 4 + table["policy"]) * 1_000_000 + table["position"]),
        )
        table = picked(table, table["chosen"] | is_asked_of(table))
        unknown = table["greedy_kept"] < 0
        greedy_kept = self.greedy_kept(table, texts)
        labelled = is_intact(table, greedy_kept) & table["chosen"]
        self.tools.cost.labels += int((labelled & unknown).sum())
        table = picked(table, labelled)
        greedy_kept = greedy_kept[labelled]
        kept, rollouts = self._kept(table, texts, greedy_kept)
        rest = {
            name: column for name, column in table.items() if name not in ("accepted", "chosen")
        }
        return {**rest, "greedy_kept": greedy_kept, "kept": kept, "rollouts": rollouts}

    def greedy_kept(self, table: Table, texts: Texts) -> Tensor:
        """1 where the greedy rollout keeps the meaning, else 0 [N]; what mining knows already is
        taken over.
        """
        greedy_kept = table["greedy_kept"].clone()
        unknown = (greedy_kept < 0).nonzero().flatten().tolist()
        rollouts = [self._rollout(table, texts, n, "draft_id") for n in unknown]
        kept = self.tools.judge(self.params.rejoin).kept(
            rollouts, self.title and f"{self.title}, greedy"
        )
        greedy_kept[unknown] = torch.tensor(kept, dtype=torch.int8)
        return greedy_kept

    def pairs(self, table: Table, texts: Texts, score: Callable[[int, list[int]], float]) -> Table:
        """What the whole answer loses if the draft token stands in place of the target's own, and
        the target writes the rest greedily: the columns of TRIAL, and `kept` (0 where the answer
        scores less, or is more than `label.longest` times as long), all [N]. `score` judges an
        answer to a problem."""
        num = self.params.rejoin
        longest = self.tools.meaning.longest
        rows = range(num_rows(table))
        own = [self._rollout(table, texts, n, "target_id") for n in rows]
        strict = (table["policy"] == Policy.STRICT).tolist()
        # A strict text is the answer behind the target's own token already.
        fresh = [rollout for rollout, known in zip(own, strict, strict=True) if not known]
        ended = RolloutList(
            fresh, lambda _rollout, _answer: None, lambda _rollout, finished: finished.ids
        )
        answers = iter(
            ended.made_by(self.tools.runner, title=self.title and f"{self.title}, own token")
        )
        against = [
            rollout.text if known else next(answers)
            for rollout, known in zip(own, strict, strict=True)
        ]
        behind = {
            replace(self._rollout(table, texts, n, "draft_id"), reference=against[n]): table[
                "behind"
            ][n].tolist()
            for n in rows
        }

        def outcome(rollout: Rollout, finished: FinishedRollout) -> tuple[float, float, float]:
            ids = finished.ids
            other = rollout.reference
            if (
                num is not None and (at := rejoined_at(rollout, ids, num)) is not None
            ):  # it ends as the other does
                back = next(
                    n for n in range(len(other)) if other[n : n + num] == ids[at : at + num]
                )
                ids = [*ids[:at], *other[back:]]
            loss = score(rollout.problem, other) - score(rollout.problem, ids)
            same = [
                x == y for x, y in zip(behind[rollout], ids[rollout.position + 1 :], strict=False)
            ]
            carried = (*same, False).index(False)
            kept = loss <= 0 and len(ids) <= longest * len(other)
            return loss, 1 + carried - (len(ids) - len(other)), kept

        listed = RolloutList(
            [*behind], lambda rollout, answer: decided(rollout, answer, num, None), outcome
        )
        outcomes = listed.made_by(
            self.tools.runner, title=self.title and f"{self.title}, draft token"
        )
        found = torch.tensor(outcomes, dtype=torch.float32).view(-1, 3)
        return dict(zip((*TRIAL, "kept"), found.unbind(-1), strict=True))

    def _kept(self, table: Table, texts: Texts, greedy_kept: Tensor) -> tuple[Tensor, Tensor]:
        """P(kept) of every record [N], and how many rollouts stand behind it [N]. A lost greedy
        rollout counts as one of 1 + repeats; the others are sampled. What they lose against the
        same number behind the target's own token is charged to the draft token."""
        kept = greedy_kept.float()
        rollouts = torch.ones(len(greedy_kept), dtype=torch.int16)
        repeats = self.params.rollouts - 1
        unsure = (greedy_kept == 0).nonzero().flatten()
        rows = unsure.repeat_interleave(repeats).tolist()
        if not rows:
            return kept, rollouts
        meaning = self.tools.meaning
        drawn = Sampling(temperature=self.params.temperature)
        sampled = RolloutList(
            [  # both kinds share batches
                self._rollout(table, texts, n, token, seed=self.seed * 1_000_003 + place)
                for token in ("draft_id", "target_id")
                for place, n in enumerate(rows)
            ],
            lambda rollout, answer: decided(rollout, answer, None, meaning.is_given),
            lambda rollout, finished: meaning.same(rollout.problem, finished.ids),
        )
        same = sampled.made_by(self.tools.sampler, drawn, self.title and f"{self.title}, sampled")
        kept_x, kept_t = torch.tensor(same, dtype=torch.float32).view(2, -1)
        against_target = (1 + kept_x - kept_t).view(-1, repeats).mean(-1).clamp(0, 1)
        kept[unsure] = repeats * against_target / (1 + repeats)
        rollouts[unsure] = 1 + repeats
        return kept, rollouts

    def _rollout(self, table: Table, texts: Texts, n: int, token: str, seed: int = 0) -> Rollout:
        problem = int(table["problem"][n])
        text = texts[problem, int(table["policy"][n])]
        position = int(table["position"][n])
        forced = int(table[token][n])
        reference = self.tools.meaning.references[problem]
        return Rollout(
            problem, self.prompts[problem]["ids"], text.ids, position, forced, reference, seed
        )


def is_asked_of(table: Table) -> Tensor:
    """Where a record is the last accepted one in front of a chosen one on the same text [N]:
    `is_intact` asks it.
    """
    asked = torch.zeros(num_rows(table), dtype=torch.bool)
    columns = (table["problem"], table["policy"], table["accepted"], table["chosen"])
    last = None
    text = None
    for n, (problem, policy, accepted, chosen) in enumerate(
        zip(*(one.tolist() for one in columns), strict=True)
    ):
        if (problem, policy) != text:
            last = None
            text = (problem, policy)
        if chosen and last is not None:
            asked[last] = True
        last = n if accepted else last
    return asked


def is_intact(table: Table, greedy_kept: Tensor) -> Tensor:
    """Where the text in front of the record, gone on with strictly, still keeps the meaning [N].
    That continuation is the rollout of the last accepted record in front of it, since every token
    between them is the target's own."""
    intact = []
    fine = True
    text = None
    columns = (table["problem"], table["policy"], table["accepted"], greedy_kept)
    for problem, policy, accepted, kept in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if (problem, policy) != text:
            fine = True
            text = (problem, policy)
        intact.append(fine)
        if accepted:
            fine = bool(kept)
    return torch.tensor(intact, dtype=torch.bool)
