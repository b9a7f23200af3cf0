"""The text of an answer in what a server sent with status 200."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gistgate.core.utils import first_line

BROKEN = (None, "content_filter", "tool_calls", "function_call", "abort", "error")
"""Reasons for which an answer ends that is not what the model would say; servers have several words
for "stop".
"""
THOUGHT = re.compile(
    r".*(</([\w:]*think|thinking|thought|reasoning)>|\[/THINK\]|\|>final<\|message\|>)", re.S | re.I
)
THINKING = re.compile(
    r"\s*(<([\w:]*think|thinking|thought|reasoning)>|\[THINK\]|<\|channel\|>analysis)", re.I
)
"""Reasoning in front of an answer, and the beginning of one that never ends, in the marks of
several families.
"""


def parsed_page(page: Any) -> Any:
    """The page as JSON, which servers may call a text."""
    with suppress(TypeError, ValueError):
        return json.loads(page)
    return page


def first_choice(page: Any) -> Mapping[str, Any] | None:
    """The first choice of a page; None where it holds no answer."""
    choices = page.get("choices") if isinstance(page, dict) else None
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0]
    return None


def beginning_of(page: Any) -> str:
    """What a page without an answer holds, for a message."""
    text = page if isinstance(page, str) else json.dumps(page)
    return first_line(ValueError(text))[:80] or "an empty page"


def text_in(message: Mapping[str, Any]) -> tuple[str, str]:
    """The text of an answer without its reasoning, and what stands in place of a text."""
    content = message.get("content", message.get("text"))
    parts = [content]
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    whole = "".join(texts)
    text = THOUGHT.sub("", whole, 1)
    if THINKING.match(text):
        text = ""
    if text.strip():
        return text, ""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if text != whole or reasoning or len(parts) > len(texts) > 0:
        return text, "its reasoning"
    if message.get("refusal"):
        return text, "a refusal"
    if message.get("tool_calls") or message.get("function_call"):
        return text, "the call of a tool"
    return text, "" if texts else "nothing"


def tokens_in(page: Mapping[str, Any], text: str) -> int | None:
    """The length of an answer in tokens; None where the server does not say it."""
    usage = page.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and tokens >= bool(text) else None
