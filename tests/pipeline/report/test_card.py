"""What the card of a gate tells lm-eval about its task."""

from pathlib import Path

import pytest

from pipeline.report.tables import task_options

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "task, said",
    [
        ("python-functions", "--include_path data/tasks --confirm_run_unsafe_code"),
        ("gsm8k-chat", "--include_path data/tasks"),
        ("arc_easy", ""),
        (None, ""),
    ],
)
def test_a_task_of_the_project_is_found_and_its_programs_are_allowed(
    task: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert task_options(task) == said
