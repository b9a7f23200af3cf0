"""Thoughts of models that reason before they answer, told apart from their answers.

Servers put a thought into a field of its own, into a part of the content, or leave it in the text
between marks. A mark is a word for thinking in brackets, such as <think>, [THINK], ◁think▷ or
<|START_THINKING|>; families that write something else have a row of `FORMS`. Only what a text
begins with is a thought, so that an answer may speak of marks and hold any markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MARK = re.compile(
    r"(?P<left><<|<\|?|\[|[◁【⟨⟦＜])(?P<sign>[/／]?)\|?(?P<name>[^\W\d][\w:.\-]{0,39}?)\|?"
    r"(?:>>|>|\]|[▷】⟩⟧＞])"
)
"""A name in brackets, as Qwen, DeepSeek, GLM, Seed, Mistral, Kimi, Cohere and others write it."""
SURE = re.compile(
    r"think(s|ing)?|thoughts?|thinker|cot|chain of thoughts?|scratchpad|(inner )?monologue|inner"
    r"|working out|思考|推理"
)
"""Names between whose marks stands a thought."""
VAGUE = re.compile(
    r"reason(s|ing|ed)?|rationale|reflect(ion|ions|ing)?|analysis|analy[sz]ing|deliberat(e|ion|ing)"
    r"|ponder(ing)?|contemplat(e|ion)|consider(ation|ing)?|plan(ning)?|brainstorm(ing)?|working"
)
"""Names of thoughts that may also be names of fields of an answer in XML."""
UNENDED = ("think", "thinking", "thought", "reasoning", "思考")
"""Names of thoughts that need no end to be such."""
ANSWER = re.compile(r"response|(final )?answer|final|output|solution|conclusion|result|reply|box")
"""Names between whose marks stands the answer behind a thought."""
FOREIGN = re.compile(
    rf"^({ANSWER.pattern})$|\b(tool|calls?|function|header|message|turn|im|image|code)\b"
)
"""Names of special tokens that are no marks of a thought."""
SPECIAL = ("<|", "◁")
"""Brackets of which no markup makes use."""
BEGINS = ("begin", "start", "open", "prefix", "of")
ENDS = ("end", "stop", "close", "suffix")
FINAL = r"<\|channel\|>\s*final\b[^<]*(<\|constrain\|>[^<]*)?<\|message\|>"
GLUED = r"assistant(\s*\n\s*)?final(?=[^a-z]|$)"  # of harmony without its special tokens
FORMS = (  # beginning of a thought and of its answer
    (r"<\|channel\|>\s*(analysis|commentary)\b[^<]*<\|message\|>", FINAL),  # harmony of gpt-oss
    (rf"analysis(?=[^\sa-z:.,;]|.*{GLUED})", GLUED),
    (r"<\|channel\|?>\s*(thought|thinking|analysis)\b", r"<channel\|>"),  # Gemma 4
    (r"<unused94>\s*thought\b", r"<unused95>"),  # MedGemma
    (r"\[unused16\]", r"\[unused17\]"),  # Pangu
    (r"<\|think\|>(?=.*<\|content\|>)", r"<\|content\|>"),  # Solar
    (r"<\|im_start\|>\s*think\b", r"<\|im_start\|>\s*answer\b"),  # s1
)
PHRASE = (
    r"[*#\s]*here(?: is|'s|’s) my thought process\W*",
    r"[*#]*here(?: is|'s|’s) my response\W*",
)
"""Of Granite 3.2; an answer that ends as it should may begin with such words, too."""
ROLE = re.compile(
    r"(\s*(<s>|<bos>|<\|(im_start|start|begin|begin_of_text|assistant|bos|startoftext)\|>"
    r"|<｜[^｜\n]*｜>|<start_of_turn>|(assistant|model)\b(?=\s*[<\[◁])))*\s*"
)
"""What a server may leave of the chat template in front of an answer."""
LAST = re.compile(r"(<\|(return|end|END_RESPONSE|im_end|eot_id)\|>|<end_of_turn>|</s>)\s*$")
QUOTES = "`'\"“”‘’„«»()"
SPOKEN = re.compile(r"\s*(and|or|is|are|tags?|marks?|tokens?|means?|begins?|opens?)\b|\s*[,;:.)]")
"""What goes on with a sentence that mentions the beginning of a thought."""
GOES_ON = re.compile(r"[ \t]+[a-zß-ÿ]|\s*[,;.:)!?]|\s*$")
"""What goes on with a sentence that mentions its end."""


@dataclass(frozen=True)
class Reply:
    """What a model wrote, as thought and answer."""

    answer: str
    thought: str = ""
    is_open: bool = False
    """Whether the thought has no end, or no answer behind it."""


@dataclass(frozen=True)
class Mark:
    """A name in brackets within a text."""

    text: str
    start: int
    end: int
    left: str
    """The bracket in front of the name."""
    name: str
    is_end: bool

    @property
    def is_sure(self) -> bool:
        """Whether it can be nothing but the mark of a thought."""
        return bool(SURE.fullmatch(self.name))

    @property
    def is_vague(self) -> bool:
        """Whether it may be the mark of a thought, and else of a field."""
        return bool(VAGUE.fullmatch(self.name))

    @property
    def is_answer(self) -> bool:
        """Whether it may be the mark of an answer."""
        return bool(ANSWER.fullmatch(self.name))

    @cached_property
    def is_quoted(self) -> bool:
        """Whether it stands in quotes or in code."""
        before = self.text[: self.start]
        behind = self.text[self.end :]
        line = before.rpartition("\n")[2]
        if before.count("```") % 2 or line.replace("```", "").count("`") % 2:
            return True
        return bool(before and behind and before[-1] in QUOTES and behind[0] in QUOTES)

    @cached_property
    def is_mentioned(self) -> bool:
        """Whether a text speaks of the mark: in quotes, in code, or within a sentence."""
        before = self.text[: self.start]
        behind = self.text[self.end :]
        if self.is_quoted:
            return True
        if not self.is_end:
            return bool(SPOKEN.match(behind))
        within = before[-1:] in (" ", "\t") and re.search(r"[\w,;]$", before.rstrip())
        return bool(within and GOES_ON.match(behind))


def marks_in(text: str) -> Iterator[Mark]:
    """All names in brackets of a text that could be marks, in their order."""
    for match in MARK.finditer(text):
        words = re.split(r"[:._]+", match["name"].casefold())
        is_end = bool(match["sign"]) or words[0] in ENDS or words[-1] in ENDS
        words = [word for word in words if word not in (*BEGINS, *ENDS)]
        name = " ".join(words)
        if not (SURE.fullmatch(name) or ANSWER.fullmatch(name)):
            name = next((word for word in words if SURE.fullmatch(word)), name)  # of <seed:think>
        yield Mark(text, match.start(), match.end(), match["left"], name, is_end)


def split(text: str, is_capped: bool = False) -> Reply:
    """Thought and answer of a text that was perhaps cut at the longest length.

    A text may begin with several thoughts, and may hold the end of one alone, whose beginning the
    chat template has written.
    """
    thoughts = []
    answer = text
    while reply := formed(answer, is_capped) or marked(answer):
        thoughts.append(reply.thought)
        answer = reply.answer
        if reply.is_open:
            break
    reply = None if thoughts else ended(text)
    if reply:
        thoughts.append(reply.thought)
        answer = reply.answer
    answer = unwrapped(answer, bool(thoughts))
    return Reply(answer, "\n".join(thoughts), bool(thoughts) and not answer.strip())


def formed(text: str, is_capped: bool) -> Reply | None:
    """What a row of `FORMS` makes of a text; None where it begins otherwise."""
    without_role = ROLE.sub("", text, 1)
    for opening, closing in FORMS:
        for beginning in (text.lstrip(), without_role):
            start = re.match(opening, beginning, re.S)
            if start:
                return behind(beginning[start.end() :], re.search(closing, beginning), start.end())
    start = re.match(PHRASE[0], text, re.I)
    if start is None:
        return None
    end = re.search(PHRASE[1], text, re.I)
    if end is None and not is_capped:
        return None
    return behind(text[start.end() :], end, start.end())


def behind(text: str, end: re.Match[str] | None, skipped: int) -> Reply:
    """The thought that a text begins with up to `end`, which counts `skipped` letters before."""
    if end is None:
        return Reply("", text, True)
    return Reply(text[end.end() - skipped :], text[: max(0, end.start() - skipped)])


def marked(text: str) -> Reply | None:
    """What a text that begins with a mark has before and behind its end; None without one."""
    marks = list(marks_in(text))
    opening = opening_of(text, marks)
    if opening is None:
        return None
    end = end_of(opening, marks)
    inside = text[opening.end :]
    if end is None:
        is_markup = opening.is_vague and inside.lstrip().startswith("<")
        is_thought = opening.name in UNENDED and not is_markup
        return Reply("", inside, True) if is_thought else None
    answer = text[end.start if end.is_answer else end.end :]
    if not opening.is_sure and (not answer.strip() or begins_with_field(answer)):
        return None
    return Reply(answer, text[opening.end : end.start])


def opening_of(text: str, marks: Sequence[Mark]) -> Mark | None:
    """The mark that a text begins with, if it may be that of a thought; a special token of an
    unknown name may be one, too.
    """
    role = ROLE.match(text)
    begin = role.end() if role else 0
    opening = next((mark for mark in marks if mark.start >= begin), None)
    if opening is None or opening.start != begin or opening.is_end or opening.is_mentioned:
        return None
    is_special = opening.left in SPECIAL and not FOREIGN.search(opening.name)
    return opening if opening.is_sure or opening.is_vague or is_special else None


def begins_with_field(text: str) -> bool:
    """Whether a text begins with a name in brackets that is not the mark of an answer."""
    text = text.lstrip()
    mark = next(marks_in(text), None)
    return mark is not None and mark.start == 0 and not mark.is_answer


def end_of(opening: Mark, marks: Sequence[Mark]) -> Mark | None:
    """The mark that ends a thought; if there is none, the one that begins the answer."""
    named = [mark for mark in marks if mark.name == opening.name and mark.start >= opening.start]
    depth = 0
    ends = []
    for mark in named:
        if mark.is_mentioned:
            continue
        depth += -1 if mark.is_end else 1
        if mark.is_end:
            ends.append(mark)
        if depth == 0:
            break
    # "4 </think> so it is 4" reads as if a sentence went on.
    ends = ends or [mark for mark in named if mark.is_end and not mark.is_quoted]
    return ends[-1] if ends else next(filter(begins_answer, marks), None)


def begins_answer(mark: Mark) -> bool:
    """Whether a mark begins an answer: a special token, or alone at the start of a line."""
    if not mark.is_answer or mark.is_end or mark.is_mentioned:
        return False
    line = mark.text[: mark.start].rpartition("\n")[2]
    return mark.left in SPECIAL or not line.strip()


def ended(text: str) -> Reply | None:
    """Thought and answer of a text that holds the end of a thought alone; None without one."""
    opened = set()
    for mark in marks_in(text):
        if not mark.is_sure or mark.is_mentioned:
            continue
        if not mark.is_end:
            opened.add(mark.name)
        elif mark.name not in opened:
            return Reply(text[mark.end :], text[: mark.start])
    end = re.search(rf"(?:{GLUED})|{FINAL}", text)
    if end and end.start() and text[end.start() - 1] not in QUOTES:
        return behind(text, end, 0)
    return None


def unwrapped(text: str, has_thought: bool) -> str:
    """An answer without the marks around it; those that markup may use stay without a thought."""
    head = re.match(rf"(<\|start\|>assistant)?\s*{FINAL}", text.lstrip())
    if head:
        return LAST.sub("", text.lstrip()[head.end() :])
    marks = [mark for mark in marks_in(text) if mark.is_answer and not mark.is_mentioned]
    if not marks or marks[0].is_end or text[: marks[0].start].strip():
        return LAST.sub("", text) if has_thought else text
    opening = marks[0]
    inside = text[opening.end :]
    is_markup = opening.left not in SPECIAL and (inside.lstrip().startswith("<") or not has_thought)
    if is_markup:
        return text
    ends = [mark for mark in marks if mark.is_end and mark.name == opening.name]
    if ends:
        inside = text[opening.end : ends[-1].start] + text[ends[-1].end :]
    return LAST.sub("", inside)


def is_thinking(name: object) -> bool:
    """Whether a field or the type of a part of the content holds a thought."""
    words = re.split(r"[\s:._\-]+", str(name).casefold())
    return any(SURE.fullmatch(word) or word == "reasoning" for word in words)


def thought_in(message: Mapping[str, Any]) -> str:
    """The thought in the fields of a message beside its content; servers may say it twice."""
    thoughts = [texts_in(value) for name, value in message.items() if is_thinking(name)]
    return max(thoughts, key=len, default="")


def texts_in(value: Any) -> str:
    """All texts of a field: a text, or one within parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(texts_in(part) for part in value)
    if isinstance(value, Mapping):
        names = ("text", "content", "thinking", "reasoning", "summary")
        return "".join(texts_in(value.get(name)) for name in names)
    return ""


def reply_in(message: Mapping[str, Any], is_capped: bool = False) -> Reply:
    """Thought and answer in a message of a chat or in the choice of a completion."""
    content = message.get("content", message.get("text"))
    parts = content if isinstance(content, list) else [content]
    thoughts = [thought_in(message)]
    texts = []
    for part in parts:
        if isinstance(part, Mapping) and (is_thinking(part.get("type")) or part.get("thought")):
            thoughts.append(texts_in(part))
        else:
            texts.append(part.get("text") if isinstance(part, Mapping) else part)
    reply = split("".join(text for text in texts if isinstance(text, str)), is_capped)
    thought = "\n".join(text for text in (*thoughts, reply.thought) if text)
    return Reply(reply.answer, thought, bool(thought) and not reply.answer.strip())
