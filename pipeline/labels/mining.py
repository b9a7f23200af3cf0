"""Sequential mining (arXiv 2504.20039): walk along the target's answer, force every draft token,
keep the harmless ones. Many problems walk at once, and each looks ahead: the rollouts behind its
next tokens, assumed harmless, are made side by side, and what lies behind the first harmful one is
given up. The labels are those of the plain walk."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.reader import RowCache
from gistgate.core.request import Generation, PrefixState, Row, Slots
from gistgate.core.rule import Exact, allowed
from gistgate.gate import Gate
from pipeline.decode import make_decoder
from pipeline.labels.labelling import AnswerJudge, Tools
from pipeline.labels.rollouts import FinishedRollout, Rollout
from pipeline.labels.schema import (
    AnswerText,
    Policy,
    Table,
    concatenated,
    num_rows,
    picked,
    split_by_problem,
)
from pipeline.methods import MethodParams
from pipeline.pair.pair import Pair
from pipeline.params import Params
from pipeline.run import bar
from pipeline.task import request_of

FAR_ENOUGH = (
    "far enough"  # finish of a lookahead that has forced as many tokens as it was asked for
)
GIVEN_UP = "given up"  # finish of a rollout whose walk has taken another way
# rollouts that walks keep under way or waiting for every slot, so that few lookaheads are needed
WAITING = 2


class MismatchRecorder:
    """An observer that keeps one record for each mismatch that a text really came to: the refused
    token of a block and the loosely accepted ones before it. What was drafted behind a refusal
    belongs to no text."""

    layers: Collection[str] = ()  # hidden states that `more` reads
    wants_q = False  # whether it reads draft probabilities

    def __init__(self, block: int, more: Callable[[Block], Table] = lambda _block: {}) -> None:
        """`block` is K of the decoder; `more` gives further columns for all places of a block, each
        [B, K, ...].
        """
        self.block = block
        self.more = more
        self._tables: list[Table] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        device = block.draft_ids.device
        reached_BK = (
            torch.arange(block.draft_ids.shape[1], device=device) <= acceptance.length[:, None]
        )
        at_B, at_K = (reached_BK & ~block.match & allowed(block)).nonzero(as_tuple=True)
        if not at_B.numel():
            return
        index = torch.tensor([row.index for row in rows], device=device)
        length = torch.tensor([len(row.answer) for row in rows], device=device)
        ids_BK = F.pad(torch.where(block.valid, block.draft_ids, -1), (0, self.block - 1), value=-1)
        places = at_K[:, None] + 1 + torch.arange(self.block - 1, device=device)
        table = {
            "row": index[at_B],
            "position": length[at_B] + at_K,
            "draft_id": block.draft_ids[at_B, at_K],
            "target_id": block.top_ids[at_B, at_K],
            "behind": ids_BK[at_B[:, None], places].to(torch.int32),
            "accepted": (at_K < acceptance.length[at_B]).to(torch.int8),
            **{name: values[at_B, at_K] for name, values in self.more(block).items()},
        }
        self._tables.append({name: column.cpu() for name, column in table.items()})

    def take(self, answers: Sequence[Generation]) -> list[Table]:
        """The records since the last call for each answer, by position, without those that its stop
        cut off.
        """
        tables = self._tables
        self._tables = []
        if not tables:
            return [{} for _ in answers]
        table = concatenated(tables)
        table = picked(table, torch.argsort(table["row"] * 1_000_000 + table["position"]))
        lengths = torch.tensor([len(answer.ids) for answer in answers])
        table = picked(table, table["position"] < lengths[table["row"]])
        return [picked(table, table["row"] == row) for row in range(len(answers))]


def stamped(table: Table, problem: int, policy: Policy, greedy_kept: int = -1) -> Table:
    """The records of one text with its problem and policy, and what is known of their greedy
    rollouts.
    """
    num = num_rows(table)
    return {
        **{name: column for name, column in table.items() if name != "row"},
        "problem": torch.full((num,), problem, dtype=torch.int64),
        "policy": torch.full((num,), policy, dtype=torch.int8),
        "greedy_kept": torch.full((num,), greedy_kept, dtype=torch.int8),
    }


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
        forced_B = allowed(block).gather(1, at_B1).squeeze(1) & (length_B < num)
        return torch.where(forced_B, block.draft_ids.gather(1, at_B1).squeeze(1), own_B)


class Lookahead(MismatchRecorder):
    """Records the mismatches that walks force ahead of their outcomes, and ends each text once it
    has met enough.
    """

    def __init__(self, block: int, enough: Sequence[int]) -> None:
        """`block`: K of the decoder; `enough`: for each text the number of mismatches that it has
        to meet.
        """
        super().__init__(block)
        self.missing = [*enough]

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        known = len(self._tables)
        super().__call__(block, acceptance, rows)
        for table in self._tables[known:]:
            for row in table[
                "row"
            ].tolist():  # a round meets one mismatch of a row at most: there it ends
                self.missing[row] -= 1


@dataclass(eq=False)
class Candidate:
    """A draft token that a lookahead has forced, and that no outcome has judged yet."""

    record: Table  # one row
    rollout: Rollout | None = None  # what shows whether it does harm, once that was begun
    kept: bool | None = None  # whether it keeps the meaning, once that is known


@dataclass
class Walk:
    """One problem on its way: the text as far as it is sure, and the candidates in front of it."""

    problem: int
    prompt: list[int]
    reference: list[
        int
    ]  # the target's own answer; every answer behind a forced token is compared with it
    memory: PrefixState  # what both models know of the prompt and of what the last lookahead wrote
    keep: int  # tokens of the memory's text, prompt included, that the next lookahead goes on from
    added: list[int] = field(
        default_factory=list
    )  # put behind them: the target's own token where the draft's did harm
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

    def begin(self, candidate: Candidate) -> Rollout:
        """The rollout behind a candidate."""
        position = int(candidate.record["position"])
        token = int(candidate.record["draft_id"])
        candidate.rollout = Rollout(
            self.problem, self.prompt, self.answer, position, token, self.reference
        )
        return candidate.rollout

    def settle(self) -> None:
        """Go over the candidates whose outcome is known; behind one that does harm the walk takes
        another way.
        """
        while self.candidates and self.candidates[0].kept is not None:
            candidate = self.candidates.pop(0)
            record = candidate.record
            kept = bool(candidate.kept)
            self.walked.append(
                stamped(record, self.problem, Policy.SEQUENTIAL, greedy_kept=int(kept))
            )
            if not kept:
                self.keep = len(self.prompt) + int(record["position"])
                self.added = [int(record["target_id"])]
                self.at_end = False
                self.candidates.clear()


class SequentialLabelling:
    """Walks many problems at once; it is the source of the rollouts that its walks wait for."""

    def __init__(self, tools: Tools, judge: AnswerJudge) -> None:
        """`tools.decoder` decodes strictly with the pair; `judge` rolls out."""
        self.tools = tools
        self.judge = judge
        self.batch_size = tools.batch_size
        self._walks: list[Walk] = []
        self._under_way: dict[Rollout, tuple[Walk, Candidate]] = {}
        self._judged = 3  # as if one of three had done harm, until outcomes are known
        self._lost = 1

    def walk(
        self, problems: Sequence[int], prompts: Sequence[list[int]], references: Sequence[list[int]]
    ) -> tuple[list[Table], list[AnswerText]]:
        """Records of every mismatch on the walks, with their outcomes, and the texts that these lie
        on.
        """
        self._walks = [
            Walk(
                problem,
                prompt,
                reference,
                PrefixState(list(prompt), RowCache([]), RowCache([])),
                len(prompt),
            )
            for problem, prompt, reference in zip(problems, prompts, references, strict=True)
        ]
        with bar(title="walks", unit="walk", total=len(problems)) as self._bar:
            self.judge.runner.serve(self)
            self._show()
        texts = [AnswerText(walk.problem, Policy.SEQUENTIAL, walk.answer) for walk in self._walks]
        return [table for walk in self._walks for table in walk.walked], texts

    def take(self, num: int) -> list[Rollout]:
        """The next rollouts; where no candidate waits for one, walks look ahead first."""
        if not (waiting := self._waiting()):
            self._look_ahead()
            waiting = self._waiting()
        begun = {walk.begin(candidate): (walk, candidate) for walk, candidate in waiting[:num]}
        for rollout in begun:
            self.judge.take_up(rollout)
        self._under_way |= begun
        return list(begun)

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Whether its outcome is known, or not wanted any more; the judge audits it all the
        same.
        """
        walk, candidate = self._under_way[rollout]
        if candidate not in walk.candidates and not self.judge.audits(rollout):
            return GIVEN_UP
        return self.judge.decided(rollout, answer)

    def end(self, rollout: Rollout, finished: FinishedRollout) -> None:
        """Its walk goes on, as far as it can."""
        walk, candidate = self._under_way.pop(rollout)
        if finished.finish == GIVEN_UP:
            return
        candidate.kept = self.judge.verdict(rollout, finished)
        self._judged = self._judged + 1
        self._lost = self._lost + (not candidate.kept)
        walk.settle()
        self._show()

    def _show(self) -> None:
        """Move the bar to the walks that are over, with the number of labels: a shard may take an
        hour.
        """
        self._bar.set_postfix_str(
            f"{sum(len(walk.walked) for walk in self._walks)} labels", refresh=False
        )
        self._bar.update(sum(walk.over for walk in self._walks) - self._bar.n)

    def _waiting(self) -> list[tuple[Walk, Candidate]]:
        """Candidates without a rollout, those first that most likely lie on their walk."""
        placed = [
            (place, walk, one) for walk in self._walks for place, one in enumerate(walk.candidates)
        ]
        placed.sort(key=lambda one: one[0])
        return [(walk, candidate) for _, walk, candidate in placed if candidate.rollout is None]

    @property
    def _depth(self) -> int:
        """Candidates that a walk may have: enough to fill the batch, each more likely than not to
        lie on the walk.
        """
        walks = sum(not walk.over for walk in self._walks)
        harm = min(self._lost / self._judged, 0.99)
        return min(-(-WAITING * self.batch_size // walks), 1 + int(log(0.5) / log(1 - harm)))

    def _look_ahead(self) -> None:
        """Look ahead on every walk that has fewer candidates than it may have."""
        if not (
            short := [
                walk
                for walk in self._walks
                if not walk.at_end and len(walk.candidates) < self._depth
            ]
        ):
            return
        decoder = self.tools.decoder
        slots = Slots(self.batch_size)
        lookahead = Lookahead(decoder.block, [self._depth - len(walk.candidates) for walk in short])
        done = decoder.having(rule=Forced(), observer=lookahead).resume(
            [walk.memory for walk in short],
            [(walk.keep, walk.added) for walk in short],
            [len(walk.prompt) for walk in short],
            is_decided=lambda row: None if lookahead.missing[row.index] > 0 else FAR_ENOUGH,
            slots=slots,
            **self.tools.request,
        )
        self.tools.cost.use(slots.usage)
        met = lookahead.take([answer for answer, _ in done])
        for walk, table, (answer, memory) in zip(short, met, done, strict=True):
            assert memory is not None
            self.tools.prefixes.put(memory)
            walk.memory = memory
            walk.keep = len(memory.text)
            walk.added = []
            walk.at_end = answer.finish != FAR_ENOUGH
            walk.candidates += [
                Candidate(picked(table, torch.tensor([n]))) for n in range(num_rows(table))
            ]


def collect_strict(
    params: Params, tools: Tools, prompts: Sequence[dict[str, Any]], problems: Sequence[int]
) -> tuple[Table, list[AnswerText]]:
    """Mismatches of some problems and their texts: the target's own and, if that is the recipe,
    those of the walk.
    """
    walks = params.collect.recipe == "walk"
    sound = [problem for problem in problems if tools.meaning.is_comparable(problem)]
    num = round(params.collect.strict_share * len(problems)) if walks else len(sound)
    recorder = MismatchRecorder(tools.decoder.block)
    decoder = tools.decoder.having(observer=recorder)
    slots = Slots(tools.batch_size)
    tables, texts = written(
        decoder, recorder, prompts, sound[:num], Policy.STRICT, slots, **tools.request
    )
    tools.cost.use(slots.usage)
    if walks:
        ids = [prompts[n]["ids"] for n in sound]
        own = [tools.meaning.references[n] for n in sound]
        labelling = SequentialLabelling(tools, tools.judge(params.collect.rejoin))
        walked, walked_texts = labelling.walk(sound, ids, own)
        tools.cost.labels += sum(num_rows(table) for table in walked)
        tables = tables + walked
        texts = texts + walked_texts
    return concatenated(tables), texts


def collect_gated(
    params: Params,
    pair: Pair,
    gate: Gate,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
) -> tuple[Table, list[AnswerText]]:
    """The same on the pilot gate's own texts; a record names the pilot's P(kept) as
    `probability`.
    """
    settings = {"risk": params.collect.pilot_risk}
    block = params.decoding.block
    recorder = MismatchRecorder(block, more=lambda seen: {"probability": seen.gate_probs})  # type: ignore[dict-item]
    decoder = make_decoder(
        pair, MethodParams("autojudge"), settings, block, gate, observer=recorder
    )
    slots = Slots(params.decoding.batch_size)
    request = request_of(prompts, pair)
    tables, texts = written(decoder, recorder, prompts, problems, Policy.GATED, slots, **request)
    return concatenated(tables), texts


def written(
    decoder: Decoder,
    recorder: MismatchRecorder,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
    policy: Policy,
    slots: Slots,
    **request: Any,
) -> tuple[list[Table], list[AnswerText]]:
    """Decode these problems while `recorder` observes the blocks: the records of every text, and
    these very texts. In bfloat16 another decoding may differ in near ties."""
    with bar(title=f"{policy.name.lower()} texts", unit="text", total=len(problems)) as shown:
        slots = replace(slots, progress=shown.update)
        answers = decoder.generate(
            [prompts[problem]["ids"] for problem in problems], slots=slots, **request
        )
    records = zip(problems, recorder.take(answers), strict=True)
    tables = [stamped(table, problem, policy) for problem, table in records if table]
    return tables, [
        AnswerText(problem, policy, answer.ids)
        for problem, answer in zip(problems, answers, strict=True)
    ]


def chosen_rows(table: Table, params: Params) -> Tensor:
    """The records to label as a mask [N]; all of them within the budget, and those whose outcome is
    known anyway.
    """
    unknown = table["greedy_kept"] < 0
    budget = params.label.budget
    if budget is None or budget >= int(unknown.sum()):
        return torch.ones(num_rows(table), dtype=torch.bool)
    order = torch.randperm(num_rows(table), generator=torch.Generator().manual_seed(params.seed))
    if params.label.strategy == "random" or "probability" not in table:
        return ~unknown | first_of(order, unknown, budget)
    # Problems that only measure are drawn at random whatever the pilot thinks.
    fits = split_by_problem(table["problem"], params.train, params.seed).train
    for_fitting = round(budget * int((unknown & fits).sum()) / int(unknown.sum()))
    doubt = (table["probability"] - 0.5).abs()
    by_doubt = order[torch.argsort(doubt[order], stable=True)]
    measuring = first_of(order, unknown & ~fits, budget - for_fitting)
    return ~unknown | first_of(by_doubt, unknown & fits, for_fitting) | measuring


def first_of(order: Tensor, among: Tensor, num: int) -> Tensor:
    """The first `num` rows in this order that lie in the mask `among`, as a mask [N]."""
    mask = torch.zeros(len(among), dtype=torch.bool)
    mask[order[among[order]][:num]] = True
    return mask
