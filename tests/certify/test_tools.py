"""Two servers that call tools: calls are sent for, kept and scored."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

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


def certified(folder: Path, loose: dict[int, Any], rows: list[dict[str, Any]], **changes: Any):
    write_json_lines(folder / "own.jsonl", rows)
    right = {n: page(json.dumps({"n": n})) for n in NUMBERS}
    with ExitStack() as servers:
        sides = [Script(pages=right), Script(pages=loose)]
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


def test_a_call_without_tools_is_none(tmp_path):
    lines = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in NUMBERS]
    with pytest.raises(UserError, match="ended an answer with 'tool_calls'"):
        certified(tmp_path, {}, lines, chat=True)
    with pytest.raises(UserError, match="has no tools"):
        certified(tmp_path, {}, lines, claim="tools")
