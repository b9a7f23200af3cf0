"""What the card of a gate tells lm-eval about its task."""

from pathlib import Path

import pytest

from gistgate.core.gate import Gate
from pipeline.report.tables import card, task_options

ROOT = Path(__file__).parents[3]
ROW = {"knob": 0.02, "loss": 0.0, "accuracy": 0.5, "mean_accepted_length": 5.8, "loose_per_100": 0.0}
"""A line of the frontier, for a card whose options are looked at."""


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


def test_the_card_keeps_a_blank_between_the_task_and_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the template lose the blanks around them."""
    monkeypatch.chdir(ROOT)
    gate = Gate.load(ROOT / "models/gates/qwen2.5-coder-1.5b-0.5b-int4-gsm8k-chat")
    assert gate.certificate is not None
    report = {
        "rule": "autojudge", "knob": "risk", "block": 8, "confidence": 0.95, "headline_budget": 0.05,
        "development": [], "settings": [{"n": 200, **ROW}],
    }  # fmt: skip
    assert "--tasks gsm8k-chat --include_path data/tasks --apply" in card(gate.config, gate.certificate, report, {})
