"""Prompts of one's own, in place of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from gistgate.core.utils import UserError, shown
from gistgate.models.options import TEXTS, as_text, read_rows
from gistgate.tasks.bfcl import from_bfcl, is_bfcl
from gistgate.tasks.scorers import SCORERS, Scorer, plain, scorer_named, strictest
from gistgate.tasks.task import Document, Messages, Task, TaskSpec
from gistgate.tasks.tool_calls import ToolCalls, calls_of, equal, expected_calls, read, tools_of

EXAMPLE = '{"prompt": "2 + 2?", "answer": "4"}, or with "messages" of a chat in place of a prompt'
BESIDE = ("context", "passage", "choices", "options")
"""Entries of data sets that belong into a prompt."""
REFERENCE = "f1"  # scorer of the last answer of a conversation that a file holds to its end


class PromptFile(Task):
    """Entries with a prompt or the messages of a chat, and an `answer` where one is known.

    An entry may have a system text of its own (`system`), several right answers (a list), and a
    `scorer`; without one the strictest that fits all answers of the file is taken. An entry with
    `tools` is scored by the calls of these, and may name the `calls` that are expected.
    """

    name = "own prompts"

    def __init__(
        self,
        rows: Sequence[tuple[str, Any]],
        spec: TaskSpec,
        scorer: str | None = None,
        replays: bool = False,  # whether answers that stand in a conversation are sent
    ) -> None:
        """Read `rows`, each with its place in the file; UserError names the place of what cannot be
        used.
        """
        self.replays = replays
        if spec.data or spec.metric or spec.allow_code or spec.prompting.num_fewshot:
            raise UserError(
                "--task-data, --metric, --allow-code and --num-fewshot belong to a task. Leave them"
                " out."
            )
        self.docs = [document_of(place, row) for place, row in rows]
        if not self.docs:
            raise UserError(f"There is no prompt in the file. Write lines such as {EXAMPLE}.")
        self.max_new_tokens = spec.max_new_tokens
        is_chat = spec.prompting.chat_template or any(
            "messages" in doc or "tools" in doc for doc in self.docs
        )
        self.prompting = replace(spec.prompting, chat_template=is_chat)
        if not is_chat:
            for doc in self.docs:
                if "system" in doc:
                    refuse(doc, "a system text needs a chat. Add --chat")
        self.judges = any("answers" in doc for doc in self.docs)
        if self.judges:
            self.choose_scorers(scorer)

    def choose_scorers(self, name: str | None) -> None:
        """Give each entry its scorer, and refuse answers that cannot be compared."""
        for doc in self.docs:
            if "answers" not in doc:
                refuse(doc, "it has no answer, and other entries have. Add one to each, or none")
        texts = [doc for doc in self.docs if "tools" not in doc]
        usual = scorer_named(name) if name is not None else strictest(answers_in(texts))
        ids = set()
        for doc in self.docs:
            if doc.get("is_reference") and name is None:
                scorer = scorer_of(doc, SCORERS[REFERENCE])
            else:
                scorer = scorer_of(doc, usual)
            doc["scorer"] = scorer.id
            doc["compares"] = scorer
            ids.add(scorer.id)
            check_answers(doc, scorer)
            self.ternary = self.ternary and scorer.ternary
        self.metric = f"scorer {' and '.join(sorted(ids))}"
        self.calls_tools = len(texts) < len(self.docs)
        unknown = sum(doc["answers"] == [None] for doc in self.docs)
        if unknown:
            self.metric += f" (validity alone in {unknown} of {len(self.docs)} entries)"

    metric = "no score"

    def documents(self, split: str) -> list[Document]:
        """All entries, whatever the split."""
        return self.docs

    def question(self, doc: Document) -> str:
        """The prompt, or the messages as they stand in the file."""
        text = str(doc.get("messages") or doc["prompt"])
        return f"{text} {doc['tools']}" if "tools" in doc else text

    problem = question

    def context(self, doc: Document, tokenizer: object) -> str:
        """The prompt."""
        return str(doc["prompt"])

    def messages(self, doc: Document) -> Messages:
        """The messages, behind the system text of the entry, else that of all; without those of the
        assistant, which each server writes itself, unless they are replayed or tools are called.
        """
        messages = doc.get("messages") or [{"role": "user", "content": doc["prompt"]}]
        if self.shortens(doc):
            messages = [turn for turn in messages if turn["role"] != "assistant"]
        system = doc.get("system") or self.prompting.system
        if system:
            return [{"role": "system", "content": system}, *messages]
        return list(messages)

    def shortens(self, doc: Document) -> bool:
        """Whether answers stand in the conversation that are not sent."""
        roles = {turn["role"] for turn in doc.get("messages") or ()}
        return "assistant" in roles and not (self.replays or "tools" in doc)

    @property
    def shortened(self) -> int:
        """Entries with answers that are not sent."""
        return sum(map(self.shortens, self.docs))

    def entries(self, doc: Document) -> dict[str, Any]:
        """The tools, and how they are chosen."""
        return {name: doc[name] for name in ("tools", "tool_choice") if name in doc}

    def score(self, doc: Document, text: str) -> float:
        """What an answer is worth: the best of what its right answers say."""
        scorer: Scorer = doc["compares"]
        return max(scorer.score(text, answer) for answer in doc["answers"])

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool:
        """Whether both texts have the same words, or make the same calls."""
        calls = read(reference)
        if calls or read(text):
            return equal(read(text), calls)
        return plain(text) == plain(reference)


def rows_of(place: str) -> list[tuple[str, Any]]:
    """The entries of a file, each with its place; those of BFCL in the form of ours."""
    rows = read_rows(place)
    return from_bfcl(rows, place) if rows and is_bfcl(rows[0][1]) else rows


def document_of(place: str, row: Any) -> Document:
    """An entry of a file as a document: its prompt or messages, and its right answers."""
    doc: Document = {"place": place, **(row if isinstance(row, dict) else {"prompt": row})}
    turns = doc.get("turns")
    if "messages" not in doc and isinstance(turns, list) and len(turns) > 1:
        doc["messages"] = [{"role": "user", "content": turn} for turn in turns]
    if "messages" in doc:
        check_messages(doc)
    else:
        texts = [doc[name] for name in TEXTS if doc.get(name) is not None]
        texts += turns if isinstance(turns, list) else []
        if not texts:
            names = shown(list(row))
            refuse(doc, f"it holds {names} and no prompt. Write lines such as {EXAMPLE}")
        doc["prompt"] = texts[0]
        check_text(doc, texts[0], "prompt")
        check_whole(doc)
    if "system" in doc:
        check_text(doc, doc["system"], "system text")
    if "tools" in doc:
        doc["tools"] = tools_of(place, doc["tools"])
        doc["answers"] = [expected_calls(place, doc.get("calls"))]
    elif "answer" in doc or "answers" in doc:
        doc["answers"] = answers_of(doc)
    return doc


def check_messages(doc: Document) -> None:
    """Refuse messages that are no conversation; a last answer of the assistant becomes the right
    one.
    """
    messages = doc["messages"]
    is_list = isinstance(messages, list) and messages
    if not is_list or not all(isinstance(turn, dict) and "role" in turn for turn in messages):
        refuse(doc, "its messages are no list of turns with role and content")
    messages = doc["messages"] = [as_text(turn) for turn in messages]
    if messages[-1]["role"] == "assistant":
        doc["messages"] = messages[:-1]
        if "tools" in doc:
            doc.setdefault("calls", calls_of(messages[-1]))
        elif "answer" not in doc:
            doc["answer"] = messages[-1].get("content")
            doc["is_reference"] = True
    for turn in doc["messages"]:
        if not calls_of(turn):
            check_text(doc, turn.get("content"), "message")
    if not doc["messages"] or doc["messages"][-1]["role"] not in ("user", "tool"):
        refuse(doc, "its messages do not end with a turn of the user")


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


def answers_in(docs: Sequence[Document]) -> list[Any]:
    """All right answers."""
    return list(chain.from_iterable(doc["answers"] for doc in docs))


def scorer_of(doc: Document, usual: Scorer) -> Scorer:
    """What scores the answers to an entry: the schemas of its tools, the scorer that it names, else
    the usual one.
    """
    if "tools" in doc:
        return ToolCalls(doc["tools"])
    return scorer_named(str(doc["scorer"])) if "scorer" in doc else usual


def check_answers(doc: Document, scorer: Scorer) -> None:
    """Refuse right answers of an entry that a scorer cannot compare."""
    for answer in doc["answers"]:
        try:
            scorer.check(answer)
        except UserError as error:
            refuse(doc, str(error))


def refuse(doc: Document, why: str) -> None:
    """Raise a UserError about an entry."""
    raise UserError(f"{doc['place']} cannot be used: {why}.")
