"""Rollouts outlive an interruption: the next start makes those that are left, and finds what the first would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.utils import UserError
from pipeline.labels.labelling import Labeller, Tools
from pipeline.labels.rollouts import ANSWERED, REJOINED, Cost, Ended, KeptRollouts, Rollout
from pipeline.labels.schema import Policy, Table
from pipeline.params import LabelParams
from tests.pipeline.labels.test_mining import PROMPTS, collected, mined, pair, tools_for

__all__ = ["mined", "pair"]
ROLLOUT = Rollout(0, [5, 6], [7, 8, 9], 1, 11, [7, 8, 9])


def keeping(tools: Tools, file: Path) -> KeptRollouts:
    kept = KeptRollouts(file, tools.cost)
    tools.roller.kept = tools.sampler.kept = kept
    return kept


def interrupted(kept: KeptRollouts, after: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the keeper raise once it has kept so many; the keys that it has kept."""
    keys: list[str] = []
    keep = kept.keep

    def failing(key: str, ended: Ended) -> None:
        keep(key, ended)
        keys.append(key)
        if len(keys) == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(kept, "keep", failing)
    return keys


def equal(one: Table, other: Table) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("audit", [0, 3])
def test_a_walk_goes_on_where_it_was_interrupted(
    pair: Any, mined: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, audit: int
) -> None:
    settings = {"batch_size": 3, "audit": audit}
    first = tools_for(pair, **settings)
    keys = interrupted(keeping(first, tmp_path / "kept.sqlite"), 6, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        collected(pair, first)
    second = tools_for(pair, **settings)
    kept = keeping(second, tmp_path / "kept.sqlite")
    assert kept.cost.rollouts >= len(keys) == 6  # those that were given up cost something, too
    fresh = interrupted(kept, 1000, monkeypatch)
    table, texts = collected(pair, second)
    assert equal(table, mined[0]) and texts == mined[1]
    assert not set(fresh) & set(keys) and second.cost.labels == int((table["policy"] == Policy.SEQUENTIAL).sum())


def test_sampled_rollouts_are_kept_as_well(
    pair: Any, mined: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, texts = mined
    references = {problem: texts[problem, Policy.STRICT].ids for problem in range(len(PROMPTS))}
    settings: dict[str, Any] = {"rejoin": None, "rollouts": 3, "batch_size": 4}

    def labelled(tools: Tools) -> Table:
        maker = Labeller(tools, [{"ids": ids} for ids in PROMPTS], LabelParams(**settings), 1)
        return maker.label(table, texts)

    whole = tools_for(pair, references, **settings)
    expected = labelled(whole)
    first = tools_for(pair, references, **settings)
    interrupted(keeping(first, tmp_path / "kept.sqlite"), whole.cost.rollouts - 5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        labelled(first)
    second = tools_for(pair, references, **settings)
    kept = keeping(second, tmp_path / "kept.sqlite")
    fresh = interrupted(kept, 1000, monkeypatch)
    assert equal(labelled(second), expected)
    assert len(fresh) == 5 and second.cost.rollouts == whole.cost.rollouts
    assert second.cost.labels == whole.cost.labels > 0


class Asks:
    """A supply of one rollout, which may stop early only where `reason` says so."""

    def __init__(self, reason: str | None) -> None:
        self.reason, self.waiting, self.told = reason, [ROLLOUT], list[Ended]()

    def take(self, num: int) -> list[Rollout]:
        taken, self.waiting = self.waiting, []
        return taken

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        return self.reason

    def end(self, rollout: Rollout, ended: Ended) -> None:
        self.told.append(ended)


@pytest.mark.parametrize(
    "finish, reason, told",
    [
        ("eos", None, "eos"),
        ("eos", REJOINED, "eos"),
        (ANSWERED, ANSWERED, ANSWERED),
        (ANSWERED, REJOINED, ANSWERED),
        (ANSWERED, None, None),
        ("eos", "given up", "given up"),
    ],
)
def test_a_part_of_a_rollout_counts_only_where_it_may_stop(
    tmp_path: Path, finish: str, reason: str | None, told: str | None
) -> None:
    """An audit wants whole rollouts, and a supply may not want one any more."""
    first = KeptRollouts(tmp_path / "kept.sqlite", Cost()).over(Asks(finish), None)
    first.end(*first.take(1), Ended([7, 11, 12], finish))
    asks = Asks(reason)
    taken = KeptRollouts(tmp_path / "kept.sqlite", Cost()).over(asks, None).take(1)
    assert [one.finish for one in asks.told] == ([] if told is None else [told])
    assert taken == ([ROLLOUT] if told is None else [])


def test_what_nobody_wanted_is_not_kept(tmp_path: Path) -> None:
    supply = KeptRollouts(tmp_path / "kept.sqlite", Cost()).over(Asks("given up"), None)
    supply.end(*supply.take(1), Ended([7, 11], "given up"))
    assert KeptRollouts(tmp_path / "kept.sqlite", Cost()).over(Asks(None), None).take(1) == [ROLLOUT]


def test_seconds_and_counts_of_every_start_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr("pipeline.labels.rollouts.perf_counter", lambda: now[0])
    for start in range(1, 4):
        cost = Cost()
        kept = KeptRollouts(tmp_path / "kept.sqlite", cost)
        assert (cost.rollouts, cost.seconds, cost.labels) == (start - 1, 2.0 * (start - 1), 0)
        cost.rollouts, cost.labels = cost.rollouts + 1, 7
        now[0] += 2
        kept.keep(str(start), Ended([1], "eos"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept.sqlite").write_text("not a database, but long enough to look like one" * 20)
    with pytest.raises(UserError, match="cannot be read.*Remove it; its rollouts are then made again"):
        KeptRollouts(tmp_path / "kept.sqlite", Cost())
