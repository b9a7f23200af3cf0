"""Benchmarks: intervals hold what was seen, scripts give the accepted length, a proposal changes one number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import scripted
from benchmarks.bench import ratios, side_by_side
from benchmarks.block import propose
from benchmarks.intervals import ratio_of_sums
from gistgate.decoding.decoder import Decoder
from gistgate.drafters import ModelDrafter
from gistgate.errors import UserError
from gistgate.rules import make_rule
from pipeline import paired
from pipeline.timed import Contender

GPU_NEEDS = "import sys; [sys.modules.__setitem__(n, None) for n in ('scipy', 'datasets', 'matplotlib', 'lm_eval')]"


def test_the_interval_is_that_of_the_pipeline():
    reference, own = [2.0, 3.1, 2.6, 4.0, 2.2, 3.3], [1.0, 1.4, 1.5, 1.7, 1.2, 1.6]
    here, there = ratio_of_sums(reference, own), paired.ratio_of_sums(reference, own)
    assert here.mean == pytest.approx(there.mean)
    assert (here.low, here.high) == pytest.approx((there.low, there.high), rel=0.01)


@pytest.mark.parametrize(("reference", "own"), [([1.0], [1.0, 2.0]), ([], []), ([1.0], [0.0])])
def test_a_ratio_refuses_seconds_that_cannot_be(reference, own):
    with pytest.raises(UserError, match="positive seconds"):
        ratio_of_sums(reference, own)


def test_everyone_meets_every_batch_once_and_the_order_rotates():
    seen: list[tuple[str, int]] = []

    def contender(name: str) -> Contender:
        return Contender(name, lambda batch: (seen.append((name, batch[0][0])) or len(batch), None), 0)

    times = side_by_side([contender("a"), contender("b")], [[[0]], [[1]], [[2]]], say=False)
    assert seen[2:] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]  # behind two warm-ups
    found = ratios(times, ["a"])
    assert found["b"]["n"] == 3
    assert "vs_a" in found["b"]
    assert "vs_a" not in found["a"]


def test_a_scripted_pair_writes_its_script_and_errs_where_it_was_told(monkeypatch: pytest.MonkeyPatch):
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    monkeypatch.setitem(scripted.SHAPES, "tiny", {**tiny, "num_key_value_heads": 1})
    text, wrong = scripted.scripts(60, 50, 0.2, seed=0)
    target, draft = (scripted.scripted("tiny", script, 50, torch.float32, "cpu") for script in (text, wrong))
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
    answer = decoder.generate([text[:10].tolist()], max_new_tokens=40)[0]
    assert answer.ids == text[10:50].tolist()
    assert 1 < answer.statistics.mean_accepted_length < 5
    assert int((text != wrong).sum()) > 0


def test_a_proposal_keeps_the_comments(tmp_path: Path):
    path = tmp_path / "params.yaml"
    path.write_text(
        "decoding:\n  strict_block: 4   # its own best\nmethods:\n  free:\n    fly:   # a rule\n      rule: fly\n"
    )
    propose({"strict": 3, "fly": 6, "unknown": 9}, path)
    written = path.read_text()
    assert "strict_block: 3   # its own best" in written
    assert "block: 6" in written
    assert "# a rule" in written
    assert "9" not in written


def test_few_dependencies_are_enough():
    every = ", ".join(f"benchmarks.{name}" for name in ("speed", "limit", "shapes", "memory"))
    done = subprocess.run([sys.executable, "-c", f"{GPU_NEEDS}; import {every}"], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
