"""Conversations: what a server is asked turn by turn, and what it reads of its own answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gistgate.core.utils import PromptError
from gistgate.tasks.task import Messages, Turns
from gistgate.tasks.tool_calls import read

ASKING = ("user", "tool", "function")
"""Roles of messages that the assistant answers; the last is what `tool` was called earlier."""


def conversation(messages: Messages, entries: dict[str, Any], asks_all: bool) -> Turns:
    """The requests of a conversation: where two turns of the user follow each other, the server's
    own answer is put between.

    With `asks_all`, answers of the assistant that stand in the conversation are asked for, too, and
    stay as they stand.
    """
    history: Messages = []
    for message in messages:
        if is_unanswered(history, message) or (asks_all and is_answer(history, message)):
            text = yield history, entries
            if message["role"] == "user":
                history = [*history, spoken(text)]
        history = [*history, message]
    yield history, entries


def is_unanswered(history: Sequence[dict[str, Any]], message: dict[str, Any]) -> bool:
    """Whether two turns of the user follow each other without an answer."""
    return bool(history) and history[-1]["role"] == message["role"] == "user"


def is_answer(history: Sequence[dict[str, Any]], message: dict[str, Any]) -> bool:
    """Whether a message answers the user or a tool."""
    is_asked = bool(history) and history[-1]["role"] in ASKING
    return is_asked and message["role"] == "assistant"


def references(messages: Messages) -> list[dict[str, Any]]:
    """What stands in a conversation as the answer to each turn but the last: a message of the
    assistant, or an empty one.
    """
    answers = []
    for at, message in enumerate(messages):
        if is_answer(messages[:at], message):
            answers.append(message)
        elif is_unanswered(messages[:at], message):
            answers.append({})
    return answers


def spoken(text: str) -> dict[str, Any]:
    """An answer as a message; PromptError where it calls tools, whose results nobody knows."""
    if read(text):
        raise PromptError(
            "A tool was called in a turn before the last, and its result is not known. Write the"
            " calls and their results into `messages`."
        )
    return {"role": "assistant", "content": text}
