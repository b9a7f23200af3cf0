"""Sequential mining (arXiv 2504.20039): walk along the target's answer, force every draft token,
keep the harmless ones. Many problems walk at once, and each looks ahead: the rollouts behind its
next tokens, assumed harmless, are made side by side, and what lies behind the first harmful one is
given up. The labels are those of the plain walk.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Acceptance, Block
from gistgate.core.cache import RowCache
from gistgate.core.decoder import Decoder
from gistgate.core.parts import Observer
from gistgate.core.progress import bar
from gistgate.core.request import Generation, PrefixState, Row, Slots
from gistgate.core.rule import Exact, allowed
from gistgate.coverage.choose import Choice
from gistgate.gate import Gate
from gistgate.tasks.prompts import Prompt
from pipeline.decode import make_decoder
from pipeline.labels.labelling import Tools
from pipeline.labels.rollouts import GREEDY, FinishedRollout, Rollout
from pipeline.labels.schema import Policy, Table, Texts, concatenated, num_rows, picked
from pipeline.labels.verdicts import AnswerJudge
from pipeline.methods import MODEL
from pipeline.pair.pair import Pair
from pipeline.params import Params
from pipeline.task import request_of

FAR_ENOUGH = "far enough"
"""Finish of a lookahead that has forced as many tokens as it was asked for."""
GIVEN_UP = "given up"
"""Finish of a rollout whose walk has taken another way."""
WAITING = 2
"""Rollouts that walks keep under way or waiting for every slot: few lookaheads are needed then."""
Mined = tuple[list[Table], Texts]
"""Records of mismatches, and the texts that these lie on."""


class MismatchRecorder(Observer):
    """An observer that keeps one record for each mismatch that a text really came to: the refused
    token of a block and the loosely accepted ones before it. What was drafted behind a refusal
    belongs to no text.
    """

    def __init__(self, block: int) -> None:
        """`block` is K of the decoder."""
        self.block = block
        self.met: Counter[int] = Counter()  # mismatches by the index of the text
        self._tables: list[Table] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        device = block.draft_ids.device
        places_K = torch.arange(block.draft_ids.shape[1], device=device)
        reached_BK = places_K <= acceptance.length[:, None]
        at_B, at_K = (reached_BK & ~block.match & allowed(block)).nonzero(as_tuple=True)
        if not at_B.numel():
            return
        index = torch.tensor([row.index for row in rows], device=device)[at_B]
        length = torch.tensor([len(row.answer) for row in rows], device=device)[at_B]
        ids_BK = F.pad(torch.where(block.valid, block.draft_ids, -1), (0, self.block - 1), value=-1)
        behind = at_K[:, None] + 1 + torch.arange(self.block - 1, device=device)
        table = {
            "row": index,
            "position": length + at_K,
            "draft_id": block.draft_ids[at_B, at_K],
            "target_id": block.top_ids[at_B, at_K],
            "behind": ids_BK[at_B[:, None], behind].to(torch.int32),
            "accepted": (at_K < acceptance.length[at_B]).to(torch.int8),
            **picked(self.columns(block), (at_B, at_K)),
        }
        self._tables.append({name: column.cpu() for name, column in table.items()})
        self.met.update(index.tolist())

    def columns(self, block: Block) -> Table:
        """Further columns for all places of a block [B, K]: P(kept) where a gate is asked."""
        return {} if block.gate_probs is None else {"probability": block.gate_probs}

    def take(self, answers: Sequence[Generation]) -> list[Table]:
        """The records since the last call for each answer, by position, without those that its stop
        cut off.
        """
        table = concatenated(self._tables)
        self._tables = []
        if not table:
            return [{} for _ in answers]
        table = picked(table, torch.argsort(table["row"] * 1_000_000 + table["position"]))
        lengths = torch.tensor([len(answer.ids) for answer in answers])
        table = picked(table, table["position"] < lengths[table["row"]])
        return [picked(table, table["row"] == row) for row in range(len(answers))]


def stamped(table: Table, problem: int, policy: Policy, greedy_kept: int = -1) -> Table:
    """The records of one text with its problem and policy, and the outcome of their greedy
    rollouts.
    """
    table = {name: column for name, column in table.items() if name != "row"}
    num = num_rows(table)
    table["problem"] = torch.full((num,), problem)
    table["policy"] = torch.full((num,), policy, dtype=torch.int8)
    table["greedy_kept"] = torch.full((num,), greedy_kept, dtype=torch.int8)
    return table


@dataclass(frozen=True)
class Forced(Exact):
    """Strict up to the first mismatch of a block, where the draft token stands in for the target's
    own.
    """

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        own_B = super().own(block, length_B)
        num = block.draft_ids.shape[1]
        if not num:
            return own_B
        at_B1 = length_B.clamp_max(num - 1)[:, None]
        forced_B = allowed(block).gather(1, at_B1)[:, 0] & (length_B < num)
        return torch.where(forced_B, block.draft_ids.gather(1, at_B1)[:, 0], own_B)


@dataclass(eq=False)
class Candidate:
    """A draft token that a lookahead has forced, and that no outcome has judged yet."""

    walk: "Walk"
    record: Table  # one row
    rollout: Rollout | None = None  # what shows whether it does harm, once that was begun
    kept: bool | None = None  # whether it keeps the meaning, once that is clear

    def begin(self) -> Rollout:
        """The rollout behind the token."""
        walk = self.walk
        position, token = (int(self.record[name]) for name in ("position", "draft_id"))
        self.rollout = Rollout(
            walk.problem,
            walk.prompt,
            walk.answer,
            position,
            token,
            walk.reference,
        )
        return self.rollout


@dataclass
class Walk:
    """One problem on its way: the text as far as it is sure, and the candidates in front of it."""

    problem: int
    prompt: list[int]
    reference: list[int]  # the target's own answer, with which every other answer is compared
    memory: PrefixState  # what both models remember of the text as far as it was looked ahead
    keep: int  # tokens of the memory's text, prompt included, that the next lookahead goes on from
    added: list[int] = field(default_factory=list)
    """Tokens behind the kept ones: the target's own one where the draft's did harm."""
    candidates: list[Candidate] = field(default_factory=list)  # in the order of their places
    walked: list[Table] = field(default_factory=list)  # records with their outcomes
    at_end: bool = False  # whether the lookahead's text is complete

    @property
    def answer(self) -> list[int]:
        """The answer as far as it was looked ahead; whole when the walk is over."""
        return self.memory.text[len(self.prompt) :]

    @property
    def over(self) -> bool:
        """Whether every mismatch of a complete text is judged."""
        return self.at_end and not self.candidates

    def settle(self) -> None:
        """Go over the candidates whose outcome is clear; behind one that does harm the walk takes
        another way.
        """
        while self.candidates and self.candidates[0].kept is not None:
            candidate = self.candidates.pop(0)
            record = candidate.record
            verdict = int(candidate.kept or 0)
            self.walked.append(stamped(record, self.problem, Policy.SEQUENTIAL, verdict))
            if not verdict:
                self.keep = len(self.prompt) + int(record["position"])
                self.added = [int(record["target_id"])]
                self.at_end = False
                self.candidates.clear()

    def looked_ahead(self, answer: Generation, memory: PrefixState, table: Table) -> None:
        """Take in how far the text goes on, and the mismatches that it met there."""
        self.memory = memory
        self.keep = len(memory.text)
        self.added = []
        self.at_end = answer.finish != FAR_ENOUGH
        self.candidates += [
            Candidate(self, picked(table, torch.tensor([n]))) for n in range(num_rows(table))
        ]


@dataclass
class SequentialLabelling:
    """Walks many problems at once; it is the source of the rollouts that its walks wait for."""

    tools: Tools  # its decoder decodes strictly with the pair
    judge: AnswerJudge
    _walks: list[Walk] = field(default_factory=list)
    _under_way: dict[Rollout, Candidate] = field(default_factory=dict)
    _judged: int = 3  # as if one of three had done harm, until outcomes are clear
    _lost: int = 1

    def walk(self, problems: Sequence[int]) -> Mined:
        """Records of every mismatch on the walks, with their outcomes, and the texts."""
        for problem in problems:
            prompt = self.tools.prompts[problem]["ids"]
            reference = self.tools.meaning.references[problem]
            memory = PrefixState(list(prompt), RowCache([]), RowCache([]))
            self._walks.append(Walk(problem, prompt, reference, memory, len(prompt)))
        with bar(title="walks", unit="walk", total=len(problems)) as self._bar:
            self.judge.runner.serve(self, GREEDY)
            self._show()
        texts: Texts = {(walk.problem, Policy.SEQUENTIAL): walk.answer for walk in self._walks}
        return [table for walk in self._walks for table in walk.walked], texts

    def take(self, num: int) -> list[Rollout]:
        """The next rollouts; where no candidate waits for one, walks look ahead first."""
        waiting = self._waiting()
        if not waiting:
            self._look_ahead()
            waiting = self._waiting()
        begun = {candidate.begin(): candidate for candidate in waiting[:num]}
        for rollout in begun:
            self.judge.take_up(rollout)
        self._under_way |= begun
        return list(begun)

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Whether its outcome is clear, or not needed any more; the judge audits it all the
        same.
        """
        candidate = self._under_way[rollout]
        if candidate not in candidate.walk.candidates and not self.judge.audits(rollout):
            return GIVEN_UP
        return self.judge.decided(rollout, answer)

    def end(self, rollout: Rollout, finished: FinishedRollout) -> None:
        """Let the walk of a rollout go on, as far as it can."""
        candidate = self._under_way.pop(rollout)
        if finished.finish == GIVEN_UP:
            return
        candidate.kept = self.judge.verdict(rollout, finished)
        self._judged += 1
        self._lost += not candidate.kept
        candidate.walk.settle()
        self._show()

    def _show(self) -> None:
        """Move the bar to the walks that are over, with the number of labels: a shard may take an
        hour.
        """
        labels = sum(len(walk.walked) for walk in self._walks)
        self._bar.set_postfix_str(f"{labels} labels", refresh=False)
        self._bar.update(sum(walk.over for walk in self._walks) - self._bar.n)

    def _waiting(self) -> list[Candidate]:
        """Candidates without a rollout, those first that most likely lie on their walk."""
        by_place = chain(*zip_longest(*(walk.candidates for walk in self._walks)))
        return [candidate for candidate in by_place if candidate and candidate.rollout is None]

    @property
    def _depth(self) -> int:
        """Candidates that a walk may have: enough to fill the batch, each more likely than not to
        lie on the walk.
        """
        walks = sum(not walk.over for walk in self._walks)
        harm = min(self._lost / self._judged, 0.99)
        for_slots = -(-WAITING * self.tools.batch_size // walks)
        return min(for_slots, 1 + int(log(0.5) / log(1 - harm)))

    def _look_ahead(self) -> None:
        """Look ahead on every walk that has fewer candidates than it may have."""
        walks = [
            walk for walk in self._walks if not walk.at_end and len(walk.candidates) < self._depth
        ]
        if not walks:
            return
        decoder = self.tools.decoder
        slots = Slots(self.tools.batch_size)
        recorder = MismatchRecorder(decoder.block)
        enough = [self._depth - len(walk.candidates) for walk in walks]

        def is_decided(row: Row) -> str | None:
            return FAR_ENOUGH if recorder.met[row.index] >= enough[row.index] else None

        done = (
            decoder.having(rule=Forced())
            .watched_by(recorder)
            .resume(
                [walk.memory for walk in walks],
                [(walk.keep, walk.added) for walk in walks],
                [len(walk.prompt) for walk in walks],
                is_decided=is_decided,
                slots=slots,
                **self.tools.request,
            )
        )
        self.tools.cost.use(slots.usage)
        tables = recorder.take([answer for answer, _ in done])
        for walk, table, (answer, memory) in zip(walks, tables, done):
            assert memory is not None
            self.tools.prefixes.put(memory)
            walk.looked_ahead(answer, memory, table)


def collect_strict(tools: Tools, problems: Sequence[int]) -> tuple[Table, Texts]:
    """Mismatches of some problems and their texts: the target's own and, if that is the recipe,
    those of the walk.
    """
    settings = tools.params.collect
    walks = settings.recipe == "walk"
    sound = [*filter(tools.meaning.is_comparable, problems)]
    num = round(settings.strict_share * len(problems)) if walks else len(sound)
    slots = Slots(tools.batch_size)
    strict = (tools.prompts, sound[:num], Policy.STRICT, slots)
    tables, texts = written(tools.decoder, *strict, **tools.request)
    tools.cost.use(slots.usage)
    if walks:
        labelling = SequentialLabelling(tools, tools.judge(settings.rejoin))
        walked, walked_texts = labelling.walk(sound)
        tools.cost.labels += sum(map(num_rows, walked))
        tables += walked
        texts |= walked_texts
    return concatenated(tables), texts


def collect_gated(
    params: Params,
    pair: Pair,
    gate: Gate,
    prompts: Sequence[Prompt],
    problems: Sequence[int],
) -> tuple[Table, Texts]:
    """The same on the pilot gate's own texts; a record names the pilot's P(kept) as
    `probability`.
    """
    settings = {"risk": params.collect.pilot_risk}
    choice = Choice("autojudge", settings, params.decoding.block, MODEL)
    decoder = make_decoder(pair, choice, gate)
    slots = Slots(params.label.batch_size)
    request = request_of(prompts, pair)
    tables, texts = written(decoder, prompts, problems, Policy.GATED, slots, **request)
    return concatenated(tables), texts


def written(
    decoder: Decoder,
    prompts: Sequence[Prompt],
    problems: Sequence[int],
    policy: Policy,
    slots: Slots,
    **request: Any,
) -> Mined:
    """Decode these problems: the records of every text, and these very texts. In bfloat16 another
    decoding may differ in near ties.
    """
    recorder = MismatchRecorder(decoder.block)
    ids = [prompts[problem]["ids"] for problem in problems]
    with bar(title=f"{policy.name.lower()} texts", unit="text", total=len(ids)) as progress:
        slots = replace(slots, progress=progress.update)
        answers = decoder.watched_by(recorder).generate(ids, slots=slots, **request)
    tables = [
        stamped(table, problem, policy)
        for problem, table in zip(problems, recorder.take(answers))
        if table
    ]
    return tables, {(problem, policy): answer.ids for problem, answer in zip(problems, answers)}
