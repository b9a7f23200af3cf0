"""A gate that is trained on the labels of two runs: their rows, its configuration, and what is refused."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest
import torch
import yaml

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.gates.gate import Gate
from pipeline.common import tracking
from pipeline.pairs.pair import Pair
from pipeline.params import read_params
from pipeline.stages import train
from pipeline.studies.real import together
from tests.pipeline.labels.made import write_features
from tests.tiny import byte_tokenizer, tiny_pair

TRAIN = {"features": ["h_tok:post", "scalars"], "heads": ["logistic"], "c": [0.01, 0.1]}


@contextmanager
def untracked(*_arguments, **_more):
    yield tracking.JsonRecord()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two finished runs of one pair, with the same problem numbers."""
    pair = Pair(*tiny_pair(), byte_tokenizer(), "tiny")
    monkeypatch.setattr(tracking, "run", untracked)
    monkeypatch.setattr(train, "load_pair", lambda _params: pair)
    for name in ("sums", "code"):
        place = tmp_path / name
        write_features(place / "data/features/strict", policy=0)
        write_features(place / "data/features/gated", policy=2)
        write_json(place / "data/prompts/problems.json", {"train": f"00 {name}"})
        (place / "params.yaml").write_text(yaml.safe_dump({"task": name, "train": TRAIN}))
        monkeypatch.chdir(place)
        train.train_all("heads", read_params())
    monkeypatch.chdir(tmp_path)
    return [tmp_path / "sums", tmp_path / "code"]


def test_one_gate_learns_from_both(runs: list[Path], tmp_path: Path, capsys):
    together.main(runs, tmp_path / "gate")
    config, metrics = Gate.load(tmp_path / "gate").config, read_json(tmp_path / "gate/metrics.json")
    alone = read_json(runs[0] / "models/heads/logistic/metrics.json")
    assert (config.labels["task"], config.problems) == ("sums, code", "00 code sums")
    assert config.target == Gate.load(runs[0] / train.HEADS / "logistic").config.target
    assert set(config.provenance["data"]) == {"sums: strict", "sums: gated", "code: strict", "code: gated"}
    assert metrics["auc"] > 0.9 and metrics["n"] > alone["n"]
    assert "AUC" in capsys.readouterr().out


def test_programs_of_one_run_are_programs_of_the_gate(runs: list[Path], tmp_path: Path):
    config = Gate.load(runs[0] / train.HEADS / "logistic").config
    code = replace(config, labels={**config.labels, "code": True})
    assert together.config_of([config, code], runs).labels["code"] is True
    assert "code" not in together.config_of([config, config], runs).labels


def test_a_run_that_does_not_say_its_problems_is_refused(runs: list[Path], tmp_path: Path):
    """The new gate would name the other run's problems alone, and could be certified on these."""
    place = runs[1] / train.HEADS / "logistic"
    gate = Gate.load(place)
    gate.config = replace(gate.config, problems="")
    rmtree(place)
    gate.save(place)
    with pytest.raises(UserError, match="code does not say which problems it was trained on"):
        together.main(runs, tmp_path / "gate")


def test_problems_of_two_runs_stay_apart(runs: list[Path]):
    parts = [together.read_rows(together.folders_of(place), ("scalars",))[0] for place in runs]
    rows = together.stacked(parts)
    assert len(rows) == sum(map(len, parts)) and len(rows.problem.unique()) == 2 * len(parts[0].problem.unique())
    assert torch.equal(rows.x[: len(parts[0])], parts[0].x)


def test_runs_of_another_pair_and_a_single_run_are_refused(runs: list[Path], tmp_path: Path):
    config = Gate.load(runs[0] / train.HEADS / "logistic").config
    other = replace(config, target=replace(config.target, fingerprint="other"), features={"scalars": 11})
    with pytest.raises(UserError, match="differ in target, features"):
        together.check_same(runs, [config, other])
    with pytest.raises(UserError, match="at least two"):
        together.main(runs[:1], tmp_path / "gate")
