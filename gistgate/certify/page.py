"""What a server sent with status 200, and what of it is an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gistgate.certify.thoughts import Reply
from gistgate.core.utils import first_line

BROKEN = (None, "content_filter", "abort", "error")
"""Reasons for which an answer ends that is not what the model would say; servers have several words
for "stop".
"""
MOST_TOKENS = 10**9
"""More than that is no length of an answer."""
CALLED = ("tool_calls", "function_call")
"""Reasons for which an answer ends with the call of a tool, if there were tools."""


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


def instead_of(message: Mapping[str, Any], reply: Reply, may_call: bool) -> str:
    """What stands in place of an answer; nothing if there is one, or a thought that has no end. One
    that may call tools and does not may have no text.
    """
    if reply.answer.strip() or reply.is_open:
        return ""
    if message.get("refusal"):
        return "a refusal"
    if may_call:
        return ""
    if message.get("tool_calls") or message.get("function_call"):
        return "the call of a tool"
    content = message.get("content", message.get("text"))
    is_text = isinstance(content, str) or (isinstance(content, list) and content)
    return "" if is_text else "nothing"


def tokens_in(page: Mapping[str, Any], text: str) -> int | None:
    """The length of an answer with its thought in tokens; None where the server does not say it."""
    usage = page.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) and bool(text) <= tokens < MOST_TOKENS else None


def thought_tokens_in(page: Mapping[str, Any]) -> int | None:
    """The length of the thought in tokens; None where the server does not say it."""
    usage = page.get("usage")
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    tokens = details.get("reasoning_tokens") if isinstance(details, dict) else None
    return tokens if isinstance(tokens, int) and tokens < MOST_TOKENS else None
