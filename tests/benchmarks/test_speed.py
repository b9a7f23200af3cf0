"""Tokens per second on several occasions: nothing that was measured is lost, and only equal things are joined."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import bench, speed
from benchmarks.speed_occasions import all_batches
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.common.code import made_by
from pipeline.common.operating_point import Operating
from pipeline.speed import baselines
from pipeline.speed.clock import Contender
from tests.architectures import noisy_copy, tiny_model

FAST: Any = {"block": 4, "n": 30, "tokens_per_second": 10.0, "loops": 0, "vs_plain": {"mean": 2, "low": 1, "high": 3}}
PROMPTS = [[place, 2] for place in range(16)]
SLOW: Any = FAST | {"n": 29, "tokens_per_second": 6.0, "vs_plain": {"mean": 0.5, "low": 0.25, "high": 1}}


def size(failed: dict[str, str] | None = None, **contenders: Any) -> Any:
    return {"contenders": contenders, "failed": failed or {}}


def test_a_contender_that_fails_once_keeps_the_occasion_on_which_it_ran():
    found = all_batches([{"1": size(a=FAST, b=FAST)}, {"1": size({"b": "RuntimeError: no"}, a=SLOW)}])["1"]
    assert found["contenders"]["b"] == FAST | {"occasions": 1} and found["failed"] == {"b": "RuntimeError: no"}
    both = {"tokens_per_second": 8.0, "n": 29, "vs_plain": {"mean": 1.0, "low": 0.25, "high": 3}, "occasions": 2}
    assert found["contenders"]["a"] == FAST | both


def test_sizes_count_their_own_occasions_and_none_vanishes():
    found = all_batches([{"1": size(a=FAST), "16": size(a=FAST), "4": size(a=FAST)}, {"1": size(a=SLOW)}])
    assert {name: one["occasions"] for name, one in found.items()} == {"1": 2, "4": 1, "16": 1}
    assert list(found) == ["1", "4", "16"] and found["16"]["contenders"]["a"]["n"] == 30


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`speed.main` without seconds: it returns what it wrote; every K that is timed is the chosen one."""
    point = Operating("gate", "prob", "model", 4, {"r": 0.5})
    params = SimpleNamespace(decoding=SimpleNamespace(strict_block=4), benchmark=SimpleNamespace(development=16))
    given = {"prompts": PROMPTS, "threads": 1, "chosen": {"assisted": 4, "prompt-lookup": 10}, "rate": FAST}

    def load(num: int) -> Any:
        pair, request = SimpleNamespace(name="tiny"), {"max_new_tokens": 4}
        about = {"params": params, "request": request, "ids": given["prompts"], "certificate": lambda _name: {"n": 9}}
        return SimpleNamespace(pair=pair, own={"gate": point}, **about)

    def measure(_workload: Any, _size: int, _prompts: int, _names: Any, blocks: dict[str, int]) -> Any:
        given["timed"] = blocks
        return size(gate=given["rate"])

    monkeypatch.setattr(speed.Workload, "load", load)
    monkeypatch.setattr(speed, "read_prompts", lambda _split: [{"ids": [7]}])
    for module in (speed, bench):
        monkeypatch.setattr(module, "machine", lambda: {"threads": given["threads"]})
    monkeypatch.setattr(speed, "made_by", lambda name: made_by(name) | given.get("code", {}))
    monkeypatch.setattr(baselines, "chosen", lambda *_models: (given["chosen"], {}))
    monkeypatch.setattr(speed, "measure", measure)
    monkeypatch.setattr("torch.set_num_threads", lambda _num: None)

    def main(**options: Any) -> Any:
        speed.main(batches=options.pop("batches", "1"), results=tmp_path, **options)
        return read_json(tmp_path / f"speed-{speed.device_kind()}.json")

    return SimpleNamespace(main=main, given=given)


def test_another_occasion_is_added_at_the_k_of_the_first(run: Any):
    first = run.main(batches="1,4")
    assert first["chosen"] == {"assisted": 4, "prompt-lookup": 10} and len(first["occasions"]) == 1
    run.given |= {"chosen": {"assisted": 8, "prompt-lookup": 2}, "rate": SLOW}
    again = run.main(again=True)
    assert run.given["timed"] == again["chosen"] == first["chosen"]
    assert again["occasions"][0] == first["occasions"][0] and set(again["batches"]) == {"1", "4"}
    assert again["batches"]["1"]["contenders"]["gate"]["occasions"] == 2
    assert again["batches"]["4"] == first["batches"]["4"] and again["prompts"] == first["prompts"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"prompts": PROMPTS[::-1]}, "prompts of batch 1"),
        ({"threads": 2}, "machine"),
        ({"code": {"fingerprint": "other"}}, "code"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_anything_is_measured(run: Any, change: Any, named: str):
    run.main()
    run.given.update(change)
    run.given.pop("timed")
    with pytest.raises(UserError, match=f"another value of: {named}. Measure without --again"):
        run.main(again=True)
    assert "timed" not in run.given


def test_a_result_that_keeps_no_occasions_is_not_added_to(run: Any, tmp_path: Path):
    write_json(tmp_path / f"speed-{speed.device_kind()}.json", {"occasions": 2})
    with pytest.raises(UserError, match="does not keep its occasions apart"):
        run.main(again=True)


def test_both_baselines_are_timed_at_the_chosen_k(monkeypatch: pytest.MonkeyPatch):
    target = tiny_model("llama")
    pair = SimpleNamespace(target=target, draft=noisy_copy(target, 0.03), tokenizer=None)
    picked: Any = {"assisted": 3, "prompt-lookup": 6}
    monkeypatch.setattr(
        baselines, "fastest", lambda some, _ids: next(one for one in some if one.block == picked[one.name])
    )
    assert baselines.chosen(pair, {"max_new_tokens": 4}, [[1]]) == (picked, {})
    found: list[Contender] = baselines.at(pair, {"max_new_tokens": 4}, picked)
    assert [(one.name, one.block) for one in found] == list(picked.items())


def test_sizes_may_be_written_with_blanks_and_a_size_that_the_prompts_do_not_fill_is_refused_first(run: Any):
    assert set(run.main(batches="4, 1")["batches"]) == {"4", "1"} and run.given["timed"] == run.given["chosen"]
    run.given.pop("timed")
    with pytest.raises(UserError, match="16 prompts do not fill 4 batches of 5.* sizes from 1 to 4 with --batches"):
        run.main(batches="1,5")
    with pytest.raises(UserError, match="'x' in --batches"):
        run.main(batches="1,x")
    with pytest.raises(UserError, match="'gat' is not certified here. Did you mean 'gate'"):
        run.main(methods="gat")
    assert "timed" not in run.given


@pytest.mark.parametrize(("headline", "shown"), [([], []), (["gate"], ["gate-eager", "gate-compiled"])])
def test_larger_batches_have_the_learned_method_where_one_is_certified(headline: list[str], shown: list[str]):
    target = tiny_model("llama")
    decoder = SimpleNamespace(block=4, engine=SimpleNamespace(name="eager"))
    workload: Any = SimpleNamespace(
        pair=SimpleNamespace(target=target, draft=target, tokenizer=None), request={"max_new_tokens": 4},
        ids=PROMPTS, headline=headline, own={"gate": None, "fly": None}, plain=lambda _engine: decoder,
        params=SimpleNamespace(decoding=SimpleNamespace(strict_block=4)),
        strict=lambda _block, _engine: decoder, at=lambda _point, _engine: decoder,
    )  # fmt: skip
    ours = {f"{name}-{engine}" for name in ("plain", "strict") for engine in ("eager", "compiled")}
    found = [one.name for one in speed.contenders(workload, 4, ["gate", "fly"], {})]
    assert {*found} == {"generate", "generate-static-compiled", *ours, *shown}
    singly = [one.name for one in speed.contenders(workload, 1, ["gate", "fly"], {})]
    assert {"fly-eager", "gate-eager"} <= {*singly}
