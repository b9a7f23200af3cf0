"""Calls of tools: what a server wrote, whether it fits the tools, and whether it was expected.

An answer with calls is one text, as `written` writes it, so that it is kept, compared and scored as
any other. Tools and calls have OpenAI's form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from gistgate.core.utils import UserError
from gistgate.tasks.bfcl import ANY, permits
from gistgate.tasks.scorers import Scorer, json_in, plain

UNREAD = re.compile(
    r"</?tool_calls?>|<\|?tool▁calls?|<｜tool▁calls?|\[TOOL_CALLS\]|<\|python_tag\|>|<function[=_]"
    r"|functools\[|<\|tool_calls?|<\|START_ACTION\|>|<minimax:tool_call>"
    r"|<\|channel\|>commentary to="
)
"""Marks of calls that a server left in a text."""
FORM = 'Write "tools" as OpenAI has them: [{"type": "function", "function": {"name": ...}}].'


def written(text: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """An answer with its calls, each with name and arguments as OpenAI sends them, as one text."""
    if not calls:
        return text
    return json.dumps({"content": text, "tool_calls": calls}, ensure_ascii=False)


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The calls in a message, each with its name and its arguments, which are mostly a text."""
    calls = message.get("tool_calls") or []
    if message.get("function_call"):
        calls = [{"function": message["function_call"]}]
    functions = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") or call if isinstance(call, dict) else {}
        arguments = function.get("arguments")
        if isinstance(arguments, dict):  # as some versions of llama.cpp and Ollama send them
            arguments = json.dumps(arguments)
        functions.append({"name": function.get("name"), "arguments": arguments})
    return functions


def read(text: str) -> list[dict[str, Any]]:
    """The calls in a text of `written`, with arguments that are JSON as what they say."""
    with suppress(ValueError, TypeError, KeyError):
        calls = json.loads(text)["tool_calls"]
        return [{"name": call["name"], "arguments": value_of(call["arguments"])} for call in calls]
    return []


def value_of(arguments: Any) -> Any:
    """What arguments say; no arguments are an empty object, and what is no JSON stays a text."""
    with suppress(ValueError, TypeError):
        return json.loads(arguments or "{}")
    return arguments


@dataclass(frozen=True)
class ToolCalls(Scorer):
    """Calls are made or not as expected, have known names, fit the schema, and are the expected
    ones: each of these is an equal part of the score.
    """

    tools: Sequence[Mapping[str, Any]]

    id = "tools"
    ternary = False

    @cached_property
    def schemas(self) -> dict[str, Any]:
        """The schema of the arguments by the name of the tool."""
        functions = [tool["function"] for tool in self.tools]
        return {function["name"]: function.get("parameters") or {} for function in functions}

    def score(self, text: str, answer: Any) -> float:
        """What the calls in `text` are worth; `answer` has the expected calls, is ANY, or None
        where nothing is expected, and validity alone counts.
        """
        calls = read(text)
        if not calls and self.is_left_in(text):
            return 0.0
        if answer == []:
            return float(not calls)
        if not calls:
            return float(answer is None)
        parts = [
            fmean(call["name"] in self.schemas for call in calls),
            fmean(self.fits(call) for call in calls),
        ]
        if answer is not None:
            parts.append(1.0)
        if isinstance(answer, list):
            parts.append(self.matched(calls, answer) / max(len(calls), len(answer)))
        return fmean(parts)

    def check(self, answer: Any) -> None:
        """Expected calls are checked where they are read."""

    def is_left_in(self, text: str) -> bool:
        """Whether a server left a call in a text: behind a mark, or as JSON or Python that names a
        tool.
        """
        if UNREAD.search(text):
            return True
        python = re.match(r"\s*\[?\s*(\w+)\(", text)
        if python and python[1] in self.schemas:
            return True
        value = json_in(text)
        for call in value if isinstance(value, list) else [value]:
            function = call.get("function") or call if isinstance(call, dict) else {}
            if isinstance(function, dict) and function.get("name") in self.schemas:
                return bool(function.keys() & {"arguments", "parameters"})
        return False

    def fits(self, call: Mapping[str, Any]) -> bool:
        """Whether the arguments of a call are those that its tool takes."""
        from jsonschema import Draft202012Validator

        schema = self.schemas.get(call["name"])
        return (
            schema is not None
            and isinstance(call["arguments"], dict)
            and Draft202012Validator(schema).is_valid(call["arguments"])
        )

    def matched(
        self, calls: Sequence[Mapping[str, Any]], expected: Sequence[Mapping[str, Any]]
    ) -> int:
        """How many of the expected calls were made, in whatever order."""
        left = list(calls)
        count = 0
        for wanted in expected:
            call = next((call for call in left if self.is_wanted(call, wanted)), None)
            if call is not None:
                left.remove(call)
                count += 1
        return count

    def is_wanted(self, call: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        """Whether a call is the wanted one; an argument with its default value may be left out."""
        if call["name"] != wanted["name"] or not isinstance(call["arguments"], dict):
            return False
        if "permitted" in wanted:
            return permits(wanted["permitted"], call["arguments"])
        properties = self.schemas.get(call["name"], {}).get("properties", {})
        defaults = {
            name: entry["default"]
            for name, entry in properties.items()
            if isinstance(entry, dict) and "default" in entry
        }
        return equal({**defaults, **call["arguments"]}, {**defaults, **wanted["arguments"]})


def says_the_same(text: str, reference: str) -> bool:
    """Whether two answers have the same words, or make the same calls."""
    calls = read(reference)
    if calls or read(text):
        return equal(read(text), calls)
    return plain(text) == plain(reference)


def equal(value: Any, expected: Any) -> bool:
    """Whether two values of JSON are equal, texts in one case and form."""
    if isinstance(value, str) and isinstance(expected, str):
        return plain(value) == plain(expected)
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            equal(value[name], expected[name]) for name in value
        )
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(equal, value, expected))
    return bool(isinstance(value, bool) == isinstance(expected, bool) and value == expected)


def tools_of(where: str, tools: Any) -> list[dict[str, Any]]:
    """The tools of an entry; UserError if they do not have OpenAI's form, or if a schema is none or
    lies elsewhere.
    """
    from jsonschema import Draft202012Validator, SchemaError

    tools = value_of(tools)
    if not isinstance(tools, list) or not tools:
        raise UserError(f"{where} cannot be used: its tools are no list. {FORM}")
    checked: list[dict[str, Any]] = [wrapped(tool) for tool in tools]
    for tool in checked:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(f"{where} cannot be used: a tool of it has no function with a name.")
        schema = function.get("parameters") or {}
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise UserError(
                f"{where} cannot be used: the parameters of '{function['name']}' are no JSON Schema"
                f" ({error.message})."
            ) from error
        if re.search(r'"\$ref": "(?!#)', json.dumps(schema)):
            raise UserError(
                f"{where} cannot be used: the parameters of '{function['name']}' refer to another"
                " document. Write them into the line."
            )
    return checked


def wrapped(tool: Any) -> Any:
    """A tool in OpenAI's form, also if its function stands alone."""
    if isinstance(tool, dict) and "function" not in tool and "name" in tool:
        function = {name: entry for name, entry in tool.items() if name != "type"}
        return {"type": "function", "function": function}
    return tool


def expected_calls(where: str, calls: Any) -> Any:
    """The expected calls of an entry in one form; none (None), some (ANY), or each by name and
    arguments, or as OpenAI sends them.
    """
    if calls is None or calls == ANY:
        return calls
    expected = []
    for call in calls if isinstance(calls, list) else [calls]:
        if isinstance(call, dict) and "permitted" in call:
            expected.append(call)
            continue
        function = call.get("function") or call if isinstance(call, dict) else {}
        arguments = value_of(function.get("arguments"))
        if not isinstance(function.get("name"), str) or not isinstance(arguments, dict):
            raise UserError(
                f"{where} cannot be used: an expected call has no name or no arguments. Write"
                ' "calls": [{"name": "add", "arguments": {"a": 1}}], or [] for none.'
            )
        expected.append({"name": function["name"], "arguments": arguments})
    return expected
