"""The record of runs: what MLflow keeps, and where."""

import warnings
from pathlib import Path

import pytest
import yaml

from gistgate.core.decoder import Decoder
from gistgate.core.features import SCALARS
from gistgate.core.files import fingerprint, write_text
from gistgate.core.gate import Gate, GateConfig
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from pipeline import tracking
from pipeline.pair.pair import PairSource
from pipeline.params import build, parse_params
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

PARAMS = parse_params({"pair": "tiny", "task": "sums", "methods": {}})


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


def test_runs_inside_a_run_are_nested_and_name_their_data(store, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text("{}\n")
    with tracking.run(PARAMS, "comparison", kind="comparison") as record:
        record.log_data(data, "test")
        with tracking.run(PARAMS, "inner", kind="method") as record:
            record.log_curve("loss", [3.0, 2.0], every=10)
    import mlflow

    runs = {run.info.run_name: run for run in mlflow.search_runs(experiment_names=["tiny/sums"], output_format="list")}
    outer, inner = runs["comparison"], runs["inner"]
    assert inner.data.tags["mlflow.parentRunId"] == outer.info.run_id
    (given,) = outer.inputs.dataset_inputs
    assert given.dataset.name == data.as_posix() and fingerprint(data).startswith(given.dataset.digest)
    assert [tag.value for tag in given.tags] == ["test"]
    history = mlflow.MlflowClient().get_metric_history(inner.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(10, 3.0), (20, 2.0)]


def test_a_comparison_repeats_nothing_that_all_share():
    rows = {"a": {"rule": "fly", "n": 9, "set": {"x": 1, "y": 2}}, "b": {"rule": "prob", "n": 9, "set": {"x": 1}}}
    shared, own = tracking.apart(rows)
    assert shared == {"n": 9, "set.x": 1}
    assert own == {"a": {"rule": "fly", "set.y": 2}, "b": {"rule": "prob"}}


def test_the_champion_generates_text(store, tmp_path, monkeypatch):
    """What the alias names writes what the decoder with the same gate writes; nothing of it is pickled."""
    monkeypatch.chdir(tmp_path)
    (target, draft), tokenizer = tiny_pair(), byte_tokenizer()
    save_pair(tmp_path / "pair", target, draft, tokenizer)
    models = {name: {"model": f"./pair/{name}", "dtype": "float32"} for name in ("target", "draft")}
    write_text(Path("models/pairs/tiny.yaml"), yaml.safe_dump(models))
    of_pair = identify_model(target), identify_model(draft), identify_tokenizer(tokenizer)
    gate = Gate(GateConfig({"type": "linear"}, {"scalars": len(SCALARS)}, *of_pair))
    gate.save(tmp_path / "gate")
    assert tracking.register_gate(PARAMS, tmp_path / "gate", {"auc": 0.9}) == "1"
    assert tracking.register_gate(PARAMS, tmp_path / "gate", {}) == "2"
    import mlflow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a gate without a certificate decodes strictly, and says so
        loaded = mlflow.pyfunc.load_model("models:/gistgate@champion")
        answers = loaded.predict(["Tom has 5", "A"], params={"max_new_tokens": 7})
    ids = [tokenizer(text)["input_ids"] for text in ("Tom has 5", "A")]
    strict = Decoder(target, None, make_rule("exact"), 0).generate(ids, max_new_tokens=7, eos_ids=[2])
    assert answers == [tokenizer.decode(one.ids, skip_special_tokens=True) for one in strict]
    assert str(mlflow.MlflowClient().get_model_version_by_alias("gistgate", "champion").version) == "2"
    assert not list((store / "mlruns").rglob("*.pkl"))


def test_an_unusable_store_is_one_sentence(store, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{store}/old")
    with pytest.raises(UserError, match="MLFLOW_TRACKING_URI"), tracking.run(PARAMS, "fly", kind="method"):
        pass


def test_a_machine_without_git_is_no_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert tracking.provenance_tags()["git.revision"] == "unknown"


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"target": {"model": "owner/name", "revision": "abc"}}, "the target's revision"),
        ({"draft": {"model": "owner/small", "gguf_file": "small.gguf"}}, "the draft's GGUF file"),
        ({"tokenizer": "owner/words"}, "the pair's own tokenizer"),
        ({}, None),
    ],
)
def test_a_pair_that_a_registered_model_cannot_name_is_not_registered(changes, why):
    pair = {"target": {"model": "owner/name"}, "draft": {"model": "owner/small"}, **changes}
    assert tracking.unnamed(build(PairSource, pair)) == why


def test_a_queued_experiment_writes_to_the_repository(tmp_path, monkeypatch):
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "copy"
    copy.mkdir(parents=True)
    monkeypatch.setenv("DVC_ROOT", str(copy))
    assert tracking.root() == tmp_path
