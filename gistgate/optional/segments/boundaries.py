"""Where a segment ends, told from the text of the tokens and never from fixed ids."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError

STYLES = {
    "blank-line": r"\n[ \t]*\n\s*$",
    "step": r"\n\s*$",
    # A point behind a digit may be a decimal point; at a sentence's end something else follows, at the latest a line.
    "sentence": r"(?:(?<!\d)[.!?][\"')\]]*\s*|\n\s*)$",
}
"""What a finished segment's text ends with, by the name of the setting."""

TAIL = 6
"""Tokens in which an ending is looked for: a blank line or a closing quote may take several."""
MOST_TAILS = 1 << 16
"""Tails whose verdict is remembered; beyond that all are looked at anew."""


class Boundaries:
    """Tells finished segments of one tokenizer from unfinished ones."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, style: str, end_ids: Collection[int] = ()) -> None:
        """Take over a style of STYLES, or a regular expression that begins with "re:".

        Args:
            tokenizer: decodes the tail of a segment.
            style: the task's setting.
            end_ids: ids that end a segment whatever they read, such as eos.

        Raises:
            UserError: an unknown style, or an expression that is none.
        """
        if not style.startswith("re:") and style not in STYLES:
            raise UserError(f"There is no segment style '{style}'. Use {', '.join(STYLES)}, or 're:' and a pattern.")
        try:
            self._ending = re.compile(STYLES.get(style, style[3:]))
        except re.error as error:
            raise UserError(f"The segment style '{style}' is no regular expression ({error}). Correct it.") from error
        self.style, self.tokenizer, self.end_ids = style, tokenizer, frozenset(end_ids)
        self._known: dict[tuple[int, ...], bool] = {}

    def ends(self, ids: Sequence[int]) -> bool:
        """Whether a segment of these tokens is finished."""
        if not ids:
            return False
        tail = tuple(ids[-TAIL:])
        if tail not in self._known:
            if len(self._known) >= MOST_TAILS:
                self._known.clear()
            self._known[tail] = tail[-1] in self.end_ids or self._finished(tail)
        return self._known[tail]

    def cut(self, ids: Sequence[int]) -> list[list[int]]:
        """The tokens as segments in order; the last may be unfinished."""
        segments: list[list[int]] = [[]]
        for token in ids:
            segments[-1].append(token)
            if self.ends(segments[-1]):
                segments.append([])
        return segments if segments[-1] else segments[:-1]

    def _finished(self, tail: tuple[int, ...]) -> bool:
        text = self.tokenizer.decode(list(tail))
        return bool(text.strip()) and self._ending.search(text) is not None
