"""Cheaper drafts: every step stays lossless for the strict rule, and a measurement goes on where it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import drafting, ladder
from benchmarks.drafting_choices import best_assisted, costs_of, policy_of, prepare
from benchmarks.ladder import QUANTISED, STEPS, STRICT, TEXTS, VOCABULARY, WHOLE, Ladder, points_of
from gistgate.drafters.stopping import Stopping
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.common.operating_point import Operating
from pipeline.pairs.pair import Pair
from pipeline.speed.clock import Timed
from tests.architectures import greedy, noisy_copy, prompts, tiny_model

REQUEST: dict[str, Any] = {"max_new_tokens": 10, "eos_ids": []}
POINT = Operating(STRICT, "exact", "model", 3)
COSTS = {"step": 1.0, "draft": 0.25, "verify": {"1": 1.0, "3": 1.5}}


@pytest.fixture
def rungs() -> Ladder:
    target = tiny_model("llama")
    drafts = {name: noisy_copy(target, noise) for name, noise in ((WHOLE, 0.01), (QUANTISED, 0.02))}
    pair = Pair(target, drafts[WHOLE], None, "tiny")  # type: ignore[arg-type]
    plain = ladder.assemble(target, None, ladder.Choice("exact", {}, 0, "none"), None)
    return Ladder(SimpleNamespace(pair=pair, plain=lambda _engine: plain), STEPS, drafts)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (WHOLE, QUANTISED):
        write_json(tmp_path / f"costs-{name}.json", COSTS)
    measured = {"rule": "exact", "cost": 0.25, "verify": 1.2, "block": 3}
    Stopping(0.5, ((0.0, 0.1), (1.0, 0.9)), measured=measured).save(tmp_path / f"stopping-{STRICT}.json")
    write_json(tmp_path / "assisted.json", {"draft": QUANTISED, "block": 2})
    return tmp_path


def test_every_step_writes_the_greedy_text(rungs: Ladder, folder: Path):
    field = drafting.contenders(rungs, {STRICT: POINT}, REQUEST, folder)
    assert [one.name for one in field] == ["plain", "assisted", *(f"{STRICT}: {step}" for step in STEPS)]
    for ids in prompts(5, 6):
        for one in field:
            assert one.decode([ids])[0] == [greedy("llama", tuple(ids), 10)], one.name


def test_a_step_keeps_what_those_before_it_changed(rungs: Ladder):
    assert [rungs.draft_at(step) for step in STEPS] == [WHOLE, QUANTISED, QUANTISED, QUANTISED, QUANTISED]
    policy = Stopping(0.5, ((0.0, 0.1), (1.0, 0.9)), measured={"cost": 0.2, "verify": 1.0, "block": 3})
    made = {step: rungs.decoder(POINT, step, policy).drafter for step in STEPS}
    assert [getattr(made[step], "stopping", None) for step in STEPS] == [None, None, None, policy, policy]
    assert type(made[TEXTS]).__name__ == "HybridDrafter"
    without = Ladder(rungs.workload, (WHOLE, TEXTS), rungs.drafts).decoder(POINT, TEXTS, policy).drafter
    assert without is not None and without.stopping is not None and without.stopping.floor == 0


def test_finished_prompts_are_not_timed_again(rungs: Ladder, folder: Path, monkeypatch: pytest.MonkeyPatch):
    points, ids = {STRICT: POINT}, prompts(5, 6, 7)
    field = drafting.contenders(rungs, points, REQUEST, folder)
    first = drafting.timed(field, [], ids[:2], folder)
    assert len(first["plain"]["seconds"]) == 2
    seen: list[Any] = []
    monkeypatch.setattr(drafting, "lap", lambda field, batch, turns: seen.append(batch) or read_runs(folder))
    again = drafting.timed(field, [], ids, folder)
    assert seen == [[ids[2]]] and again["plain"]["seconds"][:2] == first["plain"]["seconds"]
    found = drafting.figures(again, points, rungs, folder)
    entry = found[f"{STRICT}: {QUANTISED}"]
    price = costs_of(folder, QUANTISED).verification(entry["draft_forwards"]) + 0.25 * entry["draft_forwards"]
    assert entry["limit"] == pytest.approx(entry["tau"] / price) and 1 < entry["tau"] <= 4
    assert sum(entry["parts"].values()) == pytest.approx(1)
    assert "vs_before" not in found[f"{STRICT}: {WHOLE}"] and entry["vs_before"]["mean"] > 0
    assert entry["n"] == 3 and "vs_plain" in entry and "vs_assisted" in entry


def read_runs(folder: Path) -> Any:
    """What a lap gives, from the file of the first prompt."""
    written = read_json(folder / "prompt-0000.json")
    keys = ("seconds", "tokens", "forwards", "loops")
    return {name: [Timed(**{key: run[key] for key in keys})] for name, run in written.items()}


def test_what_development_prompts_say_is_measured_once(rungs: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ids = prompts(9, 10, 11, 12, 13, 14, 15, 16)
    prepare(rungs, {STRICT: POINT}, ids, {**REQUEST, "max_new_tokens": 40}, tmp_path)
    assert costs_of(tmp_path, WHOLE).step > 0 and (policy := policy_of(tmp_path, STRICT)) is not None
    assert policy.measured["rule"] == "exact" and policy_of(tmp_path, "fly") is None
    monkeypatch.setattr("benchmarks.drafting_choices.measure", lambda *_args, **_more: pytest.fail("measured again"))
    prepare(rungs, {STRICT: POINT}, ids, REQUEST, tmp_path)
    assert read_json(tmp_path / "assisted.json")["draft"] in (WHOLE, QUANTISED)
    monkeypatch.setattr("benchmarks.drafting_choices.fastest", lambda variants, _ids: variants[-1])
    assert best_assisted(rungs, ids, REQUEST)["draft"] == QUANTISED


def test_only_certified_methods_with_the_model_are_compared():
    params = SimpleNamespace(decoding=SimpleNamespace(strict_block=4))
    own = {"gate": Operating("gate", "autojudge", "model", 6), "lookup": Operating("lookup", "prob", "lookup", 6)}
    workload: Any = SimpleNamespace(own=own, params=params)
    assert list(points_of(workload, [])) == [STRICT, "gate"] and points_of(workload, [STRICT])[STRICT].block == 4
    with pytest.raises(UserError, match="'lookup' is not certified here with the draft model. Known: strict, gate"):
        points_of(workload, ["lookup"])


def test_steps_have_names():
    with pytest.raises(UserError, match="no step 'quantized'"):
        drafting.wanted("whole,quantized")
    assert drafting.wanted(f"{TEXTS},{VOCABULARY}") == [WHOLE, VOCABULARY, TEXTS]
