"""Entries of the Berkeley Function Calling Leaderboard (BFCL, https://gorilla.cs.berkeley.edu), in
the form of our files: messages, tools and expected calls.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gistgate.core.files import read_json_lines
from gistgate.core.utils import UserError

ANY = "any"  # in place of expected calls: some call
TYPES = {
    "dict": "object",
    "hashmap": "object",
    "hashtable": "object",
    "float": "number",
    "double": "number",
    "tuple": "array",
    "list": "array",
    "arraylist": "array",
    "queue": "array",
    "stack": "array",
    "bool": "boolean",
    "long": "integer",
    "short": "integer",
    "byte": "integer",
    "bigint": "integer",
    "char": "string",
}
"""Types of BFCL that JSON Schema calls otherwise."""


def is_bfcl(row: Any) -> bool:
    """Whether an entry of a file has the form of BFCL."""
    if not isinstance(row, dict) or not {"id", "question"} <= row.keys():
        return False
    return "function" in row or "involved_classes" in row


def from_bfcl(rows: Sequence[tuple[str, Any]], place: str) -> list[tuple[str, Any]]:
    """Entries of BFCL with messages, tools and expected calls; their answers stand in the entries,
    or in a file of the same name in the folder `possible_answer` beside theirs.
    """
    truths = possible_answers(Path(place))
    entries = []
    for where, row in rows:
        if not is_bfcl(row):
            raise UserError(f"{where} is no entry of BFCL as the first one is. Leave it out.")
        if "function" not in row:
            raise UserError(
                f"{where} is an entry of BFCL's agents, which need a memory or a search of the web."
                " Take another category."
            )
        question = row["question"]
        if isinstance(question, str):
            question = [{"role": "user", "content": question}]
        turns = question[0] if question and isinstance(question[0], list) else question
        functions = row["function"] if isinstance(row["function"], list) else [row["function"]]
        entry = {"messages": turns, "tools": [tool_of(function) for function in functions]}
        truth = row.get("ground_truth", truths.get(row["id"]))
        if truth is not None:
            entry["calls"] = [permitted_call(where, call) for call in truth]
        elif "irrelevance" in str(row["id"]):
            entry["calls"] = []
        elif "relevance" in str(row["id"]):
            entry["calls"] = ANY
        entries.append((where, entry))
    return entries


def possible_answers(file: Path) -> dict[str, Any]:
    """The calls that BFCL permits, by the id of an entry of `file`."""
    answers = file.parent / "possible_answer" / file.name
    if not answers.is_file():
        return {}
    truths = {}
    for row in read_json_lines(answers):
        truths[row["id"]] = row["ground_truth"]
    return truths


def permitted_call(where: str, call: Any) -> dict[str, Any]:
    """A call of BFCL, {name: {argument: permitted values}}, in our form."""
    if not isinstance(call, dict) or len(call) != 1:
        raise UserError(f"{where} cannot be used: its ground_truth is no list of single calls.")
    [(name, permitted)] = call.items()
    return {"name": name.replace(".", "_"), "arguments": {}, "permitted": permitted}


def tool_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function of BFCL as a tool; servers take no dots in names."""
    parameters = schema_of(function.get("parameters") or {})
    name = str(function["name"]).replace(".", "_")
    return {"type": "function", "function": {**function, "name": name, "parameters": parameters}}


def schema_of(value: Any) -> Any:
    """A schema with the types that JSON Schema knows."""
    if isinstance(value, list):
        return [schema_of(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    schema = {name: schema_of(entry) for name, entry in value.items()}
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = TYPES.get(kind.lower(), kind.lower())
        if schema["type"] == "any":
            del schema["type"]
    return schema


def permits(permitted: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Whether each argument is one of its permitted values, as BFCL checks it; "" among these
    permits to leave it out.
    """
    if not arguments.keys() <= permitted.keys():
        return False
    for name, values in permitted.items():
        if name not in arguments:
            if "" not in values:
                return False
        elif not any(is_permitted(arguments[name], value) for value in values):
            return False
    return True


def is_permitted(value: Any, expected: Any) -> bool:
    """Whether a value is a permitted one, within which an object has lists of permitted values."""
    if isinstance(value, str) and isinstance(expected, str):
        return standard(value) == standard(expected)
    if isinstance(value, dict) and isinstance(expected, dict):
        return permits(expected, value)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(is_permitted, value, expected))
    return isinstance(value, bool) == isinstance(expected, bool) and bool(value == expected)


def standard(text: str) -> str:
    """A text as BFCL compares it: without spaces and some signs, in one case."""
    return re.sub(r"[ ,./\-_*^]", "", text).lower().replace("'", '"')
