"""Several drafters, of which every row has the one that promises most; none where drafting does not
pay.

A proposal of n tokens that are each accepted with probability a is worth 1 + a + .. + a^n tokens
for the price of v + n c plain forwards. B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gistgate.core.block import Draft
from gistgate.core.cache import NOTHING_READ, RowCache
from gistgate.core.drafter import Drafter, Texts
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.drafters.text import RowDrafter, matches, ragged

MEMORY = 0.9  # what a round counts for after the next one


@dataclass(frozen=True)
class Option:
    """A drafter to choose from, and when."""

    drafter: Drafter
    cost: float = 0.0  # c: a drafted token in plain forwards of the target
    # Only where the latest so many tokens of the text occurred in it before; 0: always.
    min_match: int = 0
    prior: float = 0.8  # acceptance that it begins every request with


@dataclass(frozen=True)
class Recent:
    """How often a drafter's tokens were accepted lately, in one row."""

    accepted: float
    tested: float  # accepted ones and the first refused one of every round
    proposed: float = 0.0
    rounds: float = 0.0

    @property
    def rate(self) -> float:
        """a, in [0, 1]."""
        return self.accepted / self.tested

    def drafted(self, otherwise: int) -> int:
        """Tokens of a proposal; `otherwise` while there was none."""
        return round(self.proposed / self.rounds) if self.rounds else otherwise

    def after(self, proposed: int, accepted: int) -> Recent:
        """With another round; what was before counts `MEMORY` times as much."""
        tested = accepted + (accepted < proposed)
        return Recent(
            self.accepted * MEMORY + accepted,
            self.tested * MEMORY + tested,
            self.proposed * MEMORY + proposed,
            self.rounds * MEMORY + 1,
        )


def speed(rate: float, num: int, cost: float, verify: float) -> float:
    """Expected tokens of a round per plain forward: tau / (v + n c)."""
    return sum(rate**step for step in range(num + 1)) / (verify + num * cost)


class Taken(NamedTuple):
    """What a row has in a round."""

    place: int  # the option that was taken, -1 for none
    num: int  # tokens that it proposed


NONE = Taken(-1, 0)


@dataclass
class RowChoice:
    """What is known of one row."""

    recent: list[Recent]  # of every option
    taken: Taken = NONE
    # Tokens that the text itself proposed and that were not taken, and where they would stand.
    guess: list[int] = field(default_factory=list)
    guess_start: int = 0


class AdaptiveDrafter(RowDrafter):
    """One drafter for every row and round, or none."""

    def __init__(
        self, options: Sequence[Option], verify: float, *, block: int, weight: float
    ) -> None:
        """Choose among `options`, drafters of chains, of which at most one has a model.

        `verify` is v, reading a draft in plain forwards of the target. Promises are compared at
        `block` tokens and not at the round's K, which depends on other rows. A prior counts for
        `weight` tested tokens: with a large one few give up after one unlucky round.
        """
        self.options = tuple(options)
        self.verify = verify
        self.block = block
        self.drafters = [option.drafter for option in options]
        # The drafter whose memory of the texts is kept.
        self.keeper = max(self.drafters, key=lambda drafter: drafter.model is not None)
        self.model = self.keeper.model
        self._fresh = [Recent(option.prior * weight, weight) for option in options]
        self._proposing: list[int] = []
        super().start(1)

    def new_row(self) -> RowChoice:
        """A row that knows the priors alone."""
        return RowChoice(list(self._fresh))

    def start(self, batch: int) -> None:
        super().start(batch)
        self._proposing = []
        for drafter in self.drafters:
            drafter.start(batch)

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **request: Any) -> Draft:
        drafts: dict[int, Draft] = {}

        def draft_of(place: int) -> Draft:
            if place not in drafts:
                drafter = self.drafters[place]
                drafts[place] = drafter.propose(texts, num_draft, vocabulary=vocabulary, **request)
            return drafts[place]

        for index, row in enumerate(self.rows):
            row.taken = self._pick(index, texts[index], draft_of)
        self._proposing = [place for place, draft in drafts.items() if draft.width]
        taken = [row.taken for row in self.rows]
        joined = join(drafts, taken, vocabulary)
        if not joined.width:  # an empty draft is never settled
            self._tell([0] * len(texts))
        return joined

    def _pick(self, index: int, text: Sequence[int], draft_of: Callable[[int], Draft]) -> Taken:
        """What row `index` has: the most promising option that proposes something."""
        for place in self.promising(index, text):
            num = num_proposed(draft_of(place), index)
            if num:
                return Taken(place, num)
        return NONE

    def promising(self, index: int, text: Sequence[int]) -> list[int]:
        """Options of row `index` worth asking, the most promising first."""
        speeds = [
            speed(recent.rate, self.block, option.cost, self.verify)
            for option, recent in zip(self.options, self.rows[index].recent)
        ]
        paying = [place for place, promise in enumerate(speeds) if promise > 1]
        longest = max((self.options[place].min_match for place in paying), default=0)
        match = len(matches(text, longest))
        paying = [place for place in paying if self.options[place].min_match <= match]
        return sorted(paying, key=speeds.__getitem__, reverse=True)

    def keep(self, accepted: Sequence[int]) -> None:
        for row, num in zip(self.rows, accepted):
            place = row.taken.place
            if place >= 0:
                row.recent[place] = row.recent[place].after(row.taken.num, num)
        self._tell(accepted)

    def _tell(self, accepted: Sequence[int]) -> None:
        """Tell those that proposed what stayed: nothing where a row took another one's."""
        for place in self._proposing:
            stayed = [
                num if row.taken.place == place else 0 for row, num in zip(self.rows, accepted)
            ]
            self.drafters[place].keep(stayed)
        self._proposing = []

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        for drafter in self.drafters:
            drafter.select(rows)

    def admit(self, texts: Texts, caches: Sequence[RowCache]) -> None:
        super().admit(texts, caches)
        for drafter in self.drafters:
            remembered = caches if drafter is self.keeper else [NOTHING_READ] * len(texts)
            drafter.admit(texts, remembered)

    def read(self, texts: Texts) -> list[RowCache]:
        return self.keeper.read(texts)

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        return self.keeper.snapshot(rows)


def num_proposed(draft: Draft, row: int) -> int:
    """Tokens that a draft proposes to a row."""
    return int(draft.valid[row].sum())


def join(drafts: Mapping[int, Draft], taken: Sequence[Taken], vocabulary: int) -> Draft:
    """Of each row the draft that was taken. Where one of the drafts has probabilities, the joined
    one has some, too: tokens of the others are certain.
    """
    chains = [
        drafts[place].ids[row, :num].tolist() if num else []
        for row, (place, num) in enumerate(taken)
    ]
    forwards = sum(draft.forwards for draft in drafts.values())
    joined = replace(ragged(chains), forwards=forwards)
    probs = {place: draft.q for place, draft in drafts.items() if draft.q is not None}
    if not probs or not joined.width:
        return joined
    q_BKV = torch.nn.functional.one_hot(joined.ids, vocabulary).to(next(iter(probs.values())))
    for row, (place, num) in enumerate(taken):
        if place in probs:
            q_BKV[row, :num] = probs[place][row, :num]
    return replace(joined, q=q_BKV)


@dataclass(frozen=True)
class Costs:
    """What forwards of a pair cost, one row at a time."""

    step: float  # one plain target step, in seconds
    draft: float  # c: one draft step, in target steps
    # v(K): reading K drafted tokens and the one before them, in target steps, by K.
    verify: Mapping[int, float]

    def verification(self, block: float) -> float:
        """v at any K: linear between the measured ones, and the nearest of them outside."""
        measured = sorted(self.verify)
        return float(np.interp(block, measured, [self.verify[num] for num in measured]))


UNPROVEN = 0.5  # acceptance that a text begins requests with
WEIGHT = 8.0  # tested tokens that the acceptance at the beginning counts for


class ModelOrTextDrafter(AdaptiveDrafter):
    """A choice between the request's own text and a draft model, by the tokens that each
    proposes.
    """

    def __init__(self, drafter: ModelDrafter, costs: Costs, block: int) -> None:
        """`costs` are those of the pair, `block` is the K of the draft model's first proposal."""
        options = [Option(SuffixDrafter(), prior=UNPROVEN), Option(drafter, costs.draft)]
        super().__init__(options, costs.verification(block), block=block, weight=WEIGHT)
        self.stopping = drafter.stopping
        self.costs = costs

    @property
    def binding(self) -> dict[str, object]:
        verify = {str(num): price for num, price in self.costs.verify.items()}
        costs = {"cost": self.costs.draft, "verify": verify, "block": self.block}
        return {**self.keeper.binding, **costs}

    def _pick(self, index: int, text: Sequence[int], draft_of: Callable[[int], Draft]) -> Taken:
        row = self.rows[index]
        judge_guess(row, text)
        by_text, by_model = row.recent
        verification = self.costs.verification
        copied = draft_of(0)
        num_copied = num_proposed(copied, index)
        copying = speed(by_text.rate, num_copied, 0.0, verification(num_copied))
        num_drafted = by_model.drafted(self.block)
        drafting = speed(by_model.rate, num_drafted, self.costs.draft, verification(num_drafted))
        if num_copied and copying >= max(drafting, 1.0):
            return Taken(0, num_copied)
        row.guess = copied.ids[index, :num_copied].tolist()
        row.guess_start = len(text)
        if drafting <= 1:
            return NONE
        return Taken(1, num_proposed(draft_of(1), index))


def judge_guess(row: RowChoice, text: Sequence[int]) -> None:
    """Count what the text proposed and nobody took by how much of it was written after all."""
    written = text[row.guess_start : row.guess_start + len(row.guess)]
    if written:
        agreeing = 0
        for token, guess in zip(written, row.guess):
            if token != guess:
                break
            agreeing += 1
        row.recent[0] = row.recent[0].after(len(written), agreeing)
    row.guess = []
