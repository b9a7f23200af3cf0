"""Conversations of the Berkeley Function Calling Leaderboard (BFCL, categories `multi_turn_*`):
calls are executed by its simulated classes, and its own checker scores them.

Both are those of the package `bfcl-eval`. They evaluate calls as Python code, so nothing reaches
them but calls of known functions with values of JSON.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

from gistgate.core.utils import UserError
from gistgate.tasks.bfcl import possible_answers, tool_of
from gistgate.tasks.task import Document, Messages, Task, TaskSpec, Turns
from gistgate.tasks.tool_calls import read, says_the_same

PACKAGE = "bfcl_eval"
STEPS = 21
"""Answers to one turn of the user after which BFCL gives a conversation up."""
MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"
"""What BFCL says in the place of the user when it adds functions."""
UNKNOWN = "unknown_function()"
"""A call that fails, in place of one of another function or with other names."""


def is_conversation(row: Any) -> bool:
    """Whether an entry of a file is a conversation of BFCL with simulated classes."""
    entries = {"id", "question", "initial_config", "involved_classes"}
    return isinstance(row, dict) and entries <= row.keys()


class BfclTurns(Task):
    """A file of conversations, each of which is right or not, as BFCL says."""

    name = "BFCL conversations"
    metric = "checker of BFCL (states and results)"
    calls_tools = True
    scores_turns = True

    def __init__(self, rows: Sequence[tuple[str, Any]], place: str, spec: TaskSpec) -> None:
        """Read `rows`, each with its place in the file `place`; UserError names the place of what
        cannot be used.
        """
        self.simulator = Simulator()
        truths = possible_answers(Path(place))
        self.docs: list[Document] = []
        for where, row in rows:
            if not is_conversation(row):
                raise UserError(f"{where} is no such conversation as the first one. Leave it out.")
            truth = row.get("ground_truth", truths.get(row["id"]))
            if truth is None:
                raise UserError(
                    f"{where} has no ground_truth. Keep the file of this name in the folder"
                    " possible_answer beside it, as bfcl-eval has it."
                )
            doc = {**row, "place": where, "ground_truth": truth}
            self.simulator.check(doc)
            self.docs.append(doc)
        self.max_new_tokens = spec.max_new_tokens
        self.prompting = replace(spec.prompting, chat_template=True)

    def documents(self, split: str) -> list[Document]:
        """All conversations, whatever the split."""
        return self.docs

    def question(self, doc: Document) -> str:
        """The turns of the user behind the name of the conversation, whose configuration they do
        not say.
        """
        texts = [message["content"] for turn in doc["question"] for message in turn]
        return "\n".join([doc["id"], *texts])

    problem = question

    def context(self, doc: Document, tokenizer: object) -> str:
        """The same; servers get messages."""
        return self.question(doc)

    def messages(self, doc: Document) -> Messages:
        """The turns of the user behind the system text."""
        return [*self.opening, *(message for turn in doc["question"] for message in turn)]

    @property
    def opening(self) -> Messages:
        """The system text, if there is one."""
        system = self.prompting.system
        return [{"role": "system", "content": system}] if system else []

    def entries(self, doc: Document) -> dict[str, Any]:
        """The tools of the first turn."""
        return {"tools": self.simulator.tools(doc, 0)}

    def setting(self, doc: Document) -> Any:
        """What the simulated classes begin with."""
        return [doc["id"], doc["initial_config"], doc["involved_classes"]]

    def turns(self, doc: Document) -> Turns:
        """The requests of a conversation: each server reads the results of its own calls, until it
        calls nothing more, and then the next turn of the user.
        """
        run = self.simulator.begin()
        history = self.opening
        try:
            for at, messages in enumerate(doc["question"]):
                is_extended = str(at) in doc.get("missed_function", {})
                added = [{"role": "user", "content": MORE_TOOLS}] if is_extended else messages
                history = [*history, *added]
                tools = {"tools": self.simulator.tools(doc, at)}
                for _ in range(STEPS):
                    text = yield history, tools
                    calls = self.simulator.code(doc, text)
                    if not calls:
                        history = [*history, {"role": "assistant", "content": text}]
                        break
                    results = self.simulator.results(doc, calls, run)
                    history = [*history, *exchange(text, results, len(history))]
                else:
                    return
        finally:
            self.simulator.end(run)

    def score(self, doc: Document, text: str) -> float:
        """What a conversation of one answer is worth."""
        return self.score_turns(doc, [text])

    def score_turns(self, doc: Document, texts: Sequence[str]) -> float:
        """1 if every turn leaves the right states and gives the right results, else 0."""
        turns: list[list[list[str]]] = [[]]
        for text in texts:
            calls = self.simulator.code(doc, text)
            if calls:
                turns[-1].append(calls)
            else:
                turns.append([])
        if not turns[-1]:
            turns.pop()
        return float(self.simulator.is_right(doc, turns))

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool:
        """Whether both texts have the same words, or make the same calls."""
        return says_the_same(text, reference)


def exchange(text: str, results: Sequence[str], number: int) -> Messages:
    """An answer with calls and their results as messages; ids begin at `number`."""
    calls = []
    answers = []
    for at, (call, result) in enumerate(zip(read(text), results, strict=True)):
        name = f"call{number:03}{at:02}"  # nine letters and digits, as Mistral wants them
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        calls.append({"id": name, "type": "function", "function": function})
        answers.append({"role": "tool", "tool_call_id": name, "content": result})
    content = json.loads(text)["content"]
    return [{"role": "assistant", "content": content, "tool_calls": calls}, *answers]


class Simulator:
    """The simulated classes and the checker of the package `bfcl-eval`."""

    def __init__(self) -> None:
        try:
            place = f"{PACKAGE}.eval_checker.multi_turn_eval"
            self.calling = import_module(f"{place}.multi_turn_utils")
            self.checker = import_module(f"{place}.multi_turn_checker")
            mapping = import_module(f"{PACKAGE}.constants.executable_backend_config")
            self.files: Mapping[str, str] = mapping.MULTI_TURN_FUNC_DOC_FILE_MAPPING
        except ImportError as error:
            raise UserError(
                "Conversations of BFCL are played and scored by its own package, which is missing"
                f" ({error}): pip install --no-deps bfcl-eval mpmath."
            ) from error
        self.known: dict[str, list[dict[str, Any]]] = {}

    def functions(self, doc: Document) -> list[dict[str, Any]]:
        """The descriptions of all functions of a conversation."""
        functions = []
        for name in doc["involved_classes"]:
            if name not in self.known:
                folder = files(PACKAGE) / "data" / "multi_turn_func_doc"
                lines = (folder / self.files[name]).read_text(encoding="utf-8").splitlines()
                self.known[name] = [json.loads(line) for line in lines if line.strip()]
            functions += self.known[name]
        return functions

    def tools(self, doc: Document, turn: int) -> list[dict[str, Any]]:
        """The tools of a turn: without those that a later one adds."""
        missed: set[str] = set()
        for at, names in doc.get("missed_function", {}).items():
            if int(at) > turn:
                missed |= {*names}
        functions = self.functions(doc)
        return [tool_of(function) for function in functions if function["name"] not in missed]

    def names(self, doc: Document) -> set[str]:
        """The names of all functions of a conversation."""
        return {function["name"] for function in self.functions(doc)}

    def check(self, doc: Document) -> None:
        """Refuse a conversation with other classes, or right answers that are no such calls."""
        unknown = [name for name in doc["involved_classes"] if name not in self.files]
        if unknown:
            raise UserError(
                f"{doc['place']} involves '{unknown[0]}', which this bfcl-eval does not have."
                " Install its newest version."
            )
        names = self.names(doc)
        for call in (call for turn in doc["ground_truth"] for call in turn):
            if not is_plain_call(call, names):
                raise UserError(
                    f"{doc['place']} cannot be used: its ground_truth holds {call!r}, which calls"
                    " none of its functions with plain values."
                )

    def code(self, doc: Document, text: str) -> list[str]:
        """The calls in an answer as BFCL writes them; none if the arguments of one are no JSON."""
        names = self.names(doc)
        lines = []
        for call in read(text):
            if not isinstance(call["arguments"], dict):
                return []
            arguments = ",".join(f"{name}={entry!r}" for name, entry in call["arguments"].items())
            line = f"{call['name']}({arguments})"
            lines.append(line if is_plain_call(line, names) else UNKNOWN)
        return lines

    def begin(self) -> str:
        """A name for what the calls of one conversation change."""
        return f"gistgate_{uuid4().hex}"

    def results(self, doc: Document, calls: Sequence[str], run: str) -> list[str]:
        """What calls give, in the states that those before have left."""
        results, _ = self.calling.execute_multi_turn_func_call(
            list(calls),
            doc["initial_config"],
            doc["involved_classes"],
            run,
            doc["id"],
            long_context="long_context" in doc["id"],
        )
        return list(results)

    def is_right(self, doc: Document, turns: list[list[list[str]]]) -> bool:
        """What the checker says of the calls of all turns, each in its steps."""
        truth = doc["ground_truth"]
        if len(turns) != len(truth):
            return False
        run = self.begin()
        try:
            verdict = self.checker.multi_turn_checker(turns, truth, doc, "", run)
        finally:
            self.end(run)
        return bool(verdict["valid"])

    def end(self, run: str) -> None:
        """Forget the states of a conversation, which the package keeps as globals."""
        states = vars(self.calling)
        for name in [name for name in states if name.startswith(run)]:
            del states[name]


def is_plain_call(text: str, names: set[str]) -> bool:
    """Whether a text is the Python call of one of these functions with values alone."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return False
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return False
    return call.func.id in names
