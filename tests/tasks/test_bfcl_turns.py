"""Conversations of BFCL: calls are executed by its simulated classes and scored by its checker."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.tasks.bfcl_turns import MORE_TOOLS, STEPS, BfclTurns, is_conversation
from gistgate.tasks.task import TaskSpec
from gistgate.tasks.tool_calls import written

FILES = {"root": {"workspace": {"type": "directory", "contents": {}}}}
ROW: dict[str, Any] = {
    "id": "multi_turn_base_0",
    "question": [
        [{"role": "user", "content": "Make a folder temp."}],
        [{"role": "user", "content": "What is 1 + 2?"}],
    ],
    "initial_config": {"GorillaFileSystem": FILES},
    "involved_classes": ["GorillaFileSystem", "MathAPI"],
    "ground_truth": [["mkdir(dir_name='temp')"], ["add(1.0, b=2.0)"]],
}


def call(name: str, **arguments: Any) -> str:
    return written("", [{"name": name, "arguments": json.dumps(arguments)}])


MAKE = call("mkdir", dir_name="temp")
ADD = call("add", a=1.0, b=2.0)
PAIR = written("", [json.loads(text)["tool_calls"][0] for text in (ADD, call("ls"))])


def task_of(**changes: Any) -> BfclTurns:
    pytest.importorskip("bfcl_eval")
    return BfclTurns([("line 1,", {**ROW, **changes})], "own.json", TaskSpec("own"))


def played(task: BfclTurns, answers: Sequence[str]) -> list[Any]:
    """The requests that a server with these answers gets."""
    turns = task.turns(task.docs[0])
    requests = [next(turns)]
    for answer in answers:
        try:
            requests.append(turns.send(answer))
        except StopIteration:
            break
    turns.close()
    return requests


@pytest.mark.parametrize(
    ("answers", "worth"),
    [
        ([MAKE, "Done.", ADD, "It is 3."], 1.0),
        ([MAKE, call("ls"), "Done.", PAIR, "It is 3."], 1.0),
        ([MAKE, "Done.", "It is 3."], 0.0),
        ([call("mkdir", dir_name="other"), "Done.", ADD, "It is 3."], 0.0),
        ([MAKE, "Done.", call("add", a=1.0, b=3.0), "It is 4."], 0.0),
        ([MAKE, "Done."], 0.0),
        ([MAKE, "Done.", written("", [{"name": "add", "arguments": "{"}])], 0.0),
    ],
)
def test_states_and_results_decide(answers, worth):
    task = task_of()
    assert played(task, answers)
    assert [task.score_turns(task.docs[0], answers) for _ in range(2)] == [worth, worth]
    assert not [name for name in vars(task.simulator.calling) if name.startswith("gistgate")]


def test_each_server_reads_the_results_of_its_own_calls():
    requests = played(task_of(), [MAKE, "Done.", PAIR, "It is 3."])
    history, entries = requests[-1]
    assert len(requests) == 4
    roles = [message["role"] for message in history]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "tool"]
    assert json.loads(history[-2]["content"]) == {"result": 3.0}
    assert "temp" in history[-1]["content"]
    ids = [made["id"] for made in history[-3]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in history[-2:]] and len({*ids}) == 2
    names = {tool["function"]["name"] for tool in entries["tools"]}
    assert {"mkdir", "add"} <= names


def test_code_in_place_of_a_call_is_never_run(tmp_path):
    place = tmp_path / "made"
    for name, arguments in (
        ("open", {"file": str(place), "mode": "w"}),
        (f"open({str(place)!r}, 'w').write", {"text": "x"}),
        ("mkdir", {"dir_name": "a", "b=open('made', 'w'), c": 1}),
    ):
        task = task_of()
        requests = played(task, [call(name, **arguments), "Done."])
        assert requests[1][0][-1]["content"].startswith("Error during execution")
        assert task.score_turns(task.docs[0], [call(name, **arguments), "Done.", ADD, "3."]) == 0
    assert not place.exists()
    with pytest.raises(UserError, match="line 1, cannot be used: its ground_truth holds"):
        task_of(ground_truth=[["mkdir(dir_name=open('made', 'w'))"], []])


def test_functions_that_are_missed_come_later():
    question = [ROW["question"][1], []]
    task = task_of(
        question=question, missed_function={"1": ["add"]}, ground_truth=[[], ["add(1.0, 2.0)"]]
    )
    first, *_, last = played(task, ["I cannot."])
    assert "add" not in {tool["function"]["name"] for tool in first[1]["tools"]}
    assert "add" in {tool["function"]["name"] for tool in last[1]["tools"]}
    assert last[0][-1] == {"role": "user", "content": MORE_TOOLS}
    assert task.score_turns(task.docs[0], ["I cannot.", ADD, "It is 3."]) == 1.0


def test_a_server_that_never_ends_is_given_up():
    answers = [call("ls")] * 30
    requests = played(task_of(), answers)
    assert len(requests) == STEPS
    task = task_of()
    assert task.score_turns(task.docs[0], answers[:STEPS]) == 0


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert is_conversation(ROW) and not is_conversation({"id": "1", "question": []})
    without = {name: entry for name, entry in ROW.items() if name != "ground_truth"}
    file = str(tmp_path / "own.json")
    if find_spec("bfcl_eval"):
        with pytest.raises(UserError, match="has no ground_truth. Keep the file"):
            BfclTurns([("line 1,", without)], file, TaskSpec("own"))
        with pytest.raises(UserError, match="involves 'Weather', which this bfcl-eval"):
            task_of(involved_classes=["Weather"])
    monkeypatch.setattr("gistgate.tasks.bfcl_turns.PACKAGE", "bfcl_eval_that_is_not_there")
    with pytest.raises(UserError, match="pip install --no-deps bfcl-eval mpmath"):
        BfclTurns([("line 1,", ROW)], file, TaskSpec("own"))
