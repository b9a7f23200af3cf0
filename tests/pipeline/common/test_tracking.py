"""The record of runs: what MLflow keeps, where, and what happens without it."""

import importlib.util
import json

import numpy
import pytest

from gistgate.errors import UserError
from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import ModelIdentity, TokenizerIdentity
from pipeline.common import registry, tracking
from pipeline.params import parse_params

PARAMS = parse_params({"pair": "tiny", "task": "sums"})


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One database for all tests: creating one takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("DVC_ROOT", str(folder))
        patch.setenv("DVC_EXP_NAME", "brave-name")
        yield folder


@pytest.mark.slow
def test_a_run_keeps_numbers_files_and_origin(store, tmp_path):
    (tmp_path / "heads").mkdir()
    (tmp_path / "heads" / "metrics.json").write_text("{}")
    with tracking.run(PARAMS, "fly", kind="method") as record:
        record.log_params({"fixed": {"window": 2}})
        record.log_metrics({"accuracy": 0.5, "speed": {"mean": 1.5, "note": "text"}})
        record.log_artifacts(tmp_path / "heads")
    import mlflow

    run = mlflow.search_runs(experiment_names=["tiny/sums"], output_format="list")[0]
    assert run.data.params == {"fixed.window": "2"}
    assert run.data.metrics == {"accuracy": 0.5, "speed.mean": 1.5}
    assert run.data.tags["dvc.experiment"] == "brave-name" and run.data.tags["kind"] == "method"
    assert run.data.tags["git.revision"]
    assert (store / "mlflow.db").exists()
    assert list((store / "mlruns").rglob("heads/metrics.json"))


def test_a_failed_run_is_marked(store):
    with pytest.raises(ZeroDivisionError), tracking.run(PARAMS, "broken", kind="method"):
        raise ZeroDivisionError
    import mlflow

    found = mlflow.search_runs(experiment_names=["tiny/sums"], output_format="list")
    assert [run.info.status for run in found if run.info.run_name == "broken"] == ["FAILED"]


def test_the_registered_gate_is_ours(store, tmp_path):
    """What the alias names gives the same probabilities as the gate that was registered."""
    model = ModelIdentity("t", None, "llama", 4, 1, 9, "float32", None)
    gate = Gate(GateConfig({"type": "linear"}, {"scalars": 3}, model, None, TokenizerIdentity("t", "0", 9)))
    gate.save(tmp_path / "gate")
    assert registry.register_gate(PARAMS, tmp_path / "gate", {"auc": 0.9}) == "1"
    assert registry.register_gate(PARAMS, tmp_path / "gate") == "2"
    import mlflow
    import torch

    loaded = mlflow.pyfunc.load_model("models:/gistgate@best")
    rows = numpy.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    assert numpy.allclose(loaded.predict(rows), gate.probability(torch.from_numpy(rows)).numpy())
    assert str(mlflow.MlflowClient().get_model_version_by_alias("gistgate", "best").version) == "2"
    assert not list((store / "mlruns").rglob("*.pkl"))


def test_an_unusable_store_is_one_sentence(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{store}/old")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"), tracking.run(PARAMS, "fly", kind="method"):
        pass


def test_without_mlflow_a_line_of_json(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mlflow" else find(name, *rest)
    )
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    with tracking.run(PARAMS, "fly", kind="method") as record:
        record.log_metrics({"accuracy": 0.5}, step=3)
    line = json.loads((tmp_path / "runs.jsonl").read_text())
    assert line["metrics"] == {"accuracy@3": 0.5} and line["status"] == "FINISHED"
    assert registry.register_gate(PARAMS, tmp_path) is None


def test_a_queued_experiment_writes_to_the_repository(tmp_path, monkeypatch):
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "copy"
    copy.mkdir(parents=True)
    monkeypatch.setenv("DVC_ROOT", str(copy))
    assert tracking.root() == tmp_path
