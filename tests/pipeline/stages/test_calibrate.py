"""The stage end to end on a world without models: what it decodes, what it skips, what it
writes.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gistgate.certificates import calibration as scope
from gistgate.certify.records import recomputed
from gistgate.core.files import read_json, write_json_lines, write_text
from gistgate.core.identity import ModelIdentity
from gistgate.core.request import Generation, Statistics
from gistgate.core.utils import UserError
from gistgate.tasks.task import Prompting
from pipeline import outcomes
from pipeline.stages import calibrate
from tests.pipeline.parameters import parameters

SIZES = {"development": 400, "calibration": 1200}
PARAMS = {
    "prompts": SIZES,
    "decoding": {"workers": 1},  # made-up parts exist in this process alone
    "methods": {
        "exact": {"rule": "exact"},
        "prob": {"rule": "prob", "knob": "r", "grid": [0.5, 0.4, 0.3, 0.2, 0.1, 0.05]},
        "fly": {
            "rule": "fly",
            "fixed": {"entropy": "top3"},
            "variants": [{"window": 0}, {"window": 2}],
            "knob": "theta",
            "grid": [1.0, 0.7, 0.4],
        },
        "judge": {
            "rule": "autojudge",
            "after": "models/heads/logistic",
            "knob": "risk",
            "grid": [0.1, 0.2],
        },
    },
}

STRICT = {
    "score": 1.0,
    "ids": [1],
    "finish": "eos",
    "statistics": Statistics(forwards=10, strict=30, own=10).as_dict(timed=False),
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Prompts, references and a decoder that loses the first prompts of a split, the more the
    looser it is.
    """
    monkeypatch.chdir(tmp_path)
    calls = []
    write_text(
        Path("models/pairs/embedded.yaml"), "target: {model: t}\ndraft: {model: d}\ntraining: {}\n"
    )
    for split, size in SIZES.items():
        names = [f"{split}-{index}" for index in range(size)]
        asked = {"stops": [], "max_new_tokens": 40}
        write_json_lines(
            Path(f"data/prompts/{split}.jsonl"),
            [
                {"id": name, "ids": [place], "doc": {"name": name}, **asked}
                for place, name in enumerate(names)
            ],
        )
        write_json_lines(
            Path(f"data/reference/{split}.jsonl"),
            [
                {"id": name, "mark": outcomes.mark("maker", [place]), **STRICT}
                for place, name in enumerate(names)
            ],
        )

    def decode_split(choice, pair, prompts, params, title, memory, start, rows):
        calls.append((choice.rule, prompts[0]["id"].split("-")[0], choice.settings))
        looseness = {"prob": 0.5 - choice.settings.get("r", 0.5), "fly": 0.5}[choice.rule]
        lost = round(looseness / 4 * len(prompts))
        counted = Statistics(forwards=10, strict=30, loose=lost, own=10, seconds={"total": 1.0})
        kept = [int(index >= lost) for index in range(len(prompts))]
        return [Generation([right], [], "eos", counted) for right in kept]

    identity = ModelIdentity("tiny", None, "llama", 8, 2, 100, "float32", "abc")
    task = SimpleNamespace(
        name="sums",
        metric="exact_match,answer",
        stops=["Q:"],
        max_new_tokens=9,
        prompting=Prompting(),
        files=(),
        text=lambda _tokenizer, ids: ids[0],
        score=lambda _doc, text: float(text),
        problem=lambda doc: str(doc),
    )
    pair = SimpleNamespace(
        target=SimpleNamespace(dtype=torch.float32, device="cpu"),
        draft=None,
        models=[None, None],
        tokenizer=None,
        server=None,
    )
    for module, name, stand_in in (
        (outcomes, "maker_of", lambda _pair: "maker"),
        (outcomes, "load_answering", lambda params: pair),
        (outcomes, "load_task", lambda params: task),
        (outcomes, "answering_decoder", lambda _pair, choice, _gate, _engine: choice),
        (outcomes, "decode_split", decode_split),
        (scope, "identify_model", lambda model: identity),
        (scope, "eos_ids", lambda target, tokenizer: [2]),
        (scope, "tokenizer_scope", lambda tokenizer, known: {"tokenizer": "hash"}),
    ):
        monkeypatch.setattr(module, name, stand_in)
    return SimpleNamespace(params=parameters(**PARAMS), calls=calls)


def start(world, monkeypatch, name: str) -> dict:
    """Run the stage; returns the calibration that it writes."""
    monkeypatch.setattr(calibrate, "read_params", lambda: world.params)
    calibrate.main(name)
    return read_json(Path(f"reports/calibration/{name}.json"))


def test_the_loosest_certified_setting_is_kept_for_every_budget(world, monkeypatch):
    """Without a loss 1200 prompts bound the loss by 0.25 %, which is too much for the smallest
    budget.
    """
    world.params = parameters(**PARAMS, calibrate={"budgets": [0.001, 0.02, 0.05]})
    found = start(world, monkeypatch, "prob")
    assert found["sequence"][0]["fixed"] == {}
    certified = {budget: entry["certified"] for budget, entry in found["budgets"].items()}
    assert certified == {"0.001": False, "0.02": True, "0.03": True, "0.05": True}
    for budget, entry in found["budgets"].items():
        has_knob, is_refused = entry["knob"] is not None, bool(entry["refusal"])
        assert (has_knob, is_refused) == (entry["certified"], not entry["certified"])
        assert (entry["bound"] <= float(budget)) is entry["certified"]
    assert found["budgets"]["0.05"]["knob"] == 0.4  # loses 2.5 %; the next, 0.3, loses 5 %
    assert found["settings"][-1]["losses"] == round(0.1 / 4 * 1200)
    assert found["settings"][-1]["mean_accepted_length"] == pytest.approx((40 + 30) / 10)
    assert {run["n"] for run in found["development"]} == {400}


def test_strict_decoding_is_its_own_reference(world, monkeypatch):
    """Nothing is decoded, nothing is lost, and the bound is what n prompts without a loss are
    worth.
    """
    found = start(world, monkeypatch, "exact")
    assert world.calls == []
    assert (found["knob"], found["development"]) == (None, [])
    assert found["settings"][0]["mean_accepted_length"] == 4.0
    assert found["budgets"]["0.02"]["certified"]
    assert found["budgets"]["0.02"]["bound"] == pytest.approx(3 / 1200, rel=0.01)


def test_settings_behind_the_first_failure_are_not_decoded(world, monkeypatch):
    """A rule that loses 12.5 % whatever its knob: one setting is tested, and the refusal says that
    no n would do.
    """
    found = start(world, monkeypatch, "fly")
    assert [split for _, split, _ in world.calls].count("calibration") == 1
    assert len(found["settings"]) == 1
    for entry in found["budgets"].values():
        assert (entry["certified"], entry["knob"], entry["needed_n"]) == (False, None, None)
        assert "would not help" in entry["refusal"]


def test_another_choice_on_the_same_prompts_is_refused_and_nothing_is_decoded(world, monkeypatch):
    start(world, monkeypatch, "prob")
    changed = replace(world.params, calibrate=replace(world.params.calibrate, budgets=(0.01, 0.05)))
    monkeypatch.setattr(calibrate, "read_params", lambda: changed)
    calls = len([call for call in world.calls if call[1] == "calibration"])
    with pytest.raises(
        UserError, match=r"already been judged.*Set prompts\.draw to \d+ in params\.yaml"
    ):
        calibrate.main("prob")
    assert len([call for call in world.calls if call[1] == "calibration"]) == calls


def test_a_setting_that_is_lost_is_left_early(world, monkeypatch):
    """fly loses 12.5 % everywhere; prob keeps its certificates."""
    world.params = parameters(**PARAMS, calibrate={"stop": "lost"})
    fly, kept = (start(world, monkeypatch, name) for name in ("fly", "prob"))
    [lost] = fly["settings"]
    assert lost["n"] == 256 and lost["accuracy"] == 1 - 0.125
    assert "leave no doubt" in fly["budgets"]["0.05"]["refusal"]
    (row,) = recomputed(Path("reports/records/fly/setting-1.json")).tasks
    assert row["n"] == 256
    assert kept["budgets"]["0.05"]["knob"] == 0.4 and kept["budgets"]["0.05"]["n"] == 1200


def test_every_bound_is_computed_again_from_its_records(world, monkeypatch):
    report = start(world, monkeypatch, "prob")
    cards = [
        recomputed(Path(f"reports/records/prob/setting-{number}.json"))
        for number in range(1, len(report["settings"]) + 1)
    ]
    assert len(cards) > 1
    assert [card.bound for card in cards] == [setting["bound"] for setting in report["settings"]]
    assert [card.verdict for card in cards] == ["PASS", "FAIL"]  # the headline budget is 3 %
    assert not Path(".scratch/calibrate-prob").exists()
