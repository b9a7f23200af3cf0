"""Prompt lookup: copy what followed the latest n-gram when it occurred before (apoorvumang/prompt-lookup-decoding)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gistgate.block import Draft, Sampling
from gistgate.drafters.base import Drafter
from gistgate.drafters.chains import occurrences, ragged, shared
from gistgate.errors import UserError


@dataclass
class PromptLookup(Drafter):
    """For n = n_max .. 1 find the last n tokens earlier in the text; the first n that hits wins."""

    n_max: int = 3
    """Longest n-gram looked for, in tokens."""
    pick: Literal["first", "last"] = "first"
    """Which earlier occurrence is copied."""

    def __post_init__(self) -> None:
        if self.n_max < 1 or self.pick not in ("first", "last"):
            raise UserError(f"lookup: n_max {self.n_max} must be 1 or more and pick '{self.pick}' 'first' or 'last'.")

    def propose(
        self,
        texts: Sequence[Sequence[int]],
        num_draft: int,
        *,
        vocabulary: int,
        sampling: Sampling,
        uniforms: Tensor | None,
        want_q: bool,
    ) -> Draft:
        return ragged([shared(self.continuation(text, num_draft), vocabulary) for text in texts])

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        """At most `num_draft` tokens; empty when the latest token never occurred before."""
        found = occurrences(text, self.n_max, latest=self.pick == "last")
        return next((list(text[start : start + num_draft]) for _, start in found), [])
