"""Target and draft at the same time, each with its own number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import overlap
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.rules import make_rule
from tests.architectures import tiny_model


def test_calls_run_at_the_same_time_with_their_own_threads():
    torch.set_num_threads(1)
    meeting, seen = Barrier(2, timeout=20), {}

    def call(name: str) -> None:
        meeting.wait()  # a call that ran behind the other would wait in vain
        seen[name] = (torch.get_num_threads(), torch.is_inference_mode_enabled())

    with ThreadPoolExecutor(2) as pool:
        assert overlap.at_once(pool, (lambda: call("a"), lambda: call("b")), (2, 1)) > 0
    assert seen == {"a": (2, True), "b": (1, True)} and torch.get_num_threads() == 1


def test_every_repetition_has_a_serial_and_an_overlapped_round():
    model = tiny_model("llama")
    times = overlap.seconds(SimpleNamespace(target=model, draft=model), 2, 3, 2)  # type: ignore[arg-type]
    torch.set_num_threads(1)
    assert {name: len(some) for name, some in times.items()} == {"serial": 3, "draft": 3, "both": 3}
    assert all(serial > draft > 0 for serial, draft in zip(times["serial"], times["draft"], strict=True))


def test_one_thread_is_not_enough_to_share():
    with pytest.raises(UserError, match="--threads is 1. Pass 2 or more"):
        overlap.main(threads=1)


@pytest.mark.parametrize(("draft_seed", "low", "high"), [(None, 0.5, 1.0), (7, 0.0, 0.1)])
def test_a_draft_that_is_the_target_is_kept(monkeypatch: Any, draft_seed: int | None, low: float, high: float):
    target = tiny_model("llama")
    draft = target if draft_seed is None else tiny_model("llama", seed=draft_seed)
    monkeypatch.setattr(overlap, "read_prompts", lambda _split: [{"ids": [1, 2, 3]}, {"ids": [4, 5]}])
    monkeypatch.setattr(overlap, "request_of", lambda _prompts, _pair: {"eos_ids": (), "stops": ()})
    monkeypatch.setattr(
        overlap,
        "make_decoder",
        lambda _pair, _method, _settings, num: Decoder(target, ModelDrafter(draft), make_rule("exact"), num),
    )
    assert low <= overlap.share_kept(None, 3, 2, 16) <= high  # type: ignore[arg-type]
