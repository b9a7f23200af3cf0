"""Labelling shows its rollouts as they end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline import run as progress
from pipeline.labels.labelling import AnswerJudge, Labeller
from pipeline.labels.rollouts import FinishedRollout, Rollout, RolloutList
from pipeline.labels.schema import AnswerText
from pipeline.params import LabelParams
from pipeline.stages.label import title_of

PROBLEM, NUM = 0, 4


class Played:
    """Makes one rollout after another, and a minute goes by with each; every answer is lost."""

    def __init__(self) -> None:
        self.now = 0.0

    def serve(self, source: Any, _sampling: Any = None) -> None:
        while taken := source.take(3):
            for rollout in taken:
                self.now += 60
                source.end(rollout, FinishedRollout([1, 2], "eos"))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """The rollouts, whose clock is that of the lines."""
    runner = Played()
    monkeypatch.setattr(progress, "PACE", progress.Pace(lambda: runner.now))
    return runner


def test_a_line_tells_greedy_and_sampled_rollouts(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    meaning = SimpleNamespace(
        references={PROBLEM: [1, 2, 3]}, same=lambda *_: False, is_given=None, is_comparable=lambda _: True
    )

    def judge(rejoin: int | None) -> AnswerJudge:
        runner: Any = played
        return AnswerJudge(runner, meaning.same, None, audit=0, rejoin=rejoin)

    tools: Any = SimpleNamespace(meaning=meaning, judge=judge, sampler=played, cost=SimpleNamespace(labels=0))
    zeros = torch.zeros(NUM, dtype=torch.int64)
    table = {
        "problem": zeros, "policy": zeros.to(torch.int8), "position": torch.arange(NUM), "draft_id": zeros + 5,
        "target_id": zeros + 6, "greedy_kept": zeros.to(torch.int8) - 1, "accepted": zeros.bool(),
    }  # fmt: skip
    texts: Any = {(PROBLEM, 0): AnswerText(PROBLEM, 0, [1, 2, 3, 4])}  # type: ignore[arg-type]
    labeller = Labeller(tools, [{"ids": [7]}], LabelParams(rollouts=2), 1, title_of("strict", 0, 1))
    labeller.label(table, texts)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:NUM] == [f"label, strict, greedy: {n + 1} of 4 rollouts" for n in range(NUM)]
    assert lines[NUM:] == [f"label, strict, sampled: {n + 1} of 8 rollouts" for n in range(2 * NUM)]


def test_nothing_is_said_without_a_title(played: Played, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts = [Rollout(PROBLEM, [7], [1, 2], position, 5, [1, 2]) for position in range(2)]
    found = RolloutList(rollouts, lambda *_: None, lambda _rollout, ended: ended.finish).made_by(played)
    assert found == ["eos", "eos"] and capsys.readouterr().err == ""


def test_a_shard_is_named_where_there_are_more() -> None:
    assert title_of("gated", 2, 8) == "label, gated, shard 3 of 8"
