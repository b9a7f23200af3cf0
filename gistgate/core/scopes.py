"""Where in an answer looseness is permitted: everywhere, in prose alone, or in thoughts alone. What
is read is text, so that chat templates and tokenizers of all kinds are understood; what is not
understood is strict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from gistgate.core.block import Block
from gistgate.core.request import Row
from gistgate.core.utils import UserError

PROSE, THINKING, ALL = SCOPES = ("prose", "thinking", "all")
FIRST = 2  # tokens at the beginning of an answer that decide most about it, a refusal above all
THOUGHT = re.compile(r"<(/?)think>|\[(/?)THINK\]")
WHOLE = re.compile(
    r"```.*?```|<tool_call>.*?</tool_call>|<function=.*?</function>|<｜tool▁calls▁begin｜>.*?<｜tool▁calls▁end｜>"
    r'|####\s*\S[^\n]*\n|(?!\[TOOL_CALLS)[{[](?:(?!```)[^][{}"]|"(?:\\.|[^"\\])*")*[]}]',
    re.DOTALL,
)
"""Code, calls of tools, final answers and what stands in brackets, from beginning to end."""
BEGUN = re.compile(
    r"```|<tool_call>|<function=|<｜tool▁calls▁begin｜>|<\|python_tag\|>|\[TOOL_CALLS\]|####|[{[]|(?:``?|##?#?|<\S{0,20})\Z"
)
"""The beginning of one of these, or the end of a text that may become one."""
LONGEST = 24  # characters of the longest mark
# characters in open brackets: what is longer counts as never closed, since it would take long to
# search
MOST = 512
ENDLESS = "<|python_tag|>"


@dataclass(frozen=True)
class Place:
    """What is known at one place of a text."""

    text: str = ""  # end of the text, from where something has begun that has not ended
    thinking: bool = False
    words: int = 0  # tokens since the answer, the thoughts or what follows them began

    def after(self, piece: str) -> Place:
        """The place behind one more token."""
        text = self.text + piece
        thinking = self.thinking
        words = self.words + bool(piece.strip())
        for mark in THOUGHT.finditer(self.text + piece):
            text = mark.string[mark.end() :]
            thinking = "/" not in mark[0]
            words = 0
        while (shorter := WHOLE.sub(" ", text)) != text:
            text = shorter
        if (begun := BEGUN.search(text)) is None:
            return Place(text[-LONGEST:], thinking, words)
        rest = text[begun.end() :]  # elsewhere nothing counts but the end
        is_nested = begun[0] in "{["
        if is_nested and len(rest) > MOST:
            return Place(ENDLESS, thinking, words)
        return Place(begun[0] + (rest if is_nested else rest[-LONGEST:]), thinking, words)

    def permits(self, scope: str) -> bool:
        """Whether the scope holds here; what may be the beginning of a mark is taken for one."""
        return (
            self.thinking and not self.text.endswith("<")
            if scope == THINKING
            else not BEGUN.search(self.text)
        )


@dataclass
class Reading:
    """How far the answer of a request was read."""

    place: Place  # behind the tokens that were read
    seen: int = 0  # their number


@dataclass(frozen=True, eq=False)
class Scope:
    """Prose or thinking, with a tokenizer; as a guard of a decoder it keeps looseness inside."""

    id: str
    tokenizer: Any
    pieces: dict[int, str] = field(default_factory=dict)  # texts of tokens

    def __post_init__(self) -> None:
        if self.tokenizer is None:
            raise UserError(
                f"The scope '{self.id}' is found in the text. Pass tokenizer=... to read it."
            )

    @cached_property
    def added(self) -> frozenset[int]:
        """Ids of chat, think and tool markers and the like; some tokenizers add runs of spaces,
        too.
        """
        return frozenset(
            i for i, token in self.tokenizer.added_tokens_decoder.items() if str(token).strip()
        )

    def piece(self, token: int) -> str:
        """The text of a token, markers included."""
        if token not in self.pieces:
            self.pieces[token] = str(self.tokenizer.decode([token], skip_special_tokens=False))
        return self.pieces[token]

    def start(self, prompt: Sequence[int]) -> Place:
        """Where an answer begins: what a template or the user puts behind the last marker of the
        prompt counts.
        """
        last = next((at for at in range(len(prompt) - 1, -1, -1) if prompt[at] in self.added), 0)
        return replace(self.read(Place(), prompt[last:]), words=0)

    def read(self, place: Place, ids: Sequence[int]) -> Place:
        """The place behind further tokens."""
        for token in ids:
            place = place.after(self.piece(token))
        return place

    def along(
        self, known: Reading, answer: Sequence[int], draft: Sequence[int], best: Sequence[int]
    ) -> list[bool]:
        """Where a draft may be accepted loosely; nowhere behind a token of the answer that is
        unknown (-1).

        `best` are the tokens that the target would write in place of those of the draft.
        """
        if -1 in answer[known.seen :]:
            return [False] * len(draft)
        place = known.place = self.read(known.place, answer[known.seen :])
        known.seen = len(answer)
        found = []
        for token, own in zip(draft, best, strict=False):
            follow = place.after(self.piece(token))
            is_begun = self.id == THINKING or place.thinking or place.words >= FIRST
            ways = (place, follow, place.after(self.piece(own)))
            found.append(
                is_begun and all(p.permits(self.id) and p.thinking == place.thinking for p in ways)
            )
            place = follow
        return found

    def limit(self, block: Block, rows: Sequence[Row]) -> Block:
        """The block with the places where the scope holds; `rows` are its texts, one for every
        path.
        """
        for row in rows:
            row.memory.setdefault(self.id, Reading(self.start(row.text[: row.prompt_length])))
        columns = zip(rows, block.draft_ids.tolist(), block.top_ids.tolist(), strict=True)
        inside = [
            self.along(row.memory[self.id], row.answer, draft, best) for row, draft, best in columns
        ]
        inside_BK = torch.tensor(inside, dtype=torch.bool, device=block.draft_ids.device).view(
            block.valid.shape
        )
        is_narrower_B = (block.valid & ~inside_BK).any(-1).tolist()
        for row in {
            id(row): row
            for row, is_narrower in zip(rows, is_narrower_B, strict=True)
            if is_narrower
        }.values():
            row.statistics.count(f"{self.id}_rounds")
        return block.having(inside=inside_BK if block.inside is None else inside_BK & block.inside)
