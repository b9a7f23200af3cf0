"""Several drafters, of which every row has the one that promises most; none where drafting does not
pay.

A proposal of n tokens that are each accepted with probability a is worth 1 + a + .. + a^n tokens
for the price of v + n c plain forwards. B rows, K drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gistgate.core.block import Acceptance, Block, Draft
from gistgate.core.drafter import Drafter, Texts
from gistgate.core.reader import RowCache
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.drafters.text import RowDrafter, occurrences, ragged


@dataclass(frozen=True)
class Option:
    """A drafter to choose from, and when."""

    drafter: Drafter
    cost: float = 0.0  # c: a drafted token in plain forwards of the target
    min_match: int = (
        0  # only where the latest so many tokens of the text occurred in it before; 0: always
    )
    prior: float | None = None  # acceptance that it begins every request with; None: that of all


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

    def after(self, proposed: int, accepted: int, memory: float) -> Recent:
        """With another round; what was before counts `memory` times as much."""
        tested = accepted + (accepted < proposed)
        before = (self.accepted, self.tested, self.proposed, self.rounds)
        return Recent(
            *(a * memory + b for a, b in zip(before, (accepted, tested, proposed, 1), strict=True))
        )


def speed(rate: float, num: int, cost: float, verify: float) -> float:
    """Expected tokens of a round per plain forward: tau / (v + n c)."""
    return sum(rate**step for step in range(num + 1)) / (verify + num * cost)


@dataclass
class RowChoice:
    """What is known of one row."""

    recent: list[Recent]  # of every option
    taken: tuple[int, int] = (-1, 0)  # the option that was taken and the tokens it proposed
    guess: tuple[int, list[int]] = (
        0,
        [],
    )  # length of the text, and what it proposed itself that was not taken


class AdaptiveDrafter(RowDrafter):
    """One drafter for every row and round, or none; requests count `choice_0`.., `choice_none`,
    `choice_gave_up`.
    """

    learns = True

    def __init__(
        self,
        options: Sequence[Option],  # drafters of chains, of which at most one has a model
        verify: float = 1.0,  # v, reading a draft in plain forwards of the target
        *,
        # tokens that promises are compared at; not the round's K, which depends on other rows
        block: int = 8,
        prior: float = 0.8,  # acceptance that a drafter begins every request with
        # tested tokens that the prior counts for: few give up after one unlucky round
        weight: float = 16.0,
        memory: float = 0.9,  # what a round counts for after the next one
    ) -> None:
        drafters = [option.drafter for option in options]
        with_model = [place for place, one in enumerate(drafters) if one.model is not None]
        if not options or len(with_model) > 1 or any(one.nodes for one in drafters):
            raise UserError(
                "choice: the options are one or more drafters of chains, at most one of them a"
                " model."
            )
        costs = [min(option.cost, option.min_match) for option in options]
        if not (
            verify > 0
            and block >= 1
            and min(costs) >= 0
            and 0 <= prior <= 1
            and weight > 0
            and 0 < memory <= 1
        ):
            raise UserError(
                "choice: verify and weight are above 0, block 1 or more, costs 0 or more, others"
                " shares."
            )
        self.options = tuple(options)
        self.verify = verify
        self.block = block
        self.memory = memory
        self.gives_q = all(one.gives_q for one in drafters)
        self.layers = frozenset().union(*(one.layers for one in drafters))
        priors = [prior if option.prior is None else option.prior for option in options]
        self._fresh = [Recent(one * weight, weight) for one in priors]
        self._keeper = with_model[0] if with_model else 0
        self.model = drafters[self._keeper].model
        self._asked: list[int] = []
        super().start(1)

    def new_row(self) -> RowChoice:
        return RowChoice(list(self._fresh))

    def start(self, batch: int) -> None:
        super().start(batch)
        self._asked = []
        for option in self.options:
            option.drafter.start(batch)

    def propose(self, texts: Texts, num_draft: int, *, vocabulary: int, **request: Any) -> Draft:
        drafts: dict[int, Draft] = {}
        rows = self.rows_of(texts)
        notes = [""] * len(texts)

        def ask(place: int) -> Draft:
            if place not in drafts:
                drafter = self.options[place].drafter
                drafts[place] = drafter.propose(texts, num_draft, vocabulary=vocabulary, **request)
            return drafts[place]

        for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
            row.taken, notes[at] = self._pick(at, text, ask)
        self._asked = [place for place, draft in drafts.items() if draft.ids.shape[1]]
        joined = replace(join(drafts, [row.taken for row in rows], vocabulary), notes=notes)
        if not joined.ids.shape[1]:  # an empty draft is never settled
            self._tell([0] * len(texts))
        return joined

    def _pick(
        self, row: int, text: Sequence[int], ask: Callable[[int], Draft]
    ) -> tuple[tuple[int, int], str]:
        """The option that a row takes with the tokens it found, (-1, 0) for none, and how this is
        counted.
        """
        wishes = self.wishes(row, text)
        for place in wishes or ():
            if found := int(ask(place).valid[row].sum()):
                return (place, found), f"choice_{place}"
        return (-1, 0), "choice_gave_up" if wishes is None else "choice_none"

    def wishes(self, row: int, text: Sequence[int]) -> list[int] | None:
        """Options worth asking, the most promising first; None when none ever will be in this
        request.
        """
        speeds = [
            speed(recent.rate, self.block, option.cost, self.verify)
            for option, recent in zip(self.options, self.rows[row].recent, strict=True)
        ]
        paying = [place for place, found in enumerate(speeds) if found > 1]
        if not paying:  # now nothing is tried any more, so that no rate will change
            return None
        longest = max(self.options[place].min_match for place in paying)
        match = next((length for length, _ in occurrences(text, longest)), 0)
        paying = [place for place in paying if self.options[place].min_match <= match]
        return sorted(paying, key=lambda place: -speeds[place])

    def observe(self, block: Block, acceptance: Acceptance) -> None:
        """Let those learn that do."""
        for option in self.options:
            option.drafter.observe(block, acceptance)

    def keep(self, accepted: Sequence[int]) -> None:
        for row, num in zip(self.rows, accepted, strict=True):
            place, found = row.taken
            if place >= 0:
                row.recent[place] = row.recent[place].after(found, num, self.memory)
        self._tell(accepted)

    def _tell(self, accepted: Sequence[int]) -> None:
        """Tell those that proposed what stayed: nothing where a row took another one's."""
        for asked in self._asked:
            mine = [
                num if row.taken[0] == asked else 0
                for row, num in zip(self.rows, accepted, strict=True)
            ]
            self.options[asked].drafter.keep(mine)
        self._asked = []

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        for option in self.options:
            option.drafter.select(rows)

    def admit(
        self, present: int, texts: Texts, caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        super().admit(present, texts, caches, lengths)
        nothing = [RowCache([]) for _ in texts], [0] * len(texts)
        for place, option in enumerate(self.options):
            option.drafter.admit(
                present, texts, *((caches, lengths) if place == self._keeper else nothing)
            )

    def read(self, texts: Texts) -> list[RowCache]:
        return self.options[self._keeper].drafter.read(texts)

    def snapshot(self, rows: Sequence[int]) -> list[RowCache]:
        return self.options[self._keeper].drafter.snapshot(rows)

    def restore(self, caches: list[RowCache], lengths: Sequence[int]) -> None:
        self.start(len(lengths))
        self.options[self._keeper].drafter.restore(caches, lengths)


def join(drafts: dict[int, Draft], taken: Sequence[tuple[int, int]], vocabulary: int) -> Draft:
    """Of each row the draft that was taken; with probabilities where one has some; tokens of others
    are certain.
    """
    draft = ragged(
        [
            drafts[at].ids[row, :found].tolist() if found else []
            for row, (at, found) in enumerate(taken)
        ]
    )
    draft = replace(draft, forwards=sum(one.forwards for one in drafts.values()))
    given = {place: one.q for place, one in drafts.items() if one.q is not None}
    if not given or not draft.ids.shape[1]:
        return draft
    q_BKV = torch.nn.functional.one_hot(draft.ids, vocabulary).to(next(iter(given.values())))
    for row, (place, found) in enumerate(taken):
        if place in given:
            q_BKV[row, :found] = given[place][row, :found]
    return replace(draft, q=q_BKV)


@dataclass(frozen=True)
class Costs:
    """What forwards of a pair cost, one row at a time."""

    step: float  # one plain target step, in seconds
    draft: float  # c: one draft step, in target steps
    verify: Mapping[
        int, float
    ]  # v(K): verifying K drafted tokens and the one before them, in target steps, by K

    def verification(self, block: float) -> float:
        """v at any K: linear between the measured ones, and the nearest of them outside."""
        known = sorted(self.verify)
        return float(np.interp(block, known, [self.verify[k] for k in known]))


UNPROVEN = (
    0.5  # acceptance that a text begins requests with, and the tested tokens that it counts for
)
WEIGHT = 8.0


class ModelOrTextDrafter(AdaptiveDrafter):
    """A choice between the request's own text and a draft model, by the tokens that each has
    found.
    """

    def __init__(self, drafter: ModelDrafter, costs: Costs, block: int) -> None:
        options = [Option(SuffixDrafter(), prior=UNPROVEN), Option(drafter, costs.draft)]
        super().__init__(options, costs.verification(block), block=block, weight=WEIGHT)
        self.stopping = drafter.stopping
        self.stops_early = drafter.stops_early
        self.costs = costs

    @property
    def binding(self) -> dict[str, object]:
        verify = {str(num): price for num, price in sorted(self.costs.verify.items())}
        model = self.options[1].drafter.binding
        return {**model, "cost": self.costs.draft, "verify": verify, "block": self.block}

    def _pick(
        self, row: int, text: Sequence[int], ask: Callable[[int], Draft]
    ) -> tuple[tuple[int, int], str]:
        known = self.rows[row]
        start, guess = known.guess
        written = list(text[start : start + len(guess)])
        if guess and written:  # an untaken proposal counts by how much of it was written after all
            agreed = next(
                (n for n, (a, b) in enumerate(zip(guess, written, strict=False)) if a != b),
                len(written),
            )
            known.recent[0] = known.recent[0].after(len(written), agreed, self.memory)
        suffix = ask(0)
        found = int(suffix.valid[row].sum())
        by_text, by_model = known.recent
        drafted = by_model.drafted(self.block)
        v = self.costs.verification
        promised = speed(by_text.rate, found, 0.0, v(found))
        drafting = speed(by_model.rate, drafted, self.costs.draft, v(drafted))
        known.guess = (len(text), suffix.ids[row, :found].tolist())
        if found and promised >= max(drafting, 1.0):
            known.guess = (0, [])
            return (0, found), "choice_0"
        if drafting <= 1:
            return (-1, 0), "choice_gave_up"
        return (1, int(ask(1).valid[row].sum())), "choice_1"
