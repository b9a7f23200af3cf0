"""Where an answer ends. A block is cut here before anything is counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Stop:
    """End of text, stop strings and a length limit, tested token by token inside a block."""

    max_new_tokens: int
    """Longest answer, in tokens."""
    eos_ids: Collection[int] = ()
    """Ids that end the answer; they stay in it."""
    strings: Sequence[str] = ()
    """Texts that end the answer; the token that completes one stays in it."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """Decodes the tail in search of `strings`."""

    def cut(self, answer: Sequence[int], new: Sequence[int]) -> tuple[int, str | None]:
        """How many of `new` tokens stay behind `answer`, and why it ends there: "eos", "stop", "length" or None."""
        room = self.max_new_tokens - len(answer)
        ends = [(index + 1, "eos") for index, token in enumerate(new) if token in self.eos_ids][:1]
        at = self._first_string(answer, new[:room])
        if at is not None:
            ends.append((at, "stop"))
        if len(new) >= room:
            ends.append((room, "length"))
        return min(ends, key=lambda end: end[0]) if ends else (len(new), None)

    def _first_string(self, answer: Sequence[int], new: Sequence[int]) -> int | None:
        """Tokens of `new` up to the first that completes a stop string."""
        if not self.strings or self.tokenizer is None:
            return None
        # A stop string of n bytes cannot reach further back than n tokens, and the answer so far holds none.
        tail = list(answer[-max(len(string.encode()) for string in self.strings) :])
        if not self._has_stop([*tail, *new]):
            return None
        return next((num for num in range(1, len(new) + 1) if self._has_stop([*tail, *new[:num]])), None)

    def _has_stop(self, ids: Sequence[int]) -> bool:
        assert self.tokenizer is not None
        text = self.tokenizer.decode(ids, skip_special_tokens=False)
        return any(string in text for string in self.strings)


def eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends an answer: the tokenizer's eos and those of the model's generation settings."""
    listed = model.generation_config.eos_token_id if model.generation_config else None
    ids = listed if isinstance(listed, list) else [listed]
    return sorted({int(token) for token in [*ids, tokenizer.eos_token_id] if token is not None})
