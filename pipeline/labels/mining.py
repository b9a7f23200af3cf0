"""Sequential mining: walk along the target's answer, force every draft token, keep those that do no harm.

The walk of arXiv 2504.20039 takes one mismatch after the other, because each outcome decides which text comes next.
Here many problems walk at once, and a walk is speculated on: a scout assumes that its next tokens do no harm, and the
rollouts behind all of them are made side by side. Up to the first one that does harm the scout went the right way; what
lies behind is given up, and the walk goes on from there. The labels are those of the plain walk. Nothing is read twice:
rollouts and scouts go on from the scout's own keys and values. No walk waits for another: scouts go on as soon as the
batch of rollouts has room (`Miner.take`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Acceptance, Block
from gistgate.core.decoder import Decoder
from gistgate.core.gate import Gate
from gistgate.core.reader import RowCache
from gistgate.core.request import Generation, PrefixState, Row, Slots
from gistgate.core.rule import Exact, allowed
from pipeline.decode import make_decoder, request_of
from pipeline.heads.data import split_by_problem
from pipeline.labels.labelling import Judge, Tools
from pipeline.labels.rollouts import Ended, Rollout
from pipeline.labels.schema import AnswerText, Policy, Table, concatenated, num_rows, picked
from pipeline.pair.pair import Pair
from pipeline.params import MethodParams, Params
from pipeline.paths import PILOT
from pipeline.run import bar

# ---- Records of the mismatches that a text really came to, taken from the very blocks that are decoded.


class MismatchRecorder:
    """An observer that keeps one record for each mismatch of a text.

    Those are the refused token of a block and the loosely accepted tokens before it. Tokens behind a refusal were
    drafted for a text that nobody wrote.
    """

    def __init__(
        self,
        block: int,
        more: Callable[[Block], Table] | None = None,
        layers: Collection[str] = (),
        wants_q: bool = False,
    ) -> None:
        """Begin without records.

        Args:
            block: K of the decoder.
            more: gives further columns for all places of a block, each [B, K, ...].
            layers: hidden states that `more` reads.
            wants_q: whether `more` reads draft probabilities.
        """
        self.block, self.more, self.layers, self.wants_q = block, more, layers, wants_q
        self._tables: list[Table] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        device = block.draft_ids.device
        reached_BK = torch.arange(block.draft_ids.shape[1], device=device) <= acceptance.length[:, None]
        at_B, at_K = (reached_BK & ~block.match & allowed(block)).nonzero(as_tuple=True)
        if not at_B.numel():
            return
        index = torch.tensor([row.index for row in rows], device=device)
        length = torch.tensor([len(row.answer) for row in rows], device=device)
        further = {} if self.more is None else self.more(block)
        table = {
            "row": index[at_B],
            "position": length[at_B] + at_K,
            "draft_id": block.draft_ids[at_B, at_K],
            "target_id": block.top_ids[at_B, at_K],
            "behind": behind(block, at_B, at_K, self.block - 1),
            "accepted": (at_K < acceptance.length[at_B]).to(torch.int8),
            **{name: values[at_B, at_K] for name, values in further.items()},
        }
        self._tables.append({name: column.cpu() for name, column in table.items()})

    def take(self, answers: Sequence[Generation]) -> list[Table]:
        """The records since the last call for each answer, by position, without those that its stop cut off."""
        tables, self._tables = self._tables, []
        if not tables:
            return [{} for _ in answers]
        table = concatenated(tables)
        table = picked(table, torch.argsort(table["row"] * 1_000_000 + table["position"]))
        lengths = torch.tensor([len(answer.ids) for answer in answers])
        table = picked(table, table["position"] < lengths[table["row"]])
        return [picked(table, table["row"] == row) for row in range(len(answers))]


def behind(block: Block, at_B: Tensor, at_K: Tensor, num: int) -> Tensor:
    """The `num` draft tokens behind the given places [N, num], -1 behind the draft's end."""
    ids_BK = torch.where(block.valid, block.draft_ids, -1)
    padded = F.pad(ids_BK, (0, num), value=-1)
    places = at_K[:, None] + 1 + torch.arange(num, device=at_K.device)
    return padded[at_B[:, None], places].to(torch.int32)


def stamped(table: Table, problem: int, policy: Policy, greedy_kept: int = -1) -> Table:
    """The records of one text with its problem and policy, and what is known of their greedy rollouts."""
    num = num_rows(table)
    rest = {name: column for name, column in table.items() if name != "row"}
    return {
        **rest,
        "problem": torch.full((num,), problem, dtype=torch.int64),
        "policy": torch.full((num,), policy, dtype=torch.int8),
        "greedy_kept": torch.full((num,), greedy_kept, dtype=torch.int8),
    }


# ---- A scout runs ahead of a walk: it forces every draft token that it meets and records where it did so.


FAR_ENOUGH = "far enough"
"""Finish of a scout that has forced as many tokens as it was asked for."""


@dataclass(frozen=True)
class Forced(Exact):
    """Strict up to the first mismatch of a block, where the draft token stands in for the target's own."""

    def own(self, block: Block, length_B: Tensor) -> Tensor:
        own_B = super().own(block, length_B)
        num = block.draft_ids.shape[1]
        if not num:
            return own_B
        at_B1 = length_B.clamp_max(num - 1)[:, None]
        forced_B = allowed(block).gather(1, at_B1).squeeze(1) & (length_B < num)
        return torch.where(forced_B, block.draft_ids.gather(1, at_B1).squeeze(1), own_B)


class Scout(MismatchRecorder):
    """Records the mismatches of scouts and ends each of them once it has met enough."""

    def __init__(self, block: int, enough: Sequence[int]) -> None:
        """`block`: K of the decoder; `enough`: for each scout the number of mismatches."""
        super().__init__(block)
        self.enough = enough
        self._met: dict[int, int] = {}

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        known = len(self._tables)
        super().__call__(block, acceptance, rows)
        for table in self._tables[known:]:
            for row in table["row"].tolist():  # a round meets one mismatch of a row at most: there it ends
                self._met[row] = self._met.get(row, 0) + 1

    def is_far_enough(self, row: Row) -> str | None:
        """For `Decoder.resume`: whether this scout has met its number of mismatches."""
        return FAR_ENOUGH if self._met.get(row.index, 0) >= self.enough[row.index] else None


# ---- One problem on its walk: the text as far as it is sure, and the steps in front of it that are not judged yet.


@dataclass(eq=False)
class Step:
    """A mismatch that a scout has met, and whose draft token it has forced."""

    record: Table
    """One row."""
    rollout: Rollout | None = None
    """What shows whether it does harm, once that was begun."""
    kept: bool | None = None
    """Whether it keeps the meaning, once that is known."""


@dataclass
class Walk:
    """One problem on its way."""

    problem: int
    prompt: list[int]
    reference: list[int]
    """The target's own answer; every answer behind a forced token is compared with it."""
    memory: PrefixState
    """What both models know of the prompt and of what the last scout wrote."""
    keep: int
    """Tokens of the memory's text, prompt included, that the next scout goes on from."""
    added: list[int] = field(default_factory=list)
    """What it puts behind them: the target's own token where the draft's did harm."""
    steps: list[Step] = field(default_factory=list)
    """Those that no outcome has settled yet, in the order of their places."""
    walked: list[Table] = field(default_factory=list)
    at_end: bool = False
    """Whether the scout's text is complete."""

    @property
    def answer(self) -> list[int]:
        """The answer as far as it was scouted; whole when the walk is over."""
        return self.memory.text[len(self.prompt) :]

    @property
    def over(self) -> bool:
        """Whether every mismatch of a complete text is judged."""
        return self.at_end and not self.steps

    def scouted(self, met: Table, memory: PrefixState, may_go_on: bool) -> None:
        """Take over what a scout has met on its way from `keep`, and the text that it wrote."""
        self.memory, self.keep, self.added, self.at_end = memory, len(memory.text), [], not may_go_on
        rows = torch.arange(num_rows(met) if met else 0)
        self.steps += [Step(picked(met, rows[n : n + 1])) for n in rows.tolist()]

    def begin(self, step: Step) -> Rollout:
        """The rollout behind a step."""
        position, token = int(step.record["position"]), int(step.record["draft_id"])
        step.rollout = Rollout(self.problem, self.prompt, self.answer, position, token, self.reference)
        return step.rollout

    def settle(self) -> None:
        """Go over the steps whose outcome is known; behind one that does harm the walk takes another way."""
        while self.steps and self.steps[0].kept is not None:
            step = self.steps.pop(0)
            known = torch.tensor([step.kept], dtype=torch.int8)
            self.walked.append({**stamped(step.record, self.problem, Policy.SEQUENTIAL), "greedy_kept": known})
            if not step.kept:
                self.keep = len(self.prompt) + int(step.record["position"])
                self.added, self.at_end = [int(step.record["target_id"])], False
                self.steps.clear()


GIVEN_UP = "given up"
"""Finish of a rollout whose walk has taken another way."""
WAITING = 2
"""Rollouts that walks keep under way or waiting for every slot, so that few scouts are needed to keep it full."""


class Miner:
    """Walks many problems at once; it supplies the rollouts that its walks wait for."""

    def __init__(self, decoder: Decoder, judge: Judge, batch_size: int, **request: Any) -> None:
        """`decoder` decodes strictly with the pair; `judge` rolls out, `batch_size` rows at a time."""
        self.decoder, self.judge, self.batch_size, self.request = decoder, judge, batch_size, request
        self._walks: list[Walk] = []
        self._under_way: dict[Rollout, tuple[Walk, Step]] = {}
        self._judged, self._lost = 3, 1  # as if one of three had done harm, until outcomes are known

    def walk(
        self, problems: Sequence[int], prompts: Sequence[list[int]], references: Sequence[list[int]]
    ) -> tuple[list[Table], list[AnswerText]]:
        """Records of every mismatch on the walks, with their outcomes, and the texts that these lie on."""
        self._walks = [
            Walk(problem, list(prompt), list(reference), unread(prompt), len(prompt))
            for problem, prompt, reference in zip(problems, prompts, references, strict=True)
        ]
        with bar(title="walks", unit="walk", total=len(problems)) as self._shown:
            self.judge.roller.serve(self)
            self._show()
        texts = [AnswerText(walk.problem, Policy.SEQUENTIAL, walk.answer) for walk in self._walks]
        return [table for walk in self._walks for table in walk.walked], texts

    def take(self, num: int) -> list[Rollout]:
        """The next rollouts; where no step waits for one, scouts go on first."""
        if not (steps := self._waiting()):
            self._scout()
            steps = self._waiting()
        return [self._begin(*one) for one in steps[:num]]

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Whether its outcome is known, or not wanted any more; the judge audits it all the same."""
        walk, step = self._under_way[rollout]
        if step not in walk.steps and not self.judge.audits(rollout):
            return GIVEN_UP
        return self.judge.decided(rollout, answer)

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Its walk goes on, as far as it can."""
        walk, step = self._under_way.pop(rollout)
        if ended.finish == GIVEN_UP:
            return
        step.kept = self.judge.verdict(rollout, ended)
        self._judged, self._lost = self._judged + 1, self._lost + (not step.kept)
        walk.settle()
        self._show()

    def _show(self) -> None:
        """Move the bar to the walks that are over, with the number of labels: a shard may take an hour."""
        labels = sum(num_rows(table) for walk in self._walks for table in walk.walked)
        self._shown.set_postfix_str(f"{labels} labels", refresh=False)
        self._shown.update(sum(walk.over for walk in self._walks) - self._shown.n)

    def _waiting(self) -> list[tuple[Walk, Step]]:
        """Steps without a rollout, those first that most likely lie on their walk."""
        steps = [
            (place, walk, step) for walk in self._walks for place, step in enumerate(walk.steps) if step.rollout is None
        ]
        return [(walk, step) for _, walk, step in sorted(steps, key=lambda one: one[0])]

    def _begin(self, walk: Walk, step: Step) -> Rollout:
        rollout = walk.begin(step)
        self.judge.take_up(rollout)
        self._under_way[rollout] = walk, step
        return rollout

    @property
    def _depth(self) -> int:
        """Steps that a walk may have open: enough to fill the batch, as long as each is more likely than not to lie on
        the walk, by the harm so far."""
        walks = sum(not walk.over for walk in self._walks)
        harm = min(self._lost / self._judged, 0.99)
        return min(-(-WAITING * self.batch_size // walks), 1 + int(log(0.5) / log(1 - harm)))

    def _scout(self) -> None:
        """Scout ahead on every walk that has fewer steps open than it may have."""
        if not (short := [walk for walk in self._walks if not walk.at_end and len(walk.steps) < self._depth]):
            return
        slots = Slots(self.batch_size)
        scout = Scout(self.decoder.block, [self._depth - len(walk.steps) for walk in short])
        done = self.decoder.having(rule=Forced(), observer=scout).resume(
            [walk.memory for walk in short],
            [(walk.keep, walk.added) for walk in short],
            [len(walk.prompt) for walk in short],
            is_decided=scout.is_far_enough,
            slots=slots,
            **self.request,
        )
        self.judge.roller.cost.use(slots.usage)
        met = scout.take([answer for answer, _ in done])
        for walk, table, (answer, memory) in zip(short, met, done, strict=True):
            assert memory is not None
            self.judge.roller.memories.put(memory)
            walk.scouted(table, memory, may_go_on=answer.finish == FAR_ENOUGH)


def unread(prompt: Sequence[int]) -> PrefixState:
    """A text of which nothing has been read."""
    return PrefixState(list(prompt), RowCache([]), RowCache([]))


# ---- The two passes that collect mismatches: on the target's own and sequential texts, and on the texts of a gate.


Collect = Callable[[Sequence[int]], tuple[Table, list[AnswerText]]]
"""Indices of problems -> records of their mismatches, and the texts that these lie on."""


def strict_collector(params: Params, tools: Tools, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the target's own texts and, if that is the recipe, on the walk that keeps harmless replacements."""
    walks = params.collect.recipe == "walk"

    def collect(problems: Sequence[int]) -> tuple[Table, list[AnswerText]]:
        sound = [problem for problem in problems if tools.meaning.is_comparable(problem)]
        num = round(params.collect.strict_share * len(problems)) if walks else len(sound)
        recorder = MismatchRecorder(tools.decoder.block)
        decoder, slots = tools.decoder.having(observer=recorder), Slots(tools.batch_size)
        tables, texts = written(decoder, recorder, prompts, sound[:num], Policy.STRICT, slots, **tools.request)
        tools.cost.use(slots.usage)
        if walks:
            ids, own = [prompts[n]["ids"] for n in sound], [tools.meaning.references[n] for n in sound]
            miner = Miner(tools.decoder, tools.judge(params.collect.rejoin), tools.batch_size, **tools.request)
            walked, walked_texts = miner.walk(sound, ids, own)
            tools.cost.labels += sum(num_rows(table) for table in walked)
            tables, texts = tables + walked, texts + walked_texts
        return (concatenated(tables) if tables else {}), texts

    return collect


def written(
    decoder: Decoder,
    recorder: MismatchRecorder,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
    policy: Policy,
    slots: Slots,
    **request: Any,
) -> tuple[list[Table], list[AnswerText]]:
    """Decode these problems while `recorder` observes the blocks: the records of every text, and the texts.

    The texts are the answers of this very decoding. In bfloat16 another one may differ in near ties, and the places of
    a record would then mean nothing in it.
    """
    answers = decoder.generate([prompts[problem]["ids"] for problem in problems], slots=slots, **request)
    found = zip(problems, recorder.take(answers), strict=True)
    tables = [stamped(table, problem, policy) for problem, table in found if table]
    return tables, [AnswerText(problem, policy, answer.ids) for problem, answer in zip(problems, answers, strict=True)]


def gated_collector(params: Params, pair: Pair, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the pilot gate's own texts; a record names the pilot's P(kept) as `probability`."""
    gate = Gate.load(PILOT, pair.target, pair.draft, pair.tokenizer)

    def collect(problems: Sequence[int]) -> tuple[Table, list[AnswerText]]:
        recorder = MismatchRecorder(params.decoding.block, more=opinion)
        return gated_texts(params, pair, gate, prompts, problems, recorder)

    return collect


def opinion(block: Block) -> Table:
    """The gate's P(kept) at every place of a block [B, K]."""
    assert block.gate_probs is not None
    return {"probability": block.gate_probs}


def gated_texts(
    params: Params,
    pair: Pair,
    gate: Gate,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
    recorder: MismatchRecorder,
) -> tuple[Table, list[AnswerText]]:
    """Decode these problems with the gate at `collect.pilot_risk`; `recorder` sees the blocks."""
    settings = {"risk": params.collect.pilot_risk}
    decoder = make_decoder(pair, MethodParams("autojudge"), settings, params.decoding.block, gate, observer=recorder)
    request, slots = request_of(prompts, pair), Slots(params.decoding.batch_size)
    tables, texts = written(decoder, recorder, prompts, problems, Policy.GATED, slots, **request)
    return (concatenated(tables) if tables else {}), texts


# ---- Which mismatches to label when not all of them are paid for.


def chosen_rows(table: Table, params: Params) -> Tensor:
    """The records to label as a mask [N]; all of them within the budget, and those whose outcome is known anyway."""
    unknown, budget = table["greedy_kept"] < 0, params.label.budget
    if budget is None or budget >= int(unknown.sum()):
        return torch.ones(num_rows(table), dtype=torch.bool)
    order = torch.randperm(num_rows(table), generator=torch.Generator().manual_seed(params.seed))
    if params.label.strategy == "random" or "probability" not in table:
        return ~unknown | first_of(order, unknown, budget)
    fits = split_by_problem(table["problem"], params.train, params.seed).train
    for_fitting = round(budget * int((unknown & fits).sum()) / int(unknown.sum()))
    doubt = (table["probability"] - 0.5).abs()
    by_doubt = order[torch.argsort(doubt[order], stable=True)]
    return (
        ~unknown
        | first_of(by_doubt, unknown & fits, for_fitting)
        | first_of(order, unknown & ~fits, budget - for_fitting)
    )


def first_of(order: Tensor, among: Tensor, num: int) -> Tensor:
    """The first `num` rows in this order that lie in the mask `among`, as a mask [N]."""
    mask = torch.zeros(len(among), dtype=torch.bool)
    mask[order[among[order]][:num]] = True
    return mask
