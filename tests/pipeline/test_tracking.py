"""The record of runs: what MLflow keeps, where, and what happens without it."""

import importlib.util
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

from gistgate.core.decoder import Decoder
from gistgate.core.features import SCALARS
from gistgate.core.files import fingerprint, write_text
from gistgate.core.gate import Gate, GateConfig
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from pipeline import tracking
from pipeline import tracking as registry
from pipeline.pair.pair import PairSource
from pipeline.params import build, parse_params
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

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
    assert registry.register_gate(PARAMS, tmp_path / "gate", {"auc": 0.9}) == "1"
    assert registry.register_gate(PARAMS, tmp_path / "gate") == "2"
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


@pytest.mark.parametrize("uri", ["sqlite:////data/runs.db", "postgresql://user@host/runs", "http://host:5000"])
def test_the_uri_alone_chooses_the_store(monkeypatch, uri):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert tracking.tracking_uri() == uri


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
    assert registry.unnamed(build(PairSource, pair)) == why


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


WRITER = """
import sys
from pipeline.run import tracking
from pipeline.params import parse_params

params = parse_params({"pair": "tiny", "task": "two"})
print("ready", flush=True)
sys.stdin.readline()
for number in range(4):
    with tracking.run(params, f"{sys.argv[1]}-{number}", kind="method") as record:
        record.log_params({"number": number})
        for step in range(3):
            record.log_metrics({"value": 10 * number + step}, step=step)
"""


@pytest.mark.slow
def test_two_writers_that_begin_together_lose_nothing(tmp_path, monkeypatch):
    """The store does not exist yet, so that they also create its tables and their experiment at the same time."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'both.db'}")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name], **pipes) for name in ("one", "other")]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate()
        assert writer.returncode == 0 and "Traceback" not in said, said
    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'both.db'}")
    runs = client.search_runs([client.get_experiment_by_name("tiny/two").experiment_id])
    assert sorted(run.info.run_name for run in runs) == sorted(
        f"{who}-{n}" for who in ("one", "other") for n in range(4)
    )
    for run in runs:
        number = int(run.data.params["number"])
        history = client.get_metric_history(run.info.run_id, "value")
        assert run.info.status == "FINISHED" and run.info.run_name.endswith(str(number))
        assert [(one.step, one.value) for one in sorted(history, key=lambda one: one.step)] == [
            (step, 10 * number + step) for step in range(3)
        ]


def test_a_store_that_another_process_keeps_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'kept.db'}")
    monkeypatch.setattr(tracking, "PATIENCE", 0.1)
    kept, refused = FileLock(tmp_path / "kept.db-lock"), pytest.raises(UserError, match="Another process has been")
    with kept, refused, tracking.run(PARAMS, "fly", kind="method"):
        pass
    assert not (tmp_path / "kept.db").exists()


KILLED = """
import os, sys
from pipeline.run import tracking
from pipeline.params import parse_params

begun = []
def hear(event, values):
    if event == "sqlite3.connect":
        begun.append(event)
        if len(begun) == 2:  # the tables are being made
            os._exit(9)

sys.addaudithook(hear)
with tracking.run(parse_params({"pair": "tiny", "task": "killed"}), "first", kind="method"):
    pass
"""


@pytest.mark.slow
def test_a_store_whose_creation_was_killed_is_created_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'new.db'}")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert subprocess.run([sys.executable, "-c", KILLED]).returncode == 9
    assert not (tmp_path / "new.db").exists()
    with tracking.run(PARAMS, "second", kind="method") as record:
        record.log_metrics({"value": 1})
    import mlflow

    assert [run.info.run_name for run in mlflow.search_runs(experiment_names=["tiny/sums"], output_format="list")] == [
        "second"
    ]


def test_a_server_is_left_to_its_own_locks(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    monkeypatch.chdir(tmp_path)
    with tracking.alone():
        assert not list(tmp_path.iterdir())
