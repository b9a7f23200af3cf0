"""The stages that train heads: what is learnt, what is not, and what survives an interruption."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest

from gistgate.core.files import read_json, write_json
from gistgate.core.gate import Gate
from gistgate.core.utils import UserError
from pipeline import tracking
from pipeline.pair.pair import Pair
from pipeline.params import Params, TrainParams
from pipeline.stages import train
from tests.pipeline.labels.made import WIDTH, write_features
from tests.tiny import byte_tokenizer, tiny_pair

SETTINGS = TrainParams(
    features=("h_tok:post", "scalars"),
    pilot_features=("scalars", "h_tok:post"),
    heads=("logistic", "linear", "mlp"),
    c=(0.01, 0.1),
    epochs=20,
    lr=0.01,
    hidden=8,
)
PARAMS = Params(train=SETTINGS)


@pytest.fixture(scope="module")
def pair():
    return Pair(*tiny_pair(), byte_tokenizer(), "tiny")


@pytest.fixture
def stage(pair, tmp_path, monkeypatch):
    """Runs a training stage in an empty folder and records what would be tracked."""
    monkeypatch.chdir(tmp_path)
    write_json("data/prompts/problems.json", {"train": "0a1b 2c3d"})
    runs = []

    @contextmanager
    def tracked(params, name, kind):
        record = tracking.JsonRecord()
        yield record
        runs.append((name, kind, record.line))

    monkeypatch.setattr(tracking, "run", tracked)
    monkeypatch.setattr(train, "load_pair", lambda params: pair)

    def start(goal, params=PARAMS):
        monkeypatch.setattr(train, "read_params", lambda: params)
        train.main(goal)
        return runs

    return start


def both_passes(folder, **changes):
    write_features(folder / "data/features/strict", policy=0, **changes)
    write_features(folder / "data/features/gated", policy=2, **changes)


def test_heads_learn_a_direction_that_decides(stage, tmp_path):
    both_passes(tmp_path)
    runs = stage("heads")
    for head in ("logistic", "linear", "mlp"):
        folder = tmp_path / "models/heads" / head
        metrics, curves = read_json(folder / "metrics.json"), read_json(folder / "curves.json")
        assert metrics["policy"] == "gated"
        assert metrics["policies"].keys() == {"all", "strict", "gated"}
        assert metrics["n"] == metrics["policies"]["gated"]["n"] == 12 * 25
        assert metrics["auc"] > 0.95, head
        assert metrics["ece"] < 0.08
        assert 0.35 < metrics["references"]["entropy"]["auc"] < 0.65
        assert metrics["references"].keys() == {"entropy", "logprob-ratio", "kl"}
        assert len(curves["reliability"]) == 15
        assert curves["precision_recall"]
        config = Gate.load(folder).config
        assert config.features == {"h_tok:post": WIDTH, "scalars": 8} and config.problems == "0a1b 2c3d"
    assert [(name, kind) for name, kind, _ in runs] == [(h, "head") for h in ("logistic", "linear", "mlp")]
    assert runs[0][2]["metrics"]["auc"] > 0.9


def test_a_head_may_see_more_than_the_others(stage, tmp_path):
    """The draft's own confidence decides here, and only the head that sees it learns."""
    for name, policy in (("strict", 0), ("gated", 2)):
        write_features(tmp_path / "data/features" / name, policy=policy, shuffled=True, told=True)
    heads = ("logistic", "logistic+draft")
    stage("heads", replace(PARAMS, train=replace(SETTINGS, heads=heads)))
    found = {head: read_json(tmp_path / "models/heads" / head / "metrics.json")["auc"] for head in heads}
    assert found["logistic"] < 0.6 and found["logistic+draft"] > 0.95
    gates = [Gate.load(tmp_path / "models/heads" / head) for head in heads]
    assert [list(gate.config.features) for gate in gates] == [
        ["h_tok:post", "scalars"],
        ["h_tok:post", "scalars", "draft"],
    ]
    assert [gate.wants_q for gate in gates] == [False, True]


def test_nothing_is_learnt_where_nothing_is_to_learn(stage, tmp_path):
    both_passes(tmp_path, shuffled=True)
    stage("heads")
    for head in ("logistic", "linear", "mlp"):
        assert 0.4 < read_json(tmp_path / "models/heads" / head / "metrics.json")["auc"] < 0.6


def test_the_pilot_reads_its_own_features_only(stage, tmp_path, pair):
    """A change of train.features leaves the pilot, and with it every rollout on its texts, as it is."""
    write_features(tmp_path / "data/features/pilot", policy=0)
    stage("pilot")
    gate = Gate.load(tmp_path / "models/pilot", pair.target, pair.draft, pair.tokenizer)
    assert gate.config.head == {"type": "linear"}
    assert gate.config.provenance["data"].keys() == {"data/features/pilot"}
    assert list(gate.config.features) == ["scalars", "h_tok:post"]
    assert read_json(tmp_path / "models/pilot/metrics.json")["policy"] == "all"
    assert str(tmp_path) not in (tmp_path / "models/pilot/config.json").read_text()
    before = (tmp_path / "models/pilot/config.json").read_bytes()
    stage("pilot", replace(PARAMS, train=replace(SETTINGS, features=("scalars",))))
    assert (tmp_path / "models/pilot/config.json").read_bytes() == before


def test_equal_inputs_give_equal_bytes(stage, tmp_path):
    both_passes(tmp_path, problems=12)
    stage("heads")
    first = {path: path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file()}
    train.shutil.rmtree(tmp_path / ".scratch")
    stage("heads")
    assert {path: path.read_bytes() for path in first} == first


def test_a_finished_head_is_not_trained_again_unless_it_changes(stage, tmp_path, monkeypatch):
    both_passes(tmp_path, problems=12)
    stage("heads")
    trained = []
    run = train.Job.run
    monkeypatch.setattr(train.Job, "run", lambda job, *rest: (trained.append(job.head), run(job, *rest))[1])
    stage("heads")
    assert trained == []
    stage("heads", replace(PARAMS, train=replace(SETTINGS, hidden=4)))
    assert trained == ["mlp"]
    assert len(list((tmp_path / ".scratch").iterdir())) == 3


@pytest.mark.parametrize("goal, sentence", [("heads", "holds no features"), ("heds", "nothing called 'heds'")])
def test_a_wrong_start_is_one_sentence(stage, goal, sentence):
    with pytest.raises(UserError, match=sentence):
        stage(goal)


def test_an_unknown_head_is_one_sentence(stage, tmp_path):
    both_passes(tmp_path, problems=4)
    settings = replace(SETTINGS, heads=("forest",), headline_head="forest")
    with pytest.raises(UserError, match="no gate head 'forest'"):
        stage("heads", replace(PARAMS, train=settings))


def test_summary_values_are_plain_json(stage, tmp_path):
    write_features(tmp_path / "data/features/pilot", policy=0, problems=12)
    stage("pilot")
    json.loads((tmp_path / "models/pilot/metrics.json").read_text())
