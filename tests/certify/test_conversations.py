"""Conversations are played turn by turn, with each server's own answers."""

import pytest

from gistgate.cli.certify import Options
from gistgate.cli.servers import compare
from gistgate.core.files import write_json_lines
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.task import TaskSpec
from tests.certify.scripted import Script, serving

NUMBERS = range(40)


WRITTEN = {"role": "assistant", "content": "Written."}


@pytest.mark.parametrize("form", ["turns", "messages", "transcript"])
def test_each_server_reads_its_own_earlier_answers(tmp_path, form):
    rows = []
    for n in NUMBERS:
        texts = [f"Hello {n}: 90 + 1?", f"{n} + 1?"]
        first, second = ({"role": "user", "content": text} for text in texts)
        conversation = {
            "turns": {"turns": texts},
            "messages": {"messages": [first, second]},
            "transcript": {"messages": [first, WRITTEN, second]},
        }
        rows.append({**conversation[form], "answer": n + 1})
    write_json_lines(tmp_path / "own.jsonl", rows)
    baseline = Script(texts={90: "It is 91."})
    candidate = Script(texts={90: "<think>Is it 91?</think>Well, 91."})
    with serving(baseline) as first, serving(candidate) as second:
        options = Options(
            strict=first,
            loose=second,
            file=str(tmp_path / "own.jsonl"),
            budget=0.2,
            prompts=len(NUMBERS),
            stop="planned",
            out=tmp_path,
            ledger=tmp_path / "judged.json",
        )
        compare(options)
    for script, said, repeated in ((baseline, "It is 91.", 20), (candidate, "Well, 91.", 0)):
        played = len(NUMBERS) + repeated  # the control plays them as well
        assert len(script.asked) == 2 * played
        long = [body["messages"] for body in script.asked if len(body["messages"]) == 3]
        assert len(long) == played
        assert {messages[1]["content"] for messages in long} == {said}


@pytest.mark.parametrize(("replays", "count"), [(True, 3), (False, 2)])
def test_written_answers_are_sent_where_a_conversation_is_replayed(replays, count):
    turns = [{"role": "user", "content": "Hello"}, WRITTEN, {"role": "user", "content": "1 + 1?"}]
    task = PromptFile(
        [("line 1", {"messages": turns, "answer": 2})], TaskSpec("own"), None, replays
    )
    assert len(task.messages(task.docs[0])) == count
    assert task.shortened == (not replays)
