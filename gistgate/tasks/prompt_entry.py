"""Entries of a file of prompts as documents: prompt or messages, tools, and right answers."""

from __future__ import annotations

from typing import Any

from gistgate.core.utils import UserError, shown
from gistgate.models.options import TEXTS, as_text
from gistgate.tasks.scorers import plain
from gistgate.tasks.task import Document
from gistgate.tasks.tool_calls import calls_of, expected_calls, tools_of
from gistgate.tasks.turns import ASKING, references

EXAMPLE = '{"prompt": "2 + 2?", "answer": "4"}, or with "messages" of a chat in place of a prompt'
BESIDE = ("context", "passage", "choices", "options")
"""Entries of data sets that belong into a prompt."""


def document_of(place: str, row: Any) -> Document:
    """An entry of a file as a document: its prompt or messages, and its right answers."""
    doc: Document = {"place": place, **(row if isinstance(row, dict) else {"prompt": row})}
    doc["earlier"] = []
    if "functions" in doc:  # what `tools` was called earlier
        doc.setdefault("tools", doc["functions"])
    if "messages" not in doc and isinstance(doc.get("turns"), list):
        take_turns(doc)
    if "messages" in doc:
        check_messages(doc)
    else:
        doc["prompt"] = text_of(doc)
        check_text(doc, doc["prompt"], "prompt")
        check_whole(doc)
    if "system" in doc:
        check_text(doc, doc["system"], "system text")
    if "tools" in doc:
        doc["tools"] = tools_of(place, doc["tools"])
    for turn in doc["earlier"]:
        if "tools" in doc:
            turn["tools"] = doc["tools"]
        take_answers(turn)
    take_answers(doc)
    return doc


def text_of(doc: Document) -> Any:
    """The prompt of an entry or a turn, whatever its name."""
    texts = [doc[name] for name in TEXTS if doc.get(name) is not None]
    if not texts:
        held = [name for name in doc if name not in ("place", "earlier")]
        refuse(doc, f"it holds {shown(held)} and no prompt. Write lines such as {EXAMPLE}")
    return texts[0]


def take_turns(doc: Document) -> None:
    """Put the `turns` of an entry, texts or objects such as an entry, into its messages; the last
    one is the entry itself.
    """
    usual = {"scorer": doc["scorer"]} if "scorer" in doc else {}
    turns = []
    for at, turn in enumerate(doc["turns"], start=1):
        entries = turn if isinstance(turn, dict) else {"prompt": turn}
        turns.append({**usual, **entries, "place": f"{doc['place']} turn {at},"})
    if len(turns) > 1:
        doc["messages"] = [{"role": "user", "content": text_of(turn)} for turn in turns]
    last = turns.pop() if turns else {}
    for name, entry in last.items():
        doc.setdefault(name, entry)
    doc["earlier"] = turns


def take_answers(doc: Document) -> None:
    """Bring the right answers of an entry or a turn into one form, if it has some."""
    if "tools" in doc:
        doc["answers"] = [expected_calls(doc["place"], doc.get("calls"))]
    elif "answer" in doc or "answers" in doc:
        doc["answers"] = answers_of(doc)


def written_answers(doc: Document) -> list[Document]:
    """The turns of a conversation but its last, with the answers that stand in it as the right
    ones.
    """
    turns = []
    for at, message in enumerate(references(doc.get("messages", [])), start=1):
        turn: Document = {"place": f"{doc['place']} turn {at},", "is_reference": True}
        if "tools" in doc:
            turn |= {"tools": doc["tools"], "calls": calls_of(message) if message else None}
        elif isinstance(message.get("content"), str) and message["content"].strip():
            turn["answer"] = message["content"]
        take_answers(turn)
        turns.append(turn)
    return turns


def check_messages(doc: Document) -> None:
    """Refuse messages that are no conversation; a last answer of the assistant becomes the right
    one.
    """
    messages = doc["messages"]
    is_list = isinstance(messages, list) and messages
    if not is_list or not all(isinstance(turn, dict) and "role" in turn for turn in messages):
        refuse(doc, "its messages are no list of turns with role and content")
    if messages[-1]["role"] == "assistant":
        take_reference(doc)
    doc["messages"] = [message_of(turn) for turn in doc["messages"]]
    for turn in doc["messages"]:
        has_parts = isinstance(turn.get("content"), list) and turn["content"]  # such as an image
        if not calls_of(turn) and not has_parts:
            check_text(doc, turn.get("content"), "message")
    if not doc["messages"] or doc["messages"][-1]["role"] not in ASKING:
        refuse(doc, "its messages do not end with a turn of the user")


def take_reference(doc: Document) -> None:
    """Make the last message of an entry, which is the assistant's, its right answer."""
    *doc["messages"], last = doc["messages"]
    if "tools" in doc:
        doc.setdefault("calls", calls_of(last))
    elif "answer" not in doc:
        doc["answer"] = last.get("content")
        doc["is_reference"] = True


def message_of(turn: dict[str, Any]) -> dict[str, Any]:
    """A message as servers take it: without empty entries, which clients write beside the others,
    and with parts of text as one text.
    """
    entries = as_text(turn)
    return {
        name: entry
        for name, entry in entries.items()
        if name == "content" or entry not in (None, [])
    }


def check_whole(doc: Document) -> None:
    """Refuse a prompt that lacks what stands beside it, which nobody would send."""
    for name in BESIDE:
        value = doc.get(name) or []
        if isinstance(value, dict):  # as data sets on the hub have choices
            value = value.get("text", [])
        parts = value if isinstance(value, list) else [value]
        if any(str(part) not in doc["prompt"] for part in parts):
            refuse(doc, f"what it has as {name} is not in the prompt. Write it there")


def check_text(doc: Document, text: Any, name: str) -> None:
    """Refuse what is no text that a server can be sent."""
    if not isinstance(text, str) or not text:
        refuse(doc, f"its {name} is empty or no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse(doc, f"its {name} holds half of a character (a lone surrogate). Write it whole")


def answers_of(doc: Document) -> list[Any]:
    """The right answers of an entry: one, or each of a list."""
    if "answer" not in doc and not isinstance(doc["answers"], list):
        refuse(doc, "its answers are no list. Write one, or a single answer as `answer`")
    answer = doc.get("answer", doc.get("answers"))
    answers = answer if isinstance(answer, list) else [answer]
    if not answers or any(map(is_missing, answers)):
        refuse(doc, "its answer is empty. Write one, or leave the line out")
    return answers


def is_missing(answer: Any) -> bool:
    """Whether a right answer says nothing; NaN is what tables have in empty cells."""
    return answer is None or answer != answer or plain(str(answer)) == ""


def refuse(doc: Document, why: str) -> None:
    """Raise a UserError about an entry."""
    raise UserError(f"{doc['place']} cannot be used: {why}.")
