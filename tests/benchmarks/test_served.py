"""What a server wrote is compared with what one process wrote, prompt by prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks import served
from benchmarks.answers import Answer, compared, figures
from benchmarks.served import points, rule_of, server_of, settings_of
from gistgate.errors import UserError
from pipeline.common.operating_point import Operating
from pipeline.pairs.source import ModelSource, PairSource
from pipeline.params import MethodParams

SERVED = [Answer([1, 2, 3], 1.0, False), Answer([4, 5], 0.0, True)]


def test_equal_ids_and_unequal_scores_are_counted_apart():
    assert compared(SERVED, SERVED) == {"equal": 2, "unequal_scores": 0, "n": 2}
    others = [Answer([1, 2, 9], 1.0, False), Answer([4, 5], 1.0, True)]
    assert compared(SERVED, others) == {"equal": 1, "unequal_scores": 1, "n": 2}


def test_the_forwards_that_read_prompts_count_as_forwards():
    found = figures(SERVED, {"blocks": 2, "loose": 1})
    assert found["tokens_per_forward"] == pytest.approx(5 / 4) and found["loose_share"] == pytest.approx(1 / 5)
    assert found["right"] == 1 and found["cut"] == 1


def test_the_certified_methods_that_a_server_can_run_are_compared_or_named_rules(monkeypatch: pytest.MonkeyPatch):
    shown = SimpleNamespace(wants_q=False, layers={"post"})
    hidden = SimpleNamespace(wants_q=True, layers=set())
    monkeypatch.setattr(served.Gate, "load", lambda folder: hidden if folder.name == "logistic+draft" else shown)
    loose = {name: Operating(name, name, "model", 8) for name in ("fly", "ensemble", "random", "prob")}
    gate = Operating("gate", "autojudge", "model", 8, {"risk": 0.1}, head="logistic")
    loose["reads q"] = Operating("reads q", "autojudge", "model", 8, {"risk": 0.1}, head="logistic+draft")
    loose["mix"] = Operating("mix", "ensemble-gate", "model", 8, {"risk": 0.1}, head="logistic")
    methods = {"autojudge": MethodParams("autojudge", learned=True, head="mlp")}
    params = SimpleNamespace(decoding=SimpleNamespace(block=6), methods=methods)
    workload = SimpleNamespace(points={**loose, "gate": gate}, params=params)
    assert list(points(workload, {})) == ["fly", "prob", "gate"]
    assert rule_of(gate) == {"rule": "autojudge", "settings": {"risk": 0.1}, "gate": "models/heads/logistic"}
    named = points(workload, {"prob-ratio": {"r": 0.3}, "autojudge": {"risk": 0.2}})
    assert rule_of(named["prob-ratio"]) == {"rule": "prob-ratio", "settings": {"r": 0.3}}
    assert rule_of(named["autojudge"])["gate"] == "models/heads/mlp"
    assert named["prob-ratio"].block == 6


def test_the_server_holds_the_pair_in_its_own_dtype():
    target, draft = ModelSource("some/target"), ModelSource("some/draft")
    command = server_of(PairSource(target, draft), 6, "python", []).command(8000)
    assert command[command.index("--dtype") + 1] == "bfloat16" and "some/draft" in " ".join(command)
    with pytest.raises(UserError, match="no draft model"):
        server_of(PairSource(target, drafter="suffix"), 6, "python", [])


@pytest.mark.parametrize("rules", ["{fly", "[1]"])
def test_rules_that_are_no_object_are_refused(rules):
    with pytest.raises(UserError, match="no JSON object"):
        settings_of(rules)
    assert settings_of("") == {}
