"""The stages that train heads: what is learnt, what is not, and what survives an interruption."""

import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from gistgate.errors import UserError
from gistgate.files import load_tensors, read_json, save_tensors
from gistgate.gates import Gate
from pipeline import tracking, train
from pipeline.fitting import nets
from pipeline.fitting.logistic import fit_logistic
from pipeline.fitting.maps import fit_isotonic, fit_platt
from pipeline.fitting.nets import fit_net
from pipeline.fitting.rows import Rows, read_rows
from pipeline.fitting.split import split_by_problem
from pipeline.params import Params, TrainParams
from tests.pipeline.labels import WIDTH, write_labels
from tests.tiny import byte_tokenizer, tiny_pair

SETTINGS = TrainParams(features=("h_tok:post", "scalars"), c=(0.01, 0.1), epochs=20, lr=0.01, hidden=8)
PARAMS = Params(train=SETTINGS)


@pytest.fixture(scope="module")
def pair():
    return SimpleNamespace(**dict(zip(("target", "draft"), tiny_pair(), strict=True)), tokenizer=byte_tokenizer())


@pytest.fixture
def stage(pair, tmp_path, monkeypatch):
    """Runs a training stage in an empty folder and records what would be tracked."""
    monkeypatch.chdir(tmp_path)
    runs = []

    @contextmanager
    def tracked(params, name, kind):
        record = tracking.JsonRecord()
        yield record
        runs.append((name, kind, record.line))

    monkeypatch.setattr(tracking, "run", tracked)
    monkeypatch.setattr(train, "load_pair", lambda params: pair)

    def start(goal, params=PARAMS):
        monkeypatch.setattr(train, "item", lambda: goal)
        monkeypatch.setattr(train, "read_params", lambda: params)
        train.main()
        return runs

    return start


def both_policies(folder, **changes):
    write_labels(folder / "data/labels/strict", prefix=0, **changes)
    write_labels(folder / "data/labels/gated", prefix=2, **changes)


# Stages.


def test_heads_learn_a_direction_that_decides(stage, tmp_path):
    both_policies(tmp_path)
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
        assert Gate.load(folder).config.features == {"h_tok:post": WIDTH, "scalars": 8}
    assert [(name, kind) for name, kind, _ in runs] == [(h, "head") for h in ("logistic", "linear", "mlp")]
    assert runs[0][2]["metrics"]["auc"] > 0.9


def test_nothing_is_learnt_where_nothing_is_to_learn(stage, tmp_path):
    both_policies(tmp_path, shuffled=True)
    stage("heads")
    for head in ("logistic", "linear", "mlp"):
        assert 0.4 < read_json(tmp_path / "models/heads" / head / "metrics.json")["auc"] < 0.6


def test_the_pilot_reads_strict_labels_only(stage, tmp_path, pair):
    write_labels(tmp_path / "data/labels/strict", prefix=0)
    stage("pilot")
    gate = Gate.load(tmp_path / "models/pilot", pair.target, pair.draft, pair.tokenizer)
    assert gate.config.head == {"type": "linear"}
    assert gate.config.provenance["data"].keys() == {"data/labels/strict"}
    assert read_json(tmp_path / "models/pilot/metrics.json")["policy"] == "all"
    assert str(tmp_path) not in (tmp_path / "models/pilot/config.json").read_text()


def test_equal_inputs_give_equal_bytes(stage, tmp_path):
    both_policies(tmp_path, problems=12)
    stage("heads")
    first = {path: path.read_bytes() for path in (tmp_path / "models").rglob("*") if path.is_file()}
    train.shutil.rmtree(tmp_path / ".scratch")
    stage("heads")
    assert {path: path.read_bytes() for path in first} == first


def test_a_finished_head_is_not_trained_again_unless_it_changes(stage, tmp_path, monkeypatch):
    both_policies(tmp_path, problems=12)
    stage("heads")
    trained = []
    run = train.Job.run
    monkeypatch.setattr(train.Job, "run", lambda job, *rest: (trained.append(job.head), run(job, *rest))[1])
    stage("heads")
    assert trained == []
    stage("heads", replace(PARAMS, train=replace(SETTINGS, hidden=4)))
    assert trained == ["mlp"]
    assert len(list((tmp_path / ".scratch").iterdir())) == 3


@pytest.mark.parametrize("goal, sentence", [("heads", "holds no labels"), ("heds", "nothing called 'heds'")])
def test_a_wrong_start_is_one_sentence(stage, goal, sentence):
    with pytest.raises(UserError, match=sentence):
        stage(goal)


def test_an_unknown_head_is_one_sentence(stage, tmp_path):
    both_policies(tmp_path, problems=4)
    settings = replace(SETTINGS, heads=("forest",), headline_head="forest")
    with pytest.raises(UserError, match="no gate head 'forest'"):
        stage("heads", replace(PARAMS, train=settings))


# Rows.


@pytest.fixture
def labels(tmp_path):
    write_labels(tmp_path / "strict", prefix=0, problems=12)
    return tmp_path / "strict"


def damage(folder, change):
    file = folder / "rows-00001.safetensors"
    tensors = load_tensors(file)
    change(tensors)
    save_tensors(file, tensors)


def set_nan(tensors):
    tensors["h_tok:post"][7, 3] = torch.nan


@pytest.mark.parametrize(
    "change, sentence",
    [
        (set_nan, r"rows-00001.safetensors: 'h_tok:post' is not finite in 1 rows, the first is row 7"),
        (lambda t: t.pop("scalars"), "rows-00001.safetensors lacks scalars"),
        (lambda t: t["kept"].fill_(1.5), "no probability in every row"),
        (lambda t: t.update(problem=t["problem"][:3]), "'problem' has 3 rows, 'kept' has 150"),
        (lambda t: t.update({"h_tok:post": t["h_tok:post"][:, :4].clone()}), "features of widths"),
    ],
)
def test_a_bad_label_file_is_one_sentence(labels, change, sentence):
    damage(labels, change)
    with pytest.raises(UserError, match=sentence):
        read_rows([labels], ["h_tok:post", "scalars"])


def test_features_stand_side_by_side_in_the_order_asked_for(labels):
    rows, widths = read_rows([labels], ["scalars", "h_tok:post"])
    assert list(widths.items()) == [("scalars", 8), ("h_tok:post", WIDTH)]
    assert torch.equal(rows.x[:, :8], rows.scalars)
    assert rows.x.dtype == torch.float32
    assert rows.scalar("entropy").equal(rows.scalars[:, 2])


def test_no_problem_is_in_two_parts():
    problem = torch.randint(80, (1000,), generator=torch.Generator().manual_seed(0))
    parts = vars(split_by_problem(problem, SETTINGS, seed=1))
    assert sum(part.int() for part in parts.values()).eq(1).all(), "every row is in exactly one part"
    found = [set(problem[part].tolist()) for part in parts.values()]
    assert sum(map(len, found)) == len(set.union(*found)) == len(problem.unique())
    assert len(problem[parts["test"]].unique()) == round(0.2 * len(problem.unique()))


def test_the_split_depends_on_problems_and_seed_alone():
    problem = torch.arange(80)
    parts, doubled = (split_by_problem(p, SETTINGS, 1) for p in (problem, problem.repeat(2)))
    assert torch.equal(doubled.test, parts.test.repeat(2))
    assert not torch.equal(parts.test, split_by_problem(problem, SETTINGS, 2).test)


def test_too_few_problems_are_one_sentence():
    with pytest.raises(UserError, match="Mismatches of 3 problems"):
        split_by_problem(torch.arange(3), SETTINGS, 1)


# Heads.


def made(num=600, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 5, generator=generator) * 2 + 3
    kept = (x[:, 0] - 3 + torch.randn(num, generator=generator) > 0).float()
    kept[::4] = 0.7
    return Rows(x, torch.zeros(num, 8), torch.arange(num) % 30, torch.zeros(num), kept, torch.zeros(num))


def test_the_logistic_head_equals_scikit_learn_on_doubled_rows():
    """What is folded says what StandardScaler and LogisticRegression say of the same soft labels."""
    rows = made()
    head, _ = fit_logistic(rows, [0.1], folds=5)
    x, kept = rows.x.double().numpy(), rows.kept.double().numpy()
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(C=0.1, max_iter=2000).fit(
        np.concatenate([scaler.transform(x)] * 2),
        np.repeat([1, 0], len(x)),
        sample_weight=np.concatenate([kept, 1 - kept]),
    )
    expected = model.predict_proba(scaler.transform(x))[:, 1]
    assert np.allclose(head(rows.x).sigmoid().detach().numpy(), expected, atol=1e-3)


def test_c_is_chosen_on_unseen_problems():
    """With as many features as rows and no signal, the strongest regularisation wins."""
    generator = torch.Generator().manual_seed(0)
    rows = replace(
        made(100),
        x=torch.randn(100, 80, generator=generator),
        kept=(torch.rand(100, generator=generator) < 0.5).float(),
    )
    _, losses = fit_logistic(rows, [1e-4, 1e-2, 1.0], folds=5)
    assert losses["0.0001"] < losses["0.01"] < losses["1"]


def test_labels_that_are_all_alike_are_one_sentence():
    with pytest.raises(UserError, match="labels are alike"):
        fit_logistic(replace(made(), kept=torch.ones(600)), [0.1], folds=5)


@pytest.mark.parametrize("moment", ["on_train_epoch_end", "on_train_batch_end", "on_validation_end"])
def test_a_killed_training_goes_on_and_ends_with_the_same_weights(tmp_path, monkeypatch, moment):
    rows, unseen, settings = made(), made(seed=1), replace(SETTINGS, epochs=6, patience=6)
    whole, _ = fit_net("mlp", rows, unseen, settings, 1, tmp_path / "whole")

    def kill(self, *_rest):
        if self.current_epoch == 3:
            raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(nets.HeadTraining, moment, kill)
        with pytest.raises(KeyError):
            fit_net("mlp", rows, unseen, settings, 1, tmp_path / "part")
    assert (tmp_path / "part/last.ckpt").exists()
    epochs = []
    step = nets.HeadTraining.training_step
    monkeypatch.setattr(
        nets.HeadTraining,
        "training_step",
        lambda self, *rest: (epochs.append(self.current_epoch), step(self, *rest))[1],
    )
    again, report = fit_net("mlp", rows, unseen, settings, 1, tmp_path / "part")
    assert epochs[0] > 0, "the finished epochs are not repeated"
    assert report["epochs"] == 6
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


# Maps.


def test_maps_undo_a_distortion():
    """Logits that are twice too large are brought back to the probabilities behind them."""
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, size=20000)
    kept = (generator.random(20000) < 1 / (1 + np.exp(-(logits - 1)))).astype(float)
    platt = fit_platt(2 * logits, kept)
    assert float(platt.a) == pytest.approx(0.5, abs=0.03)
    assert float(platt.b) == pytest.approx(-1, abs=0.06)
    grid = torch.linspace(-3, 3, 50)
    assert torch.allclose(fit_isotonic(2 * logits, kept)(2 * grid), torch.sigmoid(grid - 1), atol=0.06)


@pytest.mark.parametrize("fit", [fit_platt, fit_isotonic])
@pytest.mark.parametrize("kept", [np.ones(20), np.zeros(20), (np.arange(20) >= 10) * 1.0, (np.arange(20) < 10) * 1.0])
def test_no_map_is_ever_certain_or_turned_round(fit, kept):
    probability = fit(np.arange(20.0), kept)(torch.arange(-5.0, 25.0))
    assert ((probability > 0) & (probability < 1)).all()
    assert (probability.diff() >= 0).all()


def test_summary_values_are_plain_json(stage, tmp_path):
    both_policies(tmp_path, problems=12)
    stage("pilot")
    json.loads((tmp_path / "models/pilot/metrics.json").read_text())
