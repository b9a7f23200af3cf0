"""Calls of tools: their parts of a score, what is refused, and entries of BFCL."""

import json
from pathlib import Path
from typing import Any

import pytest

from gistgate.core.files import write_json_lines
from gistgate.core.utils import UserError
from gistgate.models.options import read_rows
from gistgate.tasks.bfcl import from_bfcl
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.task import TaskSpec
from gistgate.tasks.tool_calls import written

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "default": "C"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
OSLO = {"city": "Oslo", "days": 3}
WANTED = [{"name": "weather", "arguments": OSLO}]


def call(arguments: Any, name: str = "weather") -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return written("", [{"name": name, "arguments": text}])


def scored(text: str, **entry: Any) -> float:
    row = {"messages": [{"role": "user", "content": "Rain?"}], "tools": [TOOL], **entry}
    task = PromptFile([("line 1,", row)], TaskSpec("own"))
    return task.score(task.docs[0], text)


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        (call(OSLO), 1.0),
        (call({"city": "oslo", "days": 3, "unit": "C"}), 1.0),
        (call({"city": "Bergen", "days": 3}), 0.75),
        (call({"city": "Oslo", "days": "3"}), 0.5),
        (call({"city": "Oslo"}), 0.5),
        (call('{"city": "Oslo", "days": 3'), 0.5),
        (call(OSLO, "whether"), 0.25),
        (written("", [{"name": "weather", "arguments": json.dumps(OSLO)}] * 2), 0.875),
        ("It rains.", 0.0),
    ],
)
def test_a_call_is_worth_its_parts(text, worth):
    assert scored(text, calls=WANTED) == pytest.approx(worth)
    reference = {"role": "assistant", "content": None, "tool_calls": [{"function": WANTED[0]}]}
    turns = [{"role": "user", "content": "Rain?"}, reference]
    assert scored(text, messages=turns) == pytest.approx(worth)


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        (call(OSLO), 1.0),
        ("It rains.", 1.0),
        (call({"days": 3}), 0.5),
        (call(OSLO, "whether"), 0.0),
        ('<tool_call>{"name": "weather"}', 0.0),
        ('{"name": "weather", "parameters": {"city": "Oslo", "days": 3}}', 0.0),
        (
            '```json\n{"type": "function", "function": {"name": "weather", "arguments": {}}}\n```',
            0.0,
        ),
        ("[weather(city='Oslo', days=3)]", 0.0),
        ('{"name": "Oslo", "parameters": {"days": 3}}', 1.0),
        ("weather (in Oslo) is bad", 1.0),
    ],
)
def test_where_no_call_is_expected_by_name_validity_counts(text, worth):
    assert scored(text) == worth


def test_no_call_is_expected_or_any():
    assert scored("It rains.", calls=[]) == 1.0
    assert scored(call(OSLO), calls=[]) == 0.0
    assert scored(call({"city": "Bergen", "days": 1}), calls="any") == 1.0
    assert scored("It rains.", calls="any") == 0.0


FUNCTION = TOOL["function"]


@pytest.mark.parametrize(
    "tools",
    [
        {"tools": json.dumps([TOOL])},
        {"tools": [{"type": "function", **FUNCTION}]},  # type: ignore[dict-item]
        {"functions": [FUNCTION]},
    ],
)
def test_tools_in_other_forms_are_read(tools):
    row = {"messages": [{"role": "user", "content": "Rain?"}], "calls": WANTED, **tools}
    task = PromptFile([("line 1,", row)], TaskSpec("own"))
    assert task.entries(task.docs[0])["tools"][0] == TOOL
    assert task.score(task.docs[0], call(OSLO)) == 1.0


def test_transcripts_are_sent_as_servers_take_them():
    """Clients write empty entries beside the others, and content in parts."""
    parts = [{"type": "text", "text": "Rain"}, {"type": "text", "text": "in Oslo?"}]
    dumped = {"role": "assistant", "content": "Wait.", "tool_calls": [], "function_call": None}
    asked = {"role": "assistant", "content": None, "function_call": {"name": "weather"}}
    told = {"role": "function", "name": "weather", "content": "Rain."}
    messages = [{"role": "user", "content": parts}, dumped, {"role": "user", "content": "So?"}]
    row = {"messages": [*messages, asked, told], "tools": [TOOL]}
    task = PromptFile([("line 1,", row)], TaskSpec("own"))
    sent = task.messages(task.docs[0])
    assert sent[0]["content"] == "Rain\nin Oslo?"
    assert sent[1] == {"role": "assistant", "content": "Wait."}
    assert sent[3:] == [asked, told]
    image = [{"type": "image_url", "image_url": {"url": "data:"}}, parts[0]]
    row = {"messages": [{"role": "user", "content": image}]}
    task = PromptFile([("line 1,", row)], TaskSpec("own"))
    assert task.messages(task.docs[0])[0]["content"] == image


def test_results_of_tools_are_sent_with_their_calls_without_tools_in_the_line():
    asked = {"role": "assistant", "content": None, "tool_calls": [{"function": WANTED[0]}]}
    messages = [
        {"role": "user", "content": "Rain?"},
        asked,
        {"role": "tool", "tool_call_id": "1", "content": "Rain."},
    ]
    task = PromptFile([("line 1,", {"messages": messages, "answer": "rain"})], TaskSpec("own"))
    assert task.messages(task.docs[0]) == messages and not task.shortened


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"tools": []}, "its tools are no list"),
        ({"tools": [{"type": "function"}]}, "no function with a name"),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"type": "dict"}}}]},
            "are no JSON Schema",
        ),
        (
            {"tools": [{"function": {"name": "a", "parameters": {"$ref": "http://a/b"}}}]},
            "another document",
        ),
        ({"calls": ["weather"]}, "an expected call has no name"),
    ],
)
def test_what_is_no_tool_or_call_is_refused_with_its_line(entry, sentence):
    with pytest.raises(UserError, match=f"line 1, .*{sentence}"):
        scored("", **entry)


BFCL = {
    "id": "parallel_0",
    "question": [[{"role": "user", "content": "Rain?"}]],
    "function": [
        {
            "name": "weather.now",
            "parameters": {
                "type": "dict",
                "properties": {"at": {"type": "dict"}, "hours": {"type": "float"}},
                "required": ["at"],
            },
        }
    ],
}
TRUTH = [{"weather.now": {"at": [{"city": ["Oslo", "Kristiania"]}], "hours": [2, ""]}}]


@pytest.mark.parametrize(
    ("arguments", "worth"),
    [
        ({"at": {"city": "oslo"}}, 1.0),
        ({"at": {"city": "Kristiania"}, "hours": 2.0}, 1.0),
        ({"at": {"city": "Bergen"}}, 0.75),
        ({"at": {"city": "Oslo", "land": "N"}}, 0.75),
        ({"at": {"city": "Oslo"}, "hours": 3}, 0.75),
    ],
)
def test_entries_of_bfcl_permit_lists_of_values(tmp_path: Path, arguments, worth):
    file = tmp_path / "BFCL_v4_parallel.json"
    write_json_lines(file, [BFCL, {**BFCL, "id": "irrelevance_1"}])
    (tmp_path / "possible_answer").mkdir()
    answers = tmp_path / "possible_answer" / file.name
    write_json_lines(answers, [{"id": "parallel_0", "ground_truth": TRUTH}])
    task = PromptFile(from_bfcl(read_rows(str(file)), str(file)), TaskSpec("own"))
    first, second = task.docs
    assert task.score(first, call(arguments, "weather_now")) == worth
    assert task.score(second, call(arguments, "weather_now")) == 0.0
    assert task.entries(first)["tools"][0]["function"]["parameters"]["type"] == "object"
