"""Steps judged by other means than a probe: a score by the target, a reward model, the target's own step.

SpecReason (arXiv 2504.07891), reward-guided decoding (RSD, 2501.19324) and Lookahead Reasoning (2506.19830), each as an
opinion on the draft's segment: the loop, the replacement of what is refused and the counting are the decoder's.

Axis letters: B rows, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.forward.context import context_of
from gistgate.forward.reader import Reader, left_padded
from gistgate.optional.segments.drafter import SegmentDrafter
from gistgate.optional.segments.writing import SegmentWriter

QUESTION = "\nHow good is the last step, from 0 (useless) to 9 (perfect)? Score: "
"""What the target is asked behind a step, unless a task has a better wording."""


class Step:
    """What these opinions share: they look at texts, and only at those of finished segments."""

    layers: frozenset[str] = frozenset()
    wants_q = False

    def __init__(self) -> None:
        self.spent: list[int] = []
        """Target forwards of the last call, for each row."""
        self.notes: list[str | None] = []
        """What the last call says of each row, to be counted."""

    def score(self, block: Block, drafter: SegmentDrafter) -> Tensor:
        valid = block.valid.sum(-1).tolist()
        rows = [row for row, length in enumerate(drafter.lengths) if 0 < length == valid[row]]
        self.spent, self.notes = [0] * len(valid), [None] * len(valid)
        scores = torch.zeros(len(valid), device=block.logits.device)
        if rows:
            steps = [block.draft_ids[row, : valid[row]].tolist() for row in rows]
            found = self.judge(rows, [list(drafter.texts[row]) for row in rows], steps)
            scores[torch.tensor(rows, device=scores.device)] = torch.tensor(found, device=scores.device)
        return scores

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        """A number in [0, 1] for each of these rows' steps, which follow `texts`."""
        raise NotImplementedError


class Score(Step):
    """The target is asked for one digit; a non-digit counts as 0.

    Each question reads the whole text again: nothing of the decoder's cache is touched. Of a text that leaves no room
    for the question in the context its end is read.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        question: str = QUESTION,
        expected: bool = False,
    ) -> None:
        """Ask by `question`; `expected` takes the mean digit over its probabilities instead of the most probable token.

        Raises:
            UserError: the tokenizer writes a digit as several tokens.
        """
        super().__init__()
        self.target, self.expected = target, expected
        self.context = context_of(target.config.get_text_config()) or sys.maxsize
        self.question = tokenizer.encode(question, add_special_tokens=False)
        digits = [tokenizer.encode(str(digit), add_special_tokens=False) for digit in range(10)]
        if any(len(ids) != 1 for ids in digits):
            raise UserError("A score is one digit, and this tokenizer has no token for each. Choose another opinion.")
        self.digits = [ids[0] for ids in digits]

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        asked = [[*text, *step, *self.question][-self.context :] for text, step in zip(texts, steps, strict=True)]
        z_BV = Reader(self.target, len(asked)).read(*left_padded(asked, self.target.device), keep=1)[:, -1]
        p_BV, best = z_BV.softmax(-1)[:, self.digits], z_BV.argmax(-1).tolist()
        mean = (p_BV * torch.arange(10, device=p_BV.device)).sum(-1) / p_BV.sum(-1).clamp_min(1e-12)
        found = []
        for row, token, average in zip(rows, best, mean.tolist(), strict=True):
            digit = self.digits.index(token) if token in self.digits else None
            self.spent[row] = 1
            self.notes[row] = f"score_{'none' if digit is None else digit}"
            found.append((average if self.expected else float(digit or 0)) / 9)
        return found


class Reward(Step):
    """A reward model reads the text up to the step's end: any sequence-classification model with one or two labels."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: PreTrainedTokenizerBase
    ) -> None:
        """Judge by `model`, which reads with `tokenizer` what `source` decodes.

        Raises:
            UserError: the model has more labels than two.
        """
        super().__init__()
        if model.config.num_labels > 2:
            raise UserError(
                f"A reward model has one label or two, and this has {model.config.num_labels}. Use another."
            )
        self.model, self.tokenizer, self.source = model.eval(), deepcopy(tokenizer), source
        self.tokenizer.truncation_side = "left"  # the step that is judged stands at the end of a long text

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        read = [self.source.decode([*text, *step]) for text, step in zip(texts, steps, strict=True)]
        # One at a time: what a padded row gets depends on where its model looks for the end.
        found = [self.model(**self._inputs(text)).logits[0].float() for text in read]
        rewards: list[float] = [float(z.sigmoid()[0] if len(z) == 1 else z.softmax(-1)[1]) for z in found]
        return rewards

    def _inputs(self, text: str) -> dict[str, Tensor]:
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True, return_token_type_ids=False)
        return {name: ids.to(self.model.device) for name, ids in inputs.items()}


class Pair(Step):
    """The target writes its own step from the same place; equal ones pass, others are compared by `aligned`.

    The own step costs a forward per token even where the draft's is kept; with a batch of one nothing runs beside it.
    """

    def __init__(self, writer: SegmentWriter, aligned: Callable[[str, str], float]) -> None:
        """`writer` writes the target's steps; `aligned` says of two texts, own and drafted, how alike they are."""
        super().__init__()
        self.writer, self.aligned = writer, aligned

    def judge(self, rows: list[int], texts: list[list[int]], steps: list[list[int]]) -> list[float]:
        own = self.writer.write(texts, range(len(texts)))
        for row, step in zip(rows, own, strict=True):
            self.spent[row] = len(step.ids)
        decode = self.writer.decoder.tokenizer.decode  # type: ignore[union-attr]
        said = [(decode(step.ids), decode(ids)) for step, ids in zip(own, steps, strict=True)]
        return [1.0 if folded(a) == folded(b) else self.aligned(a, b) for a, b in said]


def folded(text: str) -> str:
    """A text without regard to blanks and case."""
    return " ".join(text.lower().split())


def same_numbers(own: str, drafted: str) -> float:
    """For steps of arithmetic: 1 where both name the same numbers in the same order."""
    return float(numbers(own) == numbers(drafted))


def numbers(text: str) -> Sequence[str]:
    """The numbers of a text, in order."""
    return "".join(sign if sign.isdigit() else " " for sign in text).split()
