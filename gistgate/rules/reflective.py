"""Reflective verification (arXiv 2505.18629): behind the draft the target reads a prompt, the
text's end, and it again.

Axis letters: B rows, K drafted tokens, R tokens of prompt and repeated tail, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gistgate.core.block import Block, Draft
from gistgate.core.parts import DecoderParts
from gistgate.core.reader import left_padded
from gistgate.core.request import Row
from gistgate.core.rule import Context, Exact, Rule
from gistgate.core.session import Verifier
from gistgate.core.utils import Natural, Share, UserError
from gistgate.rules.thresholds import Typical

PROMPT = "\n\nRead the last lines again. Another wording is fine as long as the meaning stays:\n"
"""Our own words between the two readings; the paper's are not published."""

BASES: dict[str, Rule] = {"exact": Exact(), "typical": Typical()}
"""Rules that may judge the mixture."""


@dataclass(frozen=True)
class Reflection(Context):
    """What is read behind a draft; `tail` as in the rule."""

    prompt_ids: tuple[int, ...]
    tail: int
    needs_eager = "reads drafts a second time"


class Rereader(Verifier):
    """Fills `Block.second` in the forward of the first reading."""

    second: Tensor  # the rows of the second copy [B, K, V]

    @classmethod
    def extra_tokens(cls, parts: DecoderParts) -> int:
        context = reflection(parts)
        return len(context.prompt_ids) + context.tail + 2 * parts.block

    def verify(self, rows: Sequence[Row], draft: Draft, uniforms: Tensor | None) -> Block:
        block = super().verify(rows, draft, uniforms)
        second = self.sampling.logits(self.second) if draft.width else block.logits[:, :-1]
        return block.having(second=second)

    def read(self, ids: Tensor, valid: Tensor | None, draft: Draft, rows: Sequence[Row]) -> Tensor:
        num = draft.width
        if not num:
            return super().read(ids, valid, draft, rows)
        if valid is None:
            valid = torch.ones_like(ids, dtype=torch.bool)
        appendix, counts = self._appendix(draft, rows)
        ids = torch.cat([ids, appendix], dim=1)
        valid = torch.cat([valid, counts], dim=1)
        length = appendix.shape[1]
        z = self.reader.read(ids, valid, num + 1 + length)[..., : self.parts.vocabulary]
        for layer, state in self.states.items():
            self.states[layer] = state[:, :-length]
        self.reader.forget(length, counts.sum(-1).tolist())
        self.second = z[:, -num - 1 : -1]
        return z[:, : num + 1]

    def _appendix(self, draft: Draft, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """What is read behind the draft: ids [B, R + K] and which of them count."""
        context = reflection(self.parts)
        tails = [row.text[max(0, len(row.text) - context.tail) :] for row in rows]
        between = [[*context.prompt_ids, *tail] for tail in tails]
        ids, valid = left_padded(between, draft.ids.device)
        if valid is None:
            valid = torch.ones_like(ids, dtype=torch.bool)
        return torch.cat([ids, draft.ids], dim=1), torch.cat([valid, draft.valid], dim=1)


def reflection(parts: DecoderParts) -> Reflection:
    """What the rule wants to be read behind a draft."""
    assert isinstance(parts.context, Reflection)
    return parts.context


@dataclass(frozen=True)
class Reflective(Rule, id="reflective", knob="alpha", looser="up", verifier=Rereader):
    """Judge the draft by z_mix = (1 - alpha) z + alpha z_second; the target's own tokens come from
    z alone.

    Not monotone position by position: at a larger alpha a third token can overtake the drafted one.
    """

    alpha: Share = 0.3  # weight of the second reading, 0 to 1; with the base "exact" 0 is strict
    # What judges z_mix: the lossless test, or typical acceptance as published (alike if greedy).
    base: Literal["exact", "typical"] = "exact"
    prompt: str = PROMPT  # what the target reads between draft and second copy
    tail: Natural = 16  # last tokens of the text that are repeated before the second copy
    grid = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Reflection:
        """What is read between the draft and its second copy."""
        if tokenizer is None:
            raise UserError(
                f"The rule '{self.id}' puts a prompt in front of its second reading. Pass"
                " tokenizer=..."
            )
        prompt_ids = tuple(tokenizer.encode(self.prompt, add_special_tokens=False))
        if not prompt_ids and not self.tail:
            raise UserError(
                f"The rule '{self.id}' has nothing between its readings. Give it a prompt or a"
                " tail."
            )
        return Reflection(prompt_ids, self.tail)

    def accept(self, block: Block) -> Tensor:
        assert block.second is not None, "the decoder reads the draft a second time"
        mixed_BKV = self.mix(block.logits[:, :-1], block.second)
        z_BKV = torch.cat([mixed_BKV, block.logits[:, -1:]], dim=1)
        return BASES[self.base].accept(replace(block, logits=z_BKV))

    def mix(self, z_BKV: Tensor, second_BKV: Tensor) -> Tensor:
        """z_mix [B, K, V]; what the first reading forbids stays forbidden."""
        if self.alpha == 0:  # 0 times -inf is not a number
            return z_BKV
        mixed_BKV = (1 - self.alpha) * z_BKV + self.alpha * second_BKV
        return mixed_BKV.masked_fill(z_BKV == -torch.inf, -torch.inf)
