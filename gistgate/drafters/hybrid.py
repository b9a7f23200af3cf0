"""Texts and a draft model together: of every row the one whose proposal promises more tokens for its price.

As in Arctic Inference's hybrid of suffix decoding and a draft model (arXiv 2411.04975), but decided by promised speed
instead of a fixed score. A text costs nothing, so it is always asked, and what it proposed is compared with what was
written even where the model's draft was taken instead: it proves itself before it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gistgate.block import Draft
from gistgate.drafters.choice import ChoiceDrafter, Option, Recent, speed
from gistgate.drafters.costs import Costs
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.forward.cache import RowCache

UNPROVEN = 0.5
"""Acceptance that a text begins every request with: too low to replace a draft model that pays."""
WEIGHT = 8.0
"""Tested tokens that this counts for."""


class HybridDrafter(ChoiceDrafter):
    """A choice between the request's own text and a draft model, by the tokens that each has found."""

    def __init__(self, drafter: ModelDrafter, costs: Costs, block: int) -> None:
        """Choose between repetitions in the text and `drafter`.

        Args:
            drafter: drafts with a model, to the end that its policy finds.
            costs: c and v of this pair, measured; a short copy is read at the price of its own length.
            block: K, at which the draft model's promise is made until it has drafted.
        """
        options = [Option(SuffixDrafter(), prior=UNPROVEN), Option(drafter, costs.draft)]
        super().__init__(options, costs.verification(block), block=block, weight=WEIGHT)
        self.stopping, self.stops_early = drafter.stopping, drafter.stops_early
        self.costs = costs

    @property
    def binding(self) -> dict[str, object]:
        verify = {str(num): price for num, price in sorted(self.costs.verify.items())}
        return {
            **self.options[1].drafter.binding,
            "cost": self.costs.draft,
            "verify": verify,
            "block": self.block,
        }

    def _begin(self, batch: int) -> None:
        super()._begin(batch)
        self._guesses: list[tuple[int, list[int]]] = [(0, [])] * batch
        """Of each row the length of its text, and what the text proposed behind it but was not taken."""

    def _pick(self, row: int, text: Sequence[int], ask: Callable[[int], Draft]) -> tuple[tuple[int, int], str]:
        self._prove(row, text)
        suffix = ask(0)
        found, (by_text, by_model) = int(suffix.valid[row].sum()), self.rows[row]
        drafted, v = by_model.drafted(self.block), self.costs.verification
        promised = speed(by_text.rate, found, 0.0, v(found))
        drafting = speed(by_model.rate, drafted, self.costs.draft, v(drafted))
        self._guesses[row] = (len(text), suffix.ids[row, :found].tolist())
        if found and promised >= max(drafting, 1.0):
            self._guesses[row] = (0, [])
            return (0, found), "choice_0"
        if drafting <= 1:
            return (-1, 0), "choice_gave_up"
        return (1, int(ask(1).valid[row].sum())), "choice_1"

    def _prove(self, row: int, text: Sequence[int]) -> None:
        """Count how much of an untaken proposal was written after all."""
        start, guess = self._guesses[row]
        written = list(text[start : start + len(guess)])
        if not guess or not written:
            return
        agreed = next((n for n, (a, b) in enumerate(zip(guess, written, strict=False)) if a != b), len(written))
        recent: Recent = self.rows[row][0]
        self.rows[row][0] = recent.after(len(written), agreed, self.memory)

    def admit(
        self, present: int, texts: Sequence[Sequence[int]], caches: list[RowCache], lengths: Sequence[int]
    ) -> None:
        super().admit(present, texts, caches, lengths)
        self._guesses += [(0, []) for _ in texts]

    def select(self, rows: Sequence[int]) -> None:
        super().select(rows)
        self._guesses = [self._guesses[row] for row in rows]
