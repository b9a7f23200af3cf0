"""Prompts of one's own, in place of a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from gistgate.core.utils import UserError
from gistgate.tasks.prompt_entry import EXAMPLE, document_of, refuse, written_answers
from gistgate.tasks.scorers import SCORERS, Scorer, scorer_named, strictest
from gistgate.tasks.task import Document, Messages, Task, TaskSpec, Turns
from gistgate.tasks.tool_calls import ToolCalls, says_the_same
from gistgate.tasks.turns import conversation

OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
"""Entries that a request says beside the prompt."""
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
        is_chat = spec.prompting.chat_template or self.needs_chat()
        self.prompting = replace(spec.prompting, chat_template=is_chat)
        self.judges = any(map(self.goals, self.docs))
        if self.judges:
            self.choose_scorers(scorer)

    def needs_chat(self) -> bool:
        """Whether an entry cannot be asked otherwise than in a chat; UserError if one alone says
        so by its system text.
        """
        if any("messages" in doc or "tools" in doc for doc in self.docs):
            return True
        for doc in self.docs:
            if "system" in doc:
                refuse(doc, "a system text needs a chat. Add --chat")
        return False

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
        answers = answers_in(texts)
        usual = scorer_named(name) if name is not None else strictest(answers, len(texts))
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
        calls_tools = "tools" in doc or "tool" in roles or "function" in roles
        return "assistant" in roles and not (self.replays or calls_tools)

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
        return {name: doc[name] for name in OF_TOOLS if name in doc}

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
        return says_the_same(text, reference)


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
