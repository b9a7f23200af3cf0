"""Cheaper drafts: every step stays lossless for the strict rule, and a measurement goes on where it was."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import drafting, ladder
from benchmarks import drafting_vocabulary as vocabulary
from benchmarks.drafting_choices import best_assisted, costs_of, policy_of, prepare
from benchmarks.drafting_figures import figures
from benchmarks.drafting_methods import Comparison, points_of, steps_of
from benchmarks.ladder import QUANTISED, STEPS, STOPPING, STRICT, TEXTS, VOCABULARY, WHOLE, Ladder
from gistgate.drafters.costs import Costs
from gistgate.drafters.stopping import Stopping
from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.common.operating_point import Operating
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams
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


def comparison(rungs: Ladder, folder: Path, batch: int = 1) -> Comparison:
    return Comparison(rungs, {STRICT: POINT}, {STRICT: STEPS}, REQUEST, folder, batch)


def test_every_step_writes_the_greedy_text(rungs: Ladder, folder: Path):
    field = drafting.contenders(comparison(rungs, folder))
    assert [one.name for one in field] == ["plain", "generate", "assisted", *(f"{STRICT}: {step}" for step in STEPS)]
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
    compared, batches = comparison(rungs, folder), drafting.batches_of(prompts(5, 6, 7), 1, "--batch")
    field = drafting.contenders(compared)
    first = drafting.timed(field, [], batches[:2], folder)
    assert len(first["plain"]["seconds"]) == 2
    seen: list[Any] = []
    monkeypatch.setattr(drafting, "lap", lambda field, batch, turns: seen.append(batch) or read_runs(folder))
    again = drafting.timed(field, [], batches, folder)
    assert seen == [batches[2]] and again["plain"]["seconds"][:2] == first["plain"]["seconds"]
    found = figures(again, compared)
    entry = found[f"{STRICT}: {QUANTISED}"]
    price = costs_of(folder, QUANTISED).verification(entry["draft_forwards"]) + 0.25 * entry["draft_forwards"]
    assert entry["limit"] == pytest.approx(entry["tau"] / price) and 1 < entry["tau"] <= 4
    assert sum(entry["parts"].values()) == pytest.approx(1)
    assert "vs_before" not in found[f"{STRICT}: {WHOLE}"] and entry["vs_before"]["mean"] > 0
    assert entry["n"] == 3 and {"vs_plain", "vs_generate", "vs_assisted"} <= set(entry)


def read_runs(folder: Path) -> Any:
    """What a lap gives, from the file of the first prompt."""
    written = read_json(folder / "batch-0000.json")
    keys = ("seconds", "tokens", "forwards", "loops")
    return {name: [Timed(**{key: run[key] for key in keys})] for name, run in written.items()}


def test_what_development_prompts_say_is_measured_once(rungs: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ids = prompts(9, 10, 11, 12, 13, 14, 15, 16)
    prepare(rungs, {STRICT: POINT}, ids, {**REQUEST, "max_new_tokens": 40}, tmp_path)
    assert costs_of(tmp_path, WHOLE).step > 0 and (policy := policy_of(tmp_path, STRICT)) is not None
    assert policy.measured["rule"] == "exact" and policy_of(tmp_path, "fly") is None
    monkeypatch.setattr("benchmarks.drafting_choices.measure", lambda *_args, **_more: pytest.fail("measured again"))
    (tmp_path / "assisted.json").rename(tmp_path / "kept.json")
    prepare(rungs, {STRICT: POINT}, ids, REQUEST, tmp_path, batch=2)
    assert not (tmp_path / "assisted.json").exists()  # transformers assists one row at a time
    (tmp_path / "kept.json").rename(tmp_path / "assisted.json")
    prepare(rungs, {STRICT: POINT}, ids, REQUEST, tmp_path)
    assert read_json(tmp_path / "assisted.json")["draft"] in (WHOLE, QUANTISED)
    monkeypatch.setattr("benchmarks.drafting_choices.fastest", lambda variants, _ids: variants[-1])
    assert best_assisted(rungs, ids, REQUEST)["draft"] == QUANTISED


def test_batches_measure_no_costs_of_one_row_unless_drafts_end_early(rungs: Ladder, tmp_path: Path):
    ids, request = prompts(9, 10, 11, 12, 13, 14, 15, 16), {**REQUEST, "max_new_tokens": 40}
    for steps, expected in (((WHOLE, QUANTISED), set()), ((WHOLE, STOPPING), {f"costs-{WHOLE}.json"})):
        drafts = {name: rungs.drafts[name] for name in steps if name in rungs.drafts}
        folder = tmp_path / "-".join(steps)
        prepare(Ladder(rungs.workload, steps, drafts), {STRICT: POINT}, ids, request, folder, batch=2)
        assert {path.name for path in folder.glob("costs-*")} == expected


def test_batches_have_no_assisted_generation_and_no_limit(rungs: Ladder, folder: Path):
    compared, batches = comparison(rungs, folder, 2), drafting.batches_of(prompts(5, 6, 7, 8, 9), 2, "--batch")
    assert [len(one) for one in batches] == [2, 2]
    found = figures(drafting.timed(drafting.contenders(compared), [], batches, folder), compared)
    assert "assisted" not in found and found["plain"]["n"] == 2
    entry = found[f"{STRICT}: {TEXTS}"]
    assert entry["tau"] > 1 and "limit" not in entry and sum(entry["parts"].values()) == pytest.approx(1)


def test_assisted_generation_that_transformers_refuses_is_left_out_and_the_others_are_timed(
    rungs: Ladder, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refused(*_: Any) -> Any:
        raise UserError("'assisted' does not run with this pair (ValueError: no). Mend that, or leave it out.")

    monkeypatch.setattr("benchmarks.drafting_choices.fastest", refused)
    (folder / "assisted.json").unlink()
    prepare(rungs, {STRICT: POINT}, prompts(5, 6), REQUEST, folder)
    left_out = {"assisted": read_json(folder / "assisted.json")["failed"]}
    assert "ValueError: no" in left_out["assisted"]
    field = drafting.contenders(comparison(rungs, folder))
    assert [one.name for one in field] == ["plain", "generate", *(f"{STRICT}: {step}" for step in STEPS)]
    drafting.tell(left_out)
    assert "'assisted' is left out: 'assisted' does not run with this pair" in capsys.readouterr().out


def methods(folder: Path) -> Any:
    """A run with certified methods (one keeps nothing), a rule without a certificate and one that nobody calibrated."""
    named = {
        "gate": MethodParams("autojudge", knob="threshold", grid=(0.5,)),
        "lookup": MethodParams("prob", knob="r", grid=(0.5,), drafter="lookup"),
        "fly": MethodParams("fly", knob="window", grid=(4,)),
        "closed": MethodParams("prob", knob="r", grid=(0.9,)),
        "csd": MethodParams("csd", knob="r", grid=(0.5,)),
        "exact": MethodParams("exact"),
    }
    write_json(folder / "reports/calibration/free/fly.json", {})
    tested = [
        {"knob": 0.5, "fixed": {"scope": "all"}, "loose_per_100": 2.0},
        {"knob": 0.9, "fixed": {"scope": "all"}, "loose_per_100": 0.0},
        {"knob": 0.9, "fixed": {"scope": "words"}, "loose_per_100": 1.0},
    ]
    for name in ("gate", "closed"):
        write_json(folder / f"reports/calibration/free/{name}.json", {"settings": tested})
    own = {
        "gate": Operating("gate", "autojudge", "model", 6, {"scope": "all", "threshold": 0.5}, 0.5),
        "lookup": Operating("lookup", "prob", "lookup", 6),
        "closed": Operating("closed", "prob", "model", 6, {"scope": "all", "r": 0.9}, 0.9),
    }
    params = SimpleNamespace(
        decoding=SimpleNamespace(strict_block=4), methods=named, method=named.__getitem__, headline_budget=0.03
    )
    return SimpleNamespace(own=own, params=params)


def test_methods_that_are_left_out_are_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    workload = methods(tmp_path)
    points, absent = points_of(workload, [])
    assert list(points) == [STRICT, "gate"] and points[STRICT].block == 4
    assert list(absent) == ["lookup", "fly", "closed", "csd", "exact"] and "no token loosely" in absent["closed"]
    assert "drafts with 'lookup'" in absent["lookup"] and "nothing is certified for it" in absent["fly"]
    assert "was not calibrated here" in absent["csd"] and "as 'strict' does" in absent["exact"]
    points, absent = points_of(workload, [STRICT, "csd"])
    assert list(points) == [STRICT] and list(absent) == ["csd"]
    assert points_of(workload, [STRICT], strict_block=7)[0][STRICT].block == 7
    with pytest.raises(UserError, match="'csd' is left out: it was not calibrated here"):
        points_of(workload, ["csd"])
    with pytest.raises(UserError, match="no method 'cds'. Known: strict, gate, lookup, fly, closed, csd, exact"):
        points_of(workload, ["cds"])


@pytest.mark.parametrize("rule", ["ensemble", "kl-judge", "fsd"])
def test_rules_that_read_draft_probabilities_take_all_steps_but_texts(rungs: Ladder, rule: str):
    points = {STRICT: POINT, rule: Operating(rule, rule, "model", 3)}
    steps, absent = steps_of(rungs, points, STEPS)
    assert steps == {STRICT: list(STEPS), rule: [step for step in STEPS if step != TEXTS]}
    assert list(absent) == [f"{rule}: {TEXTS}"] and "needs draft probabilities" in absent[f"{rule}: {TEXTS}"]
    with pytest.raises(UserError, match="needs a gate"):
        steps_of(rungs, {"gate": Operating("gate", "autojudge", "model", 3)}, [WHOLE])


def test_other_code_begins_anew(monkeypatch: pytest.MonkeyPatch):
    before = drafting.folder_of([1], "int4")
    assert before == drafting.folder_of([1], "int4") != drafting.folder_of([2], "int4")
    monkeypatch.setattr(drafting, "made_by", lambda name: {"modules": [name], "fingerprint": "changed"})
    assert drafting.folder_of([1], "int4") != before


def test_few_prompts_are_told(capsys: pytest.CaptureFixture[str]):
    drafting.warn_of_few(50)
    assert not capsys.readouterr().out
    drafting.warn_of_few(49)
    assert "49 prompts without loops are left" in capsys.readouterr().out


def test_a_comparison_in_which_no_method_takes_a_step_is_refused():
    drafting.check_any({"strict": [TEXTS], "ensemble": []}, [TEXTS])
    with pytest.raises(UserError, match="No method can take any of the steps texts"):
        drafting.check_any({"ensemble": []}, [TEXTS])


def test_steps_have_names():
    with pytest.raises(UserError, match="no step 'quantized'"):
        drafting.wanted("whole,quantized")
    assert drafting.wanted(f"{TEXTS},{VOCABULARY}") == [VOCABULARY, TEXTS]


def test_the_fastest_part_of_the_vocabulary_on_development_prompts_is_taken(
    rungs: Ladder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(vocabulary, "counted", lambda _workload, size: SimpleNamespace(coverage=size / 100))
    monkeypatch.setattr(vocabulary, "draft_with", lambda *_: rungs.drafts[QUANTISED])
    measured: list[Any] = []
    monkeypatch.setattr(vocabulary, "measure", lambda *args, **_: measured.append(args) or Costs(1.0, 0.25, {3: 1.5}))
    ids = prompts(9, 10, 11)
    found = vocabulary.tried(rungs.workload, [50, 90], POINT, "int4", ids, REQUEST, tmp_path)
    assert [one["coverage"] for one in found] == [0.5, 0.9] and len(measured) == 2
    assert found[0]["strict"] == pytest.approx(found[0]["tau"] / (1.5 + 3 * 0.25)) and found[0]["tau"] > 1
    assert vocabulary.tried(rungs.workload, [90, 50], POINT, "int4", ids, REQUEST, tmp_path) == found[::-1]
    assert len(measured) == 2


def test_the_size_is_not_chosen_by_the_noise_of_the_target():
    """The second draft costs the same seconds, measured in an hour in which the target's steps were slow."""
    fast, slow = Costs(1.0, 0.2, {3: 1.0}), Costs(2.0, 0.1, {3: 1.2})
    first, second = vocabulary.promises([fast, slow], [{"3": 9, "0": 1}] * 2, 3)
    assert first == second and first["draft"] == pytest.approx(0.2 / 1.5)
    assert first["strict"] == pytest.approx(3.7 / ((1.0 + 2.4) / 3 + 0.6 / 1.5))
    assert vocabulary.best_size([{"size": 50, "strict": 1.5}, {"size": 90, "strict": 1.75}]) == 90
