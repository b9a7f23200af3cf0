"""Prompts of one's own, in place of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from gistgate.core.utils import UserError, shown
from gistgate.models.options import TEXTS, as_text, read_rows
from gistgate.tasks.bfcl import from_bfcl, is_bfcl
from gistgate.tasks.scorers import SCORERS, Scorer, plain, scorer_named, strictest
from gistgate.tasks.task import Document, Messages, Task, TaskSpec, Turns
from gistgate.tasks.tool_calls import ToolCalls, calls_of, equal, expected_calls, read, tools_of
from gistgate.tasks.turns import conversation, references

EXAMPLE = '{"prompt": "2 + 2?", "answer": "4"}, or with "messages" of a chat in place of a prompt'
BESIDE = ("context", "passage", "choices", "options")
"""Entries of data sets that belong into a prompt."""
REFERENCE = "f1"  # scorer of the last answer of a conversation that a file holds to its end


class PromptFile(Task):
    """Entries with a prompt or the messages of a chat, and an `answer` where one is known.

    An entry may have a system text of its own (`system`), several right answers (a list), and a
    `scorer`; without one the strictest that fits all answers of the file is taken. An entry with
    `tools` is scored by the calls of these, and may name the `calls` that are expected. So may each
    of the `turns` of a conversation.
    """

    name = "own prompts"

    def __init__(
        self,
        rows: Sequence[tuple[str, Any]],
        spec: TaskSpec,
        scorer: str | None = None,
        replays: bool = False,  # whether answers that stand in a conversation are sent
        scores_turns: bool = False,  # whether all turns of a conversation are scored
    ) -> None:
        """Read `rows`, each with its place in the file; UserError names the place of what cannot be
        used.
        """
        self.replays = replays
        self.scores_turns = scores_turns
        if spec.data or spec.metric or spec.allow_code or spec.prompting.num_fewshot:
            raise UserError(
                "--task-data, --metric, --allow-code and --num-fewshot belong to a task. Leave them"
                " out."
            )
        self.docs = [document_of(place, row) for place, row in rows]
        if not self.docs:
            raise UserError(f"There is no prompt in the file. Write lines such as {EXAMPLE}.")
        if scores_turns:
            for doc in self.docs:
                doc["earlier"] = doc["earlier"] or written_answers(doc)
        self.max_new_tokens = spec.max_new_tokens
        is_chat = spec.prompting.chat_template or any(
            "messages" in doc or "tools" in doc for doc in self.docs
        )
        self.prompting = replace(spec.prompting, chat_template=is_chat)
        if not is_chat:
            for doc in self.docs:
                if "system" in doc:
                    refuse(doc, "a system text needs a chat. Add --chat")
        self.judges = any(map(self.goals, self.docs))
        if self.judges:
            self.choose_scorers(scorer)

    def goals(self, doc: Document) -> list[Document]:
        """What is scored of an entry: the turns whose right answers are known, of which the last is
        the entry itself.
        """
        turns = [*doc["earlier"], doc] if self.scores_turns else [doc]
        return [turn for turn in turns if "answers" in turn]

    def choose_scorers(self, name: str | None) -> None:
        """Give each turn that is scored its scorer, and refuse answers that cannot be compared."""
        for doc in self.docs:
            if not self.goals(doc):
                refuse(doc, "it has no answer, and other entries have. Add one to each, or none")
        goals = [goal for doc in self.docs for goal in self.goals(doc)]
        texts = [goal for goal in goals if "tools" not in goal]
        usual = scorer_named(name) if name is not None else strictest(answers_in(texts))
        ids = set()
        for goal in goals:
            if goal.get("is_reference") and name is None:
                scorer = scorer_of(goal, SCORERS[REFERENCE])
            else:
                scorer = scorer_of(goal, usual)
            goal["scorer"] = scorer.id
            goal["compares"] = scorer
            ids.add(scorer.id)
            check_answers(goal, scorer)
            self.ternary = self.ternary and scorer.ternary
        self.metric = f"scorer {' and '.join(sorted(ids))}"
        self.calls_tools = len(texts) < len(goals)
        unknown = sum(goal["answers"] == [None] for goal in goals)
        if unknown:
            self.metric += f" (validity alone in {unknown} of {len(goals)} entries)"
        if len(goals) > len(self.docs):
            self.metric += ", mean over the turns of a conversation"
            self.ternary = False

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

    def turns(self, doc: Document) -> Turns:
        """The requests of an entry: one, or those of a conversation."""
        if not self.prompting.chat_template:
            return super().turns(doc)
        asks_all = self.scores_turns and not self.shortens(doc)
        return conversation(self.messages(doc), self.entries(doc), asks_all)

    def setting(self, doc: Document) -> Any:
        """Whether answers are asked for that stand in the conversation."""
        is_written = any(turn["role"] == "assistant" for turn in self.messages(doc))
        return "all turns" if self.scores_turns and is_written else None

    def shortens(self, doc: Document) -> bool:
        """Whether answers stand in the conversation that are not sent."""
        roles = {turn["role"] for turn in doc.get("messages") or ()}
        return "assistant" in roles and not (self.replays or "tools" in doc)

    @property
    def shortened(self) -> int:
        """Entries with answers that are not sent."""
        return sum(map(self.shortens, self.docs))

    @property
    def unscored(self) -> int:
        """Entries with right answers to earlier turns, which are not scored."""
        if self.scores_turns:
            return 0
        return sum(any("answers" in turn for turn in doc["earlier"]) for doc in self.docs)

    def entries(self, doc: Document) -> dict[str, Any]:
        """The tools, and how they are chosen."""
        return {name: doc[name] for name in ("tools", "tool_choice") if name in doc}

    def score(self, doc: Document, text: str) -> float:
        """What an answer is worth: the best of what its right answers say."""
        scorer: Scorer = doc["compares"]
        return max(scorer.score(text, answer) for answer in doc["answers"])

    def score_turns(self, doc: Document, texts: Sequence[str]) -> float:
        """The mean of what the answers are worth whose right ones are known."""
        turns = [*doc["earlier"], doc][-len(texts) :]
        scores = []
        for turn, text in zip(turns, texts, strict=True):
            if "answers" in turn:
                scores.append(self.score(turn, text))
        return fmean(scores)

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
    doc["earlier"] = []
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
        refuse(doc, f"it holds something else than a prompt. Write lines such as {EXAMPLE}")
    return texts[0]


def take_turns(doc: Document) -> None:
    """Put the `turns` of an entry, texts or objects such as an entry, into its messages; the last
    one is the entry itself.
    """
    turns = []
    for at, turn in enumerate(doc["turns"], start=1):
        entries = turn if isinstance(turn, dict) else {"prompt": turn}
        turns.append({**entries, "place": f"{doc['place']} turn {at},"})
    if len(turns) > 1:
        doc["messages"] = [{"role": "user", "content": text_of(turn)} for turn in turns]
    for name, entry in turns.pop().items() if turns else ():
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
