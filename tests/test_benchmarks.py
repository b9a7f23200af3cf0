"""What the benchmarks compute of what they measure."""

import pytest

from benchmarks import speed
from gistgate.core.files import write_json
from gistgate.core.utils import UserError
from pipeline.paths import calibration_file
from tests.pipeline.parameters import parameters


def test_contenders_are_compared_on_equal_prompts():
    def times(*seconds: float) -> dict[str, object]:
        repeats = [[each] for each in seconds]
        return {"block": 2, "seconds": repeats, "tokens": [10] * len(seconds), "loops": 1}

    compared = speed.compared({"plain": times(4, 2), "fast": times(2, 1)}, ["plain"])
    fast = compared["fast"]
    assert fast["tokens_per_second"] == pytest.approx(20 / 3)
    assert fast["vs_plain"] == pytest.approx({"mean": 2.0, "low": 2.0, "high": 2.0})
    assert (fast["n"], fast["loops"]) == (2, 1) and "vs_plain" not in compared["plain"]


def test_no_prompt_comes_twice():
    ids = [[n, n] for n in range(10)]
    assert speed.batches_of(ids, 2, 4) == [ids[:2], ids[2:4], ids[4:6], ids[6:8]]
    assert speed.batches_of(ids, 4, 4) == [ids[:4], ids[4:8]]


def test_a_mistyped_name_is_refused_with_the_nearest_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    point = {"certified": True, "knob": 0.1, "fixed": {}}
    write_json(calibration_file("fly"), {"budgets": {"0.03": point}})
    methods = {name: {"rule": "fly", "knob": "theta", "grid": [0.1]} for name in ("fly", "prob")}
    params = parameters(methods=methods)
    assert [*speed.certified_points(params, "")] == [*speed.certified_points(params, "fly")]
    with pytest.raises(UserError, match="'fyl' is not certified here. Did you mean 'fly'"):
        speed.certified_points(params, "fly,fyl")
