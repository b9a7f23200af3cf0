"""The traced answers of the report are scored as lm-eval scores them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.integrations.lm_eval.task import Task
from gistgate.integrations.lm_eval.task_files import find_task
from gistgate.observing.trace import TracedToken
from gistgate.request.rows import Generation
from gistgate.request.statistics import Statistics
from pipeline.params import parse_params
from pipeline.stages.trace import told
from pipeline.tasks.loading import task_spec
from tests.tiny import byte_tokenizer, write_task


def test_the_stop_and_what_is_behind_do_not_count(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(find_task("sums", folder=write_task(tmp_path)), task_spec(parse_params({"task": "sums"})))
    monkeypatch.setattr(Task, "score", lambda _self, _doc, text: float(text == "It is so."))
    tokenizer, text = byte_tokenizer(), "It is so.\nQ: more?"
    answer = Generation(tokenizer.encode(text), [], "stop", Statistics(2, histogram={1: 2}))
    tokens = [TracedToken(text, "strict", None, 1.0)]
    found = told(task, {}, SimpleNamespace(tokenizer=tokenizer), answer, tokens)  # type: ignore[arg-type]
    assert found["score"] == 1 and found["tokens"][0]["text"] == text
    assert found["mean_accepted_length"] == answer.statistics.mean_accepted_length
