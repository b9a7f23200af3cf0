"""An interrupted race goes on behind its last finished lap."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.common.operating_point import Operating
from pipeline.params import parse_params
from pipeline.speed.clock import Contender, Prompts
from pipeline.speed.kept_laps import KeptLaps
from pipeline.speed.race import race
from pipeline.stages import benchmark

BATCHES = [[[place]] for place in range(4)]


class Machine:
    """Decodes until it is told to stop, and remembers on which prompts."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.seen: list[int] = []
        self.breaks_at = breaks_at

    def decode(self, prompts: Prompts) -> tuple[list[list[int]], int | None]:
        if prompts[0][0] == self.breaks_at:
            raise KeyboardInterrupt
        self.seen.append(prompts[0][0])
        return [[1, 2, 3]], 2


def field(machine: Machine, *names: str) -> list[Contender]:
    return [Contender(name, machine.decode, 0) for name in names]


def test_a_race_goes_on_where_it_stopped(tmp_path: Path):
    kept, first, second = KeptLaps(tmp_path / "laps"), Machine(breaks_at=2), Machine()
    assert kept.chosen("assisted", lambda: {"block": 4}) == {"block": 4}
    with pytest.raises(KeyboardInterrupt):
        race(field(first, "a", "b"), BATCHES, kept=kept)
    assert kept.chosen("assisted", lambda: {"block": 5}) == {"block": 4}  # nothing is chosen twice
    assert kept.chosen("lookup", lambda: {"block": 6}) == {"block": 6}
    times = race(field(second, "a", "b"), BATCHES, kept=kept)
    assert second.seen == [0, 0, 2, 2, 3, 3]  # the warm-up, and what was not decoded yet
    assert [len(times[name]["seconds"]) for name in ("a", "b")] == [4, 4]
    assert times["a"]["tokens"] == [3] * 4 and times["b"]["target_forwards"] == [2] * 4
    kept.remove()
    assert not (tmp_path / "laps").exists()


def test_laps_of_other_contenders_are_decoded_again(tmp_path: Path):
    """transformers' static cache may run in one start and fail in the next."""
    kept, machine = KeptLaps(tmp_path), Machine()
    race(field(Machine(), "a", "b"), BATCHES, kept=kept)
    assert set(race(field(machine, "a"), BATCHES, kept=kept)) == {"a"}
    assert machine.seen == [0, 0, 1, 2, 3]


def test_laps_belong_to_the_settings_of_all_methods(monkeypatch: pytest.MonkeyPatch):
    params = parse_params({"methods": {"lossless": {"exact": {"rule": "exact"}}}})
    found = []
    for block in (4, 8, 8):
        monkeypatch.setattr(
            benchmark, "operating_point", lambda _p, name, k=block: Operating(name, "exact", "model", k)
        )
        monkeypatch.setattr(benchmark, "method_parts", lambda _params, point: [repr(point)])
        monkeypatch.setattr(benchmark, "sources", lambda _module: [])
        found.append(benchmark.dependencies(params))
    assert found[0] != found[1] == found[2]
