"""Where in an answer looseness is permitted: everywhere, in prose alone, or in thoughts alone.

The text is read token by token, so that chat templates and tokenizers of all kinds are understood.
What is not understood is strict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from gistgate.core.block import Block
from gistgate.core.guard import Guard
from gistgate.core.request import Row
from gistgate.core.utils import UserError

SCOPES = ("prose", "thinking", "all")
PROSE, THINKING, ALL = SCOPES
FIRST = 2  # tokens at the beginning of an answer that decide most about it, a refusal above all

THOUGHT = re.compile(r"<(/?)think>|\[(/?)THINK\]")
NO_PROSE = (
    r"```.*?```",  # code
    r"<tool_call>.*?</tool_call>",
    r"<function=.*?</function>",
    r"<｜tool▁calls▁begin｜>.*?<｜tool▁calls▁end｜>",
    r"####\s*\S[^\n]*\n",  # a final answer
    # what stands in brackets that hold no others, with strings whose own brackets do not count
    r'(?!\[TOOL_CALLS)[{[](?:(?!```)[^][{}"]|"(?:\\.|[^"\\])*")*[]}]',
)
WHOLE = re.compile("|".join(NO_PROSE), re.DOTALL)
"""A stretch that is no prose, from beginning to end."""
MARKS = (
    r"```|<tool_call>|<function=|<｜tool▁calls▁begin｜>|<\|python_tag\|>|\[TOOL_CALLS\]|####|[{[]"
)
BEGUN = re.compile(MARKS + r"|(?:``?|##?#?|<\S{0,20})\Z")
"""The beginning of such a stretch, or the end of a text that may become one."""
ENDLESS = "<|python_tag|>"  # the beginning of a stretch that never ends
LONGEST = 24  # characters of the longest mark
MOST = 512  # characters in open brackets; more count as never closed, as the search would take long


@dataclass(frozen=True)
class Place:
    """What is known at one place of a text."""

    text: str = ""  # end of the text, from where something has begun that has not ended
    thinking: bool = False
    words: int = 0  # tokens since the answer, the thoughts or what follows them began

    def after(self, piece: str) -> Place:
        """The place behind one more token."""
        whole = self.text + piece
        text = whole
        thinking = self.thinking
        words = self.words + bool(piece.strip())
        for mark in THOUGHT.finditer(whole):
            text = whole[mark.end() :]
            thinking = "/" not in mark[0]
            words = 0
        return Place(unfinished(text), thinking, words)

    def permits(self, scope: str) -> bool:
        """Whether the scope holds here; what may be the beginning of a mark is taken for one."""
        if scope == THINKING:
            return self.thinking and not self.text.endswith("<")
        return not BEGUN.search(self.text)


def unfinished(text: str) -> str:
    """The end of a text from where something has begun that is no prose and has not ended.

    Where nothing has, the end of the text that may become a mark.
    """
    before = None
    while text != before:  # brackets are removed from the innermost on
        before = text
        text = WHOLE.sub(" ", text)
    begun = BEGUN.search(text)
    if begun is None:
        return text[-LONGEST:]
    inside = text[begun.end() :]
    if begun[0] not in "{[":
        return begun[0] + inside[-LONGEST:]
    return begun[0] + inside if len(inside) <= MOST else ENDLESS


@dataclass
class Reading:
    """How far the answer of a request was read."""

    place: Place  # behind the tokens that were read
    seen: int = 0  # their number


@dataclass(frozen=True, eq=False)
class Scope(Guard):
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
        """Ids of chat, think and tool markers and the like."""
        tokens = self.tokenizer.added_tokens_decoder.items()
        # Some tokenizers add runs of spaces, too.
        return frozenset(token for token, text in tokens if str(text).strip())

    def piece(self, token: int) -> str:
        """The text of a token, markers included."""
        if token not in self.pieces:
            self.pieces[token] = str(self.tokenizer.decode([token], skip_special_tokens=False))
        return self.pieces[token]

    def start(self, prompt: Sequence[int]) -> Place:
        """Where an answer begins: what a template or the user puts behind the last marker of the
        prompt counts.
        """
        markers = (place for place, token in enumerate(prompt) if token in self.added)
        last = max(markers, default=0)
        return replace(self.read(Place(), prompt[last:]), words=0)

    def read(self, place: Place, ids: Sequence[int]) -> Place:
        """The place behind further tokens."""
        for token in ids:
            place = place.after(self.piece(token))
        return place

    def along(
        self,
        reading: Reading,
        answer: Sequence[int],
        draft: Sequence[int],
        best: Sequence[int],
    ) -> list[bool]:
        """Where a draft may be accepted loosely; nowhere behind a token of the answer that is
        unknown (-1).

        `best` are the tokens that the target would write in place of those of the draft.
        """
        added = answer[reading.seen :]
        if -1 in added:
            return [False] * len(draft)
        place = self.read(reading.place, added)
        reading.place = place
        reading.seen = len(answer)
        inside = []
        for token, correction in zip(draft, best):
            following = place.after(self.piece(token))
            corrected = place.after(self.piece(correction))
            is_begun = self.id == THINKING or place.thinking or place.words >= FIRST
            inside.append(is_begun and self._holds(place, following, corrected))
            place = following
        return inside

    def _holds(self, *places: Place) -> bool:
        """Whether the scope holds at all of these places, none of which begins or ends a
        thought.
        """
        is_same = len({place.thinking for place in places}) == 1
        return is_same and all(place.permits(self.id) for place in places)

    def limit(self, block: Block, rows: Sequence[Row]) -> Block:
        columns = zip(rows, block.draft_ids.tolist(), block.top_ids.tolist())
        inside = []
        for row, draft, best in columns:
            if self.id not in row.memory:
                row.memory[self.id] = Reading(self.start(row.prompt))
            reading = row.memory[self.id]
            inside.append(self.along(reading, row.answer, draft, best))
        inside_BK = torch.tensor(inside, device=block.valid.device).view_as(block.valid)
        inside_BK = inside_BK.bool()  # an empty one has no type of its own
        is_limited_B = (block.valid & ~inside_BK).any(-1).tolist()
        limited = {id(row): row for row, is_limited in zip(rows, is_limited_B) if is_limited}
        for row in limited.values():  # the paths of a tree share one row
            row.statistics.count(f"{self.id}_rounds")
        return block.having(inside=inside_BK if block.inside is None else inside_BK & block.inside)
