"""Intervals without scipy are those of the pipeline, and benchmarks start where little is installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import bench
from gistgate.errors import UserError
from gistgate.observing.intervals import ratio_of_sums
from pipeline.report import paired_statistics

GPU_NEEDS = "import sys; [sys.modules.__setitem__(n, None) for n in ('scipy', 'datasets', 'matplotlib', 'lm_eval')]"


def test_the_interval_is_that_of_the_pipeline():
    reference, own = [2.0, 3.1, 2.6, 4.0, 2.2, 3.3], [1.0, 1.4, 1.5, 1.7, 1.2, 1.6]
    here, there = ratio_of_sums(reference, own), paired_statistics.ratio_of_sums(reference, own)
    assert here.mean == pytest.approx(there.mean)
    assert (here.low, here.high) == pytest.approx((there.low, there.high), rel=0.01)


@pytest.mark.parametrize(("reference", "own"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0])])
def test_a_ratio_refuses_seconds_that_cannot_be(reference, own):
    with pytest.raises(UserError, match="positive seconds"):
        ratio_of_sums(reference, own)


@pytest.mark.slow
def test_few_dependencies_are_enough():
    every = ", ".join(f"benchmarks.{name}" for name in ("speed", "limit", "shapes", "memory"))
    done = subprocess.run([sys.executable, "-c", f"{GPU_NEEDS}; import {every}"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("said", [None, "7"])
def test_threads_wait_before_they_sleep_unless_the_user_says_otherwise(said: str | None, monkeypatch):
    """Before torch is imported, since its OpenMP library reads the variable once."""
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    if said is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", said)
    asked = "import benchmarks.bench, os, sys; print(os.environ['GOMP_SPINCOUNT'])"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (said or "10000")


def test_a_process_of_its_own_says_what_it_found(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text(
        "import json, os, sys\nprint('x')\nprint(json.dumps([sys.argv[1], dict(os.environ)]))"
    )
    (tmp_path / "none.py").write_text("raise SystemExit('no such thing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TAKEN", "1")
    argument, seen = bench.apart("one", [7], {"GIVEN": "2"}, without=["TAKEN"])
    assert argument == "7" and seen["GIVEN"] == "2" and "TAKEN" not in seen
    with pytest.raises(UserError, match="A process of the measurement failed: no such thing"):
        bench.apart("none", [], {})
