"""Two servers that call tools: calls are sent for, kept and scored."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gistgate.certify.card import Card
from gistgate.cli.certify import Options
from gistgate.cli.servers import compare
from gistgate.core.files import write_json_lines
from gistgate.core.utils import UserError
from tests.certify.scripted import Script, serving

NUMBERS = range(40)
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
        },
    },
}


def page(arguments: str) -> dict[str, Any]:
    """An answer that calls the tool."""
    function = {"name": "add", "arguments": arguments}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return {"model": "adder", "choices": [choice], "usage": {"completion_tokens": 7}}


def certified(
    folder: Path,
    loose: dict[int, Any],
    rows: list[dict[str, Any]],
    scripts: list[Script] | None = None,
    **changes: Any,
) -> Card:
    write_json_lines(folder / "own.jsonl", rows)
    right = {n: page(json.dumps({"n": n})) for n in NUMBERS}
    with ExitStack() as servers:
        sides = scripts or [Script(pages=right), Script(pages=loose)]
        strict_url, loose_url = (servers.enter_context(serving(script)) for script in sides)
        options = Options(
            strict=strict_url,
            loose=loose_url,
            file=str(folder / "own.jsonl"),
            budget=0.2,
            prompts=len(NUMBERS),
            out=folder,
            ledger=folder / "judged.json",
            **changes,
        )
        return compare(options)[0]


def rows(**entries: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"{n} + 1?", "tools": [ADD], **entries} for n in NUMBERS]


def test_calls_that_fit_no_schema_are_lost(tmp_path, capsys):
    broken = {n: page(json.dumps({"n": str(n) if n % 2 else n})) for n in NUMBERS}
    card = certified(tmp_path, broken, rows(), stop="planned")
    assert card.design["claim"] == "tools"
    assert (card.tasks[0]["losses"], card.tasks[0]["gains"]) == (20, 0)
    assert card.loss == pytest.approx(0.25)
    assert "validity alone in 40 of 40 entries" in capsys.readouterr().out


def test_an_expected_call_counts_and_calls_may_differ_in_spaces(tmp_path):
    spaced = {n: page(f'{{ "n" : {n} }}') for n in NUMBERS}
    lines = [
        {**row, "calls": [{"name": "add", "arguments": {"n": n}}]} for n, row in enumerate(rows())
    ]
    assert certified(tmp_path, spaced, lines).verdict == "PASS"
    agreed = certified(tmp_path, spaced, lines, claim="agreement", draw=1)
    assert agreed.loss == 0


CALL = r'{"name": "add", "arguments": "{\"n\": N}"}'


@pytest.mark.parametrize(
    ("message", "reason", "loss"),
    [
        ('"tool_calls": [{"function": {"name": "add", "arguments": {"n": N}}}]', "stop", 0.0),
        (f'"tool_calls": [{{"id": "0", "index": 0, "function": {CALL}}}]', "stop", 0.0),
        (f'"function_call": {CALL}', "function_call", 0.0),
        (f'"tool_calls": {{"function": {CALL}}}', "tool_calls", 0.0),
        (f'"tool_calls": [{{"id": "0", "function": {CALL}}}, {CALL}]', "tool_calls", 0.125),
        (r'"tool_calls": [{"name": "add", "arguments": "{\"n\": N"}]', "length", 0.5),
        ('"tool_calls": []', "tool_calls", 1.0),
        ('"tool_calls": null', "stop", 1.0),
        ('"content": "It is N.", "tool_calls": []', "tool_calls", 1.0),
        ('"content": "<tool_call>{\\"name\\": \\"add\\"}</tool_call>"', "stop", 1.0),
    ],
)
def test_calls_in_whatever_form_a_server_sends_them(tmp_path, message, reason, loss):
    lines = []
    loose = {}
    for n in NUMBERS:
        lines.append({**rows()[n], "calls": [{"name": "add", "arguments": {"n": n}}]})
        said = {"content": None, **json.loads(f"{{{message.replace('N', str(n))}}}")}
        choice = {"index": 0, "finish_reason": reason, "message": said}
        loose[n] = {"model": "adder", "choices": [choice], "usage": {"completion_tokens": 7}}
    card = certified(tmp_path, loose, lines, stop="planned", control=0)
    assert card.loss == pytest.approx(loss)
    assert (card.tasks[0]["differing"] == 0) == (loss == 0)


def test_a_tool_that_is_called_before_the_last_turn_has_no_known_result(tmp_path):
    lines = [{"turns": ["Hello: 90 + 1?", f"{n} + 1?"], "tools": [ADD]} for n in NUMBERS]
    early = {n: page(json.dumps({"n": n})) for n in (*NUMBERS, 90)}
    with pytest.raises(UserError, match="line .* was refused. A tool was called in a turn before"):
        certified(tmp_path, early, lines)


def test_conversations_of_bfcl_are_played_with_the_results_of_calls(tmp_path, capsys):
    pytest.importorskip("bfcl_eval")
    folder = {"workspace": {"type": "directory", "contents": {}}}
    lines = []
    strict = {}
    loose = {}
    for n in NUMBERS:
        said = f"{1000 + n} + 1?"
        strict[n] = echoing(said)
        loose[n] = echoing(said if n % 4 else "2000 + 1?")
        lines.append(
            {
                "id": f"multi_turn_base_{n}",
                "question": [[{"role": "user", "content": f"{n} + 1?"}]],
                "initial_config": {"GorillaFileSystem": {"root": folder}},
                "involved_classes": ["GorillaFileSystem"],
                "ground_truth": [[f"echo(content={said!r})"]],
            }
        )
    servers = [Script(pages=strict), Script(pages=loose)]
    card = certified(tmp_path, loose, lines, servers, stop="planned", keep_texts=True)
    assert (card.design["claim"], card.tasks[0]["losses"]) == ("tools", 10)
    assert "Answers are compared by the checker of BFCL" in capsys.readouterr().out
    assert card.control["baseline"]["differing"] == 0
    last = servers[0].asked[0]
    assert last["messages"][-1]["role"] == "tool" and last["tools"]


def echoing(text: str) -> dict[str, Any]:
    """An answer that calls `echo`, whose result is the text."""
    function = {"name": "echo", "arguments": json.dumps({"content": text})}
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return {"model": "adder", "choices": [choice], "usage": {"completion_tokens": 7}}


def test_a_call_without_tools_is_none(tmp_path):
    lines = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in NUMBERS]
    with pytest.raises(UserError, match="ended an answer with 'tool_calls'"):
        certified(tmp_path, {}, lines, chat=True)
    with pytest.raises(UserError, match="has no tools"):
        certified(tmp_path, {}, lines, claim="tools")
