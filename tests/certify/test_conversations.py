"""Conversations are played turn by turn, with each server's own answers."""

import pytest

from gistgate.cli.certify import Options
from gistgate.cli.servers import compare
from gistgate.core.files import write_json_lines
from tests.certify.scripted import Script, serving

NUMBERS = range(40)


@pytest.mark.parametrize("key", ["turns", "messages"])
def test_each_server_reads_its_own_earlier_answers(tmp_path, key):
    rows = []
    for n in NUMBERS:
        texts = [f"Hello {n}: 90 + 1?", f"{n} + 1?"]
        turns = [{"role": "user", "content": text} for text in texts]
        rows.append({key: texts if key == "turns" else turns, "answer": n + 1})
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
    for script, said in ((baseline, "It is 91."), (candidate, "Well, 91.")):
        assert len(script.asked) == 2 * len(NUMBERS)
        long = [body["messages"] for body in script.asked if len(body["messages"]) == 3]
        assert len(long) == len(NUMBERS)
        assert {messages[1]["content"] for messages in long} == {said}
