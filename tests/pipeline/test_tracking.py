"""The record of runs: what MLflow keeps, and where."""

import json
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, write_text
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from pipeline import tracking
from pipeline.pair.pair import PairSource
from pipeline.params import build
from tests.certificates.proofs import linear_gate
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

PARAMS = parameters(pair="tiny", task="sums")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One database for all tests: creating one takes seconds."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("DVC_ROOT", str(folder))
        patch.setenv("DVC_EXP_NAME", "brave-name")
        yield folder


def test_runs_keep_numbers_files_data_and_origin_and_those_inside_a_run_are_nested(store, tmp_path):
    data = tmp_path / "heads/prompts.jsonl"
    write_text(data, "{}\n")
    with tracking.run(PARAMS, "comparison", kind="comparison") as record:
        record.log_data(data, "test")
        record.log_artifacts(data.parent)
        with tracking.run(PARAMS, "inner", kind="method") as record:
            record.log_params({"fixed": {"window": 2}})
            record.log_metrics({"accuracy": 0.5, "speed": {"mean": 1.5, "note": "text"}})
            record.log_curve("loss", [3.0, 2.0], every=10)
    import mlflow

    runs = {
        run.info.run_name: run
        for run in mlflow.search_runs(experiment_names=["tiny/sums"], output_format="list")
    }
    outer, inner = runs["comparison"], runs["inner"]
    tags = inner.data.tags
    assert (tags["mlflow.parentRunId"], tags["dvc.experiment"], tags["kind"]) == (
        outer.info.run_id,
        "brave-name",
        "method",
    )
    assert tags["git.revision"] and inner.data.params == {"fixed.window": "2"}
    assert inner.data.metrics == {"accuracy": 0.5, "speed.mean": 1.5, "loss": 2.0}
    assert list((store / "mlruns").rglob("heads/prompts.jsonl"))
    (given,) = outer.inputs.dataset_inputs
    assert given.dataset.name == data.as_posix() and fingerprint(data).startswith(
        given.dataset.digest
    )
    assert [tag.value for tag in given.tags] == ["test"]
    history = mlflow.MlflowClient().get_metric_history(inner.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(10, 3.0), (20, 2.0)]


def test_the_champion_generates_text(store, tmp_path, monkeypatch):
    """What the alias names writes what the decoder with the same gate writes; nothing of it is
    pickled.
    """
    monkeypatch.chdir(tmp_path)
    (target, draft), tokenizer = tiny_pair(), byte_tokenizer()
    save_pair(tmp_path / "pair", target, draft, tokenizer)
    linear_gate(target, draft).save(tmp_path / "gate")
    models = {name: {"model": f"./pair/{name}", "dtype": "float32"} for name in ("target", "draft")}
    write_text(Path("models/pairs/tiny.yaml"), yaml.safe_dump(models))

    assert tracking.register_gate(PARAMS, tmp_path / "gate", {"auc": 0.9}) == "1"
    assert tracking.register_gate(PARAMS, tmp_path / "gate", {}) == "2"
    import mlflow

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a gate without a certificate decodes strictly, and says so
        loaded = mlflow.pyfunc.load_model("models:/gistgate@champion")
        answers = loaded.predict(["Tom has 5", "A"], params={"max_new_tokens": 7})
    ids = [tokenizer(text)["input_ids"] for text in ("Tom has 5", "A")]
    strict = Decoder(target, None, make_rule("exact"), 0).generate(
        ids, max_new_tokens=7, eos_ids=[2]
    )
    assert answers == [tokenizer.decode(one.ids, skip_special_tokens=True) for one in strict]
    assert (
        str(mlflow.MlflowClient().get_model_version_by_alias("gistgate", "champion").version) == "2"
    )
    assert not list((store / "mlruns").rglob("*.pkl"))


@pytest.mark.parametrize("kind", ["file://", "sqlite:///", "postgresql://me:secret@127.0.0.1:9"])
def test_an_unusable_store_is_one_sentence(store, monkeypatch, kind):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{kind}{store}/none/old")
    with (
        pytest.raises(UserError, match="MLFLOW_TRACKING_URI"),
        tracking.run(PARAMS, "fly", kind="method"),
    ):
        pass


class Away(BaseHTTPRequestHandler):
    """A tracking server that is away from the first request on, or as soon as a run is open."""

    def do_GET(self) -> None:
        is_there = self.server.is_alive and "log" not in self.path
        info = {"run_id": "a", "run_uuid": "a", "status": "RUNNING", "lifecycle_stage": "active"}
        body = {
            "experiment": {"experiment_id": "7", "lifecycle_stage": "active"},
            "run": {"info": info, "data": {}},
        }
        self.send_response(200 if is_there else 503)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() if is_there else b"")

    def do_POST(self) -> None:
        self.do_GET()


@pytest.mark.parametrize("is_alive", [False, True])
def test_a_server_that_is_away_loses_no_stage(store, monkeypatch, capsys, is_alive):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Away)
    server.is_alive = is_alive
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@{address}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with tracking.run(PARAMS, "away", kind="method") as record:
        record.log_metrics({"accuracy": 0.5})
    said = capsys.readouterr().out
    assert ("no whole record" if is_alive else "mlflow.db") in said
    assert "503" in said and "secret" not in said
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"target": {"model": "owner/name", "revision": "abc"}}, "the target's revision"),
        ({"draft": {"model": "owner/small", "gguf_file": "small.gguf"}}, "the draft's GGUF file"),
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
