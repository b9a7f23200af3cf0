"""Conversations are played turn by turn, with each server's own answers, and scored by their last
answer or by all.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gistgate.certify.card import Card
from gistgate.certify.records import recomputed
from gistgate.cli.certify import Options
from gistgate.cli.quick import quick
from gistgate.cli.servers import compare
from gistgate.core.files import read_json_lines, write_json_lines
from gistgate.core.utils import UserError
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.task import TaskSpec
from gistgate.tasks.tool_calls import written
from tests.certify.scripted import Script, serving

NUMBERS = range(40)
WRITTEN = {"role": "assistant", "content": "Written."}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def options_for(folder: Path, rows: list[dict[str, Any]], *urls: str, **changes: Any) -> Options:
    """The options of a comparison of two servers on these lines."""
    write_json_lines(folder / "own.jsonl", rows)
    options: dict[str, Any] = {
        "strict": urls[0],
        "loose": urls[1],
        "file": str(folder / "own.jsonl"),
        "budget": 0.2,
        "prompts": len(NUMBERS),
        "stop": "planned",
        "out": folder,
        "ledger": folder / "judged.json",
    }
    return Options(**{**options, **changes})


def certified(
    folder: Path, rows: list[dict[str, Any]], scripts: list[Script], **changes: Any
) -> tuple[Card, Path]:
    """The card of one scripted server against another."""
    with ExitStack() as servers:
        urls = [servers.enter_context(serving(script)) for script in scripts]
        return compare(options_for(folder, rows, *urls, **changes))


@pytest.mark.parametrize("form", ["turns", "messages", "transcript"])
def test_each_server_reads_its_own_earlier_answers(tmp_path, form):
    rows = []
    for n in NUMBERS:
        texts = [f"Hello {n}: 90 + 1?", f"{n} + 1?"]
        first, second = map(user, texts)
        conversation = {
            "turns": {"turns": texts},
            "messages": {"messages": [first, second]},
            "transcript": {"messages": [first, WRITTEN, second]},
        }
        rows.append({**conversation[form], "answer": n + 1})
    baseline = Script(texts={90: "It is 91."})
    candidate = Script(texts={90: "<think>Is it 91?</think>Well, 91."})
    certified(tmp_path, rows, [baseline, candidate])
    for script, said, repeated in ((baseline, "It is 91.", 20), (candidate, "Well, 91.", 0)):
        played = len(NUMBERS) + repeated  # the control plays them as well
        assert len(script.asked) == 2 * played
        long = [body["messages"] for body in script.asked if len(body["messages"]) == 3]
        assert len(long) == played
        assert {messages[1]["content"] for messages in long} == {said}


@pytest.mark.parametrize(("replays", "count"), [(True, 3), (False, 2)])
def test_written_answers_are_sent_where_a_conversation_is_replayed(replays, count):
    turns = [user("Hello"), WRITTEN, user("1 + 1?")]
    task = PromptFile(
        [("line 1", {"messages": turns, "answer": 2})], TaskSpec("own"), None, replays
    )
    assert len(task.messages(task.docs[0])) == count
    assert task.shortened == (not replays)


def sums(n: int) -> dict[str, Any]:
    """A conversation of three turns, of which the first has no right answer."""
    first = {"prompt": f"Hello {n}: 99 + 1?"}
    second = {"prompt": f"{100 + n} + 1?", "answer": 101 + n}
    return {"turns": [first, second, {"prompt": f"{n} + 1?", "answer": n + 1}]}


def test_all_turns_are_scored_and_the_mean_is_the_score_of_a_conversation(tmp_path, capsys):
    rows = [sums(n) for n in NUMBERS]
    loose = Script(wrong=frozenset(range(110)))  # of the second turn ten, and all of the last
    card, path = certified(
        tmp_path, rows, [Script(), loose], turns="all", budget=0.5, keep_texts=True
    )
    assert "scorer number, mean over the turns of a conversation" in capsys.readouterr().out
    [row] = card.rows
    assert (row.n, row.losses) == (40, 40)
    assert card.loss == pytest.approx((10 + 0.5 * 30) / 40)
    assert card.control["baseline"]["loss"] == 0 and card.control["candidate"]["worse"] == 20
    records = read_json_lines(path.with_suffix(".records.jsonl"))
    assert {row["candidate"] for row in records} == {0.0, 0.5}
    assert all(len(row["finishes"]) == 6 and "[3] " in row["texts"][1] for row in records)
    assert recomputed(path).verdict == card.verdict
    last, _ = certified(tmp_path, rows, [Script(), loose], draw=1, ledger=tmp_path / "other.json")
    assert last.loss == 1.0 and last.tasks[0]["metric"] == "scorer number"
    assert "40 prompts and are not scored" in capsys.readouterr().out


def test_kept_answers_are_scored_by_all_turns_in_a_second_look_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [sums(n) for n in NUMBERS]
    scripts = [Script(), Script()]
    with ExitStack() as servers:
        urls = [servers.enter_context(serving(script)) for script in scripts]
        compare(options_for(tmp_path, rows, *urls, control=0))
        asked = len(scripts[0].asked)
        again = options_for(tmp_path, rows, *urls, control=0, resume=True)
        compare(again)
        with pytest.raises(UserError, match="tested before|judged"):
            compare(options_for(tmp_path, rows, *urls, control=0, resume=True, turns="all"))
    assert len(scripts[0].asked) == asked


def test_answers_that_stand_in_a_transcript_are_right_ones_of_their_turns(tmp_path):
    rows = []
    for n in NUMBERS:
        answers = [{"role": "assistant", "content": f"It is so. #### {m}"} for m in (n + 1, 91)]
        rows.append({"messages": [user(f"{n} + 1?"), answers[0], user("90 + 1?"), answers[1]]})
    scripts = [Script(), Script(texts={90: "No."})]
    card, _ = certified(tmp_path, rows, scripts, turns="all", replay=True, budget=0.6)
    assert card.loss == pytest.approx(0.5)
    history = [body["messages"] for body in scripts[1].asked if len(body["messages"]) > 1]
    assert {messages[1]["content"] for messages in history} == {
        f"It is so. #### {n + 1}" for n in NUMBERS
    }


def test_conversations_agree_if_all_their_answers_do(tmp_path):
    rows = [{"turns": [f"{n} + 1?", "90 + 1?"]} for n in NUMBERS]
    loose = Script(wrong=frozenset({3}))
    changes: dict[str, Any] = {"control": 0, "time": 0}
    card, _ = certified(tmp_path, rows, [Script(), loose], turns="all", **changes)
    assert (card.design["claim"], card.loss) == ("agreement", 1 / 40)


def test_a_quick_look_shows_all_turns(tmp_path, capsys):
    rows = [sums(n) for n in NUMBERS]
    with serving(Script()) as strict, serving(Script(wrong=frozenset(range(200)))) as loose:
        options = options_for(tmp_path, rows, strict, loose, turns="all", prompts=10)
        assert quick(options) == "QUICK"
    said = capsys.readouterr().out
    assert "20 lost, loss 100.00 points" in said and "[2] It is so." in said


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"turns": [{"prompt": "1?", "answer": ""}, "2?"]}, "turn 1, cannot be used: its answer"),
        ({"turns": [{"answer": "1"}, "2?"]}, "turn 1, cannot be used: it holds .* and no prompt"),
        ({"turns": []}, "line 1, cannot be used: it holds .* and no prompt"),
        ({"turns": ["1?", "2?"]}, "it has no answer, and other entries have"),
    ],
)
def test_a_turn_that_cannot_be_scored_is_named(row, sentence):
    rows = [("line 1,", row), ("line 2,", {"prompt": "1 + 1?", "answer": 2})]
    with pytest.raises(UserError, match=sentence):
        PromptFile(rows, TaskSpec("own"), None, False, True)
    with pytest.raises(UserError, match="--turns both says nothing. Use one of: last, all"):
        assert Options(turns="both").scores_turns


def test_all_calls_of_a_transcript_are_scored():
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    messages = [
        user("1 + 1?"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "2."},
    ]
    row = {"messages": messages, "tools": [tool]}
    task = PromptFile([("line 1,", row)], TaskSpec("own"), None, False, True)
    [doc] = task.docs
    right = written("", [{"name": "add", "arguments": '{"n": 1}'}])
    assert task.score_turns(doc, [right, "It is 2."]) == 1.0
    assert task.score_turns(doc, [right, right]) == 0.5
    wrong = written("", [{"name": "add", "arguments": json.dumps({"n": 2})}])
    assert task.score_turns(doc, [wrong, "It is 2."]) == pytest.approx((0.75 + 1) / 2)
    turns = task.turns(doc)
    assert [len(next(turns)[0]), len(turns.send(wrong)[0])] == [1, 3]
