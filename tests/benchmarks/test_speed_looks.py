"""What `benchmarks.speed` publishes enters the ledger of looks before anything is timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import speed
from gistgate.certificates.ledger import Ledger
from gistgate.certificates.looks import PUBLISHED, Looks
from gistgate.errors import UserError
from gistgate.files import write_json
from pipeline.speed import baselines

PROMPTS = [[1, number] for number in range(20)]


def calibrated(file: str, claim: str, sequence: str = "first") -> None:
    """A calibration file with the record of its look."""
    looks = Looks(claim, PROMPTS, 0.05)
    record = looks.take(looks.look(sequence, 0.05), Path(f".gistgate/{sequence}.json"), Path("none.json"))
    write_json(Path(file), {"budgets": {}, "look": record})


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark with one method at the common K; a timing that begins is noted with what was entered before it."""
    monkeypatch.chdir(tmp_path)
    calibrated("reports/calibration/free/fly.json", "fly")
    calibrated("reports/calibration/free/random.json", "random")
    calibrated("reports/speed/calibration/free/prob.json", "prob in the study speed")
    calibrated("reports/speed/table/calibration/learned/judge.json", "judge in the study speed")
    workload = SimpleNamespace(
        own={"fly": SimpleNamespace(as_dict=dict)}, pair=SimpleNamespace(name="tiny"), request={}, ids=PROMPTS,
        certificate=lambda _name: {},
        params=SimpleNamespace(decoding=SimpleNamespace(strict_block=4), benchmark=SimpleNamespace(development=16)),
    )  # fmt: skip
    entered: list[list[str]] = []

    def measure(*_: Any) -> dict[str, Any]:
        entered.append([look.claim for look in Ledger.read(PUBLISHED).looks])
        return {"contenders": {}, "failed": {}}

    monkeypatch.setattr(speed.Workload, "load", lambda _: workload)
    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr(speed, "save", lambda *_: None)
    monkeypatch.setattr(speed, "read_prompts", lambda _split: [{"ids": [7]}])
    monkeypatch.setattr(baselines, "chosen", lambda *_: ({}, {}))
    return entered


def test_looks_at_their_own_k_and_those_behind_timed_methods_are_entered_first(started):
    speed.main(batches="1")
    assert started == [["prob in the study speed", "judge in the study speed", "fly"]]
    where = {look.published for look in Ledger.read(PUBLISHED).looks}
    assert where == {f"benchmarks/results/speed-{speed.device_kind()}.json"}


def test_a_second_choice_on_published_prompts_is_refused_before_anything_is_timed(started):
    speed.main(batches="1")
    calibrated("reports/speed/calibration/free/prob.json", "prob in the study speed", "second")
    with pytest.raises(UserError, match="already been judged for 'prob in the study speed'"):
        speed.main(batches="1")
    assert len(started) == 1


def test_results_that_go_elsewhere_enter_nothing(started, tmp_path: Path):
    speed.main(batches="1", results=tmp_path / "elsewhere")
    assert started == [[]]
