"""Reflective verification: the target reads the draft twice, and the second verdict counts too (arXiv 2505.18629)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import Context, LooseRule, Rule, State
from gistgate.rules.exact import Exact
from gistgate.rules.typical import Typical

PROMPT = "\n\nRead the last lines again. Another wording is fine as long as the meaning stays:\n"
"""Our own words between the two readings; the paper's are not published."""

BASES: dict[str, Rule] = {"exact": Exact(), "typical": Typical()}
"""Rules that may judge the mixture."""


class Reflection(Context):
    """What is read behind a draft."""

    needs_eager = "reads drafts a second time"

    def __init__(self, prompt_ids: tuple[int, ...], tail: int, mode: str) -> None:
        """The prompt's ids; `tail` and `mode` as in the rule."""
        self.prompt_ids, self.tail, self.mode = prompt_ids, tail, mode


@dataclass(frozen=True)
class Reflective(LooseRule):
    """Judge the draft by z_mix = (1 - alpha) z + alpha z_second; the target's own tokens come from z alone.

    Not monotone position by position: at a larger alpha a third token can overtake the drafted one.
    """

    alpha: float = 0.3
    """Weight of the second reading, 0 to 1; with the base "exact" 0 is strict."""
    base: Literal["exact", "typical"] = "exact"
    """What judges z_mix: the lossless test, or typical acceptance as published (the same when greedy)."""
    mode: Literal["joint", "second"] = "joint"
    """joint: both readings in one forward, always; second: a forward of its own, only where the first one differs."""
    prompt: str = PROMPT
    """What the target reads between draft and second copy."""
    tail: int = 16
    """Last tokens of the text that are repeated before the second copy."""
    id: ClassVar[str] = "reflective"
    knob: ClassVar[str | None] = "alpha"
    looser: ClassVar[Literal["up", "down"]] = "up"
    verifier: ClassVar[str] = "twice"
    grid: ClassVar[tuple[float, ...]] = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"mode": "second"})

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or self.tail < 0:
            raise UserError(
                f"reflective: alpha {self.alpha} lies in [0, 1] (0 is strict), tail {self.tail} is 0 or more."
            )
        if self.base not in BASES or self.mode not in ("joint", "second"):
            raise UserError(
                f"reflective: base '{self.base}', mode '{self.mode}' do not fit: the base is 'exact' or 'typical', the "
                "mode 'joint' or 'second'."
            )

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Reflection:
        """What is read between the draft and its second copy.

        Raises:
            UserError: there is no tokenizer to write it with, or nothing to read.
        """
        if tokenizer is None:
            raise UserError(f"The rule '{self.id}' puts a prompt in front of its second reading. Pass tokenizer=...")
        prompt_ids = tuple(tokenizer.encode(self.prompt, add_special_tokens=False))
        if not prompt_ids and not self.tail:
            raise UserError(
                f"The rule '{self.id}' has nothing to read between the draft and its second copy. Give it a prompt, or "
                "a tail of 1 or more."
            )
        return Reflection(prompt_ids, self.tail, self.mode)

    def accept(self, block: Block, state: State) -> Tensor:
        if block.second is None:
            raise UserError(
                "reflective judges by a second reading, and none was given. Decode with gistgate's Decoder."
            )
        mixed = replace(
            block, logits=torch.cat([self.mix(block.logits[:, :-1], block.second), block.logits[:, -1:]], 1)
        )
        return BASES[self.base].accept(mixed, state)

    def mix(self, z_BKV: Tensor, second_BKV: Tensor) -> Tensor:
        """z_mix [B, K, V]; what the first reading forbids stays forbidden."""
        if self.alpha == 0:  # 0 times -inf is not a number
            return z_BKV
        mixed_BKV = (1 - self.alpha) * z_BKV + self.alpha * second_BKV
        return mixed_BKV.masked_fill(z_BKV == -torch.inf, -torch.inf)
