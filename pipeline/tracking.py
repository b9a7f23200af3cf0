"""The record of runs: MLflow where it is installed, a file of JSON lines where it is not.

    with tracking.run(params, "fly", kind="method") as record:
        record.log_params({"rule": "fly"})
        record.log_metrics({"accuracy": 0.93})
        record.log_artifacts("reports/evaluation/fly")

MLflow takes seconds to import, so nothing here imports it before a run starts.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from gistgate.core.files import fingerprint, read_json_lines, write_atomic
from gistgate.core.utils import UserError
from pipeline.pair.pair import ModelSource, PairSource, read_pair
from pipeline.params import Params
from pipeline.paths import prompts_of

MODEL = "gistgate"
"""Name of the registered model."""
ALIAS = "champion"
"""Alias of the version that was exported last."""
SQLITE = "sqlite:///"
PATIENCE = 300
"""Seconds for which a writer waits for another one."""
SERVERS = ("http", "databricks")
"""Beginnings of URIs whose server keeps the artefacts itself; a database keeps rows alone."""


class Record(Protocol):
    """One run, while it is open."""

    def log_params(self, params: dict[str, Any]) -> None:
        """Settings, nested blocks flattened with dots."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Numbers, nested blocks flattened with dots; what is no number is left out."""

    def log_artifacts(self, path: str | Path) -> None:
        """A file, or everything in a folder."""

    def log_figure(self, figure: Any, name: str) -> None:
        """A matplotlib figure under a file name."""

    def log_curve(self, name: str, values: Sequence[float], every: int = 1) -> None:
        """A metric over steps, the first value at step `every`."""

    def log_data(self, path: str | Path, purpose: str) -> None:
        """A file or folder that the run reads, by its place and a hash of its content."""


@contextmanager
def run(params: Params, name: str, kind: str) -> Iterator[Record]:
    """A run called `name`; `kind` ("head", "method", "export") becomes a tag, as do DVC experiment and revision.

    A run that begins inside another one is nested in it.

    Raises:
        UserError: the tracking store cannot be used.
    """
    tags = {"kind": kind, **provenance_tags()}
    if importlib.util.find_spec("mlflow") is None:
        with json_lines(name, experiment_name(params), tags) as record:
            yield record
        return
    with alone():
        mlflow = connect(params)
        mlflow.start_run(run_name=name, tags=tags, nested=mlflow.active_run() is not None)
    status = "FAILED"
    try:
        yield MlflowRecord(mlflow)
        status = "FINISHED"
    finally:
        with alone():
            mlflow.end_run(status)


@contextmanager
def alone() -> Iterator[None]:
    """No other process of ours writes to a tracking store in a file meanwhile; SQLite gives up after seconds.

    Raises:
        UserError: another process has kept the store for too long.
    """
    path = database()
    if path is None:
        yield
        return
    lock = FileLock(f"{path}-lock", timeout=PATIENCE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"Another process has been writing to the tracking store {path} for {PATIENCE} seconds. Wait for it to "
            "end, or name another store in MLFLOW_TRACKING_URI."
        ) from error
    try:
        yield
    finally:
        lock.release()


def experiment_name(params: Params) -> str:
    """One experiment per pair and task unless params.yaml names it."""
    return params.tracking.experiment or f"{params.pair}/{params.task}"


def root() -> Path:
    """The repository's folder; a queued DVC experiment runs in a copy below .dvc, whose store would not last."""
    here = Path(os.environ.get("DVC_ROOT") or Path.cwd()).resolve()
    return next((parent.parent for parent in here.parents if parent.name == ".dvc"), here)


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, else a SQLite file in the repository."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root() / 'mlflow.db'}"


def database() -> Path | None:
    """The file of a tracking store in SQLite; None for a server or another kind of database."""
    uri = tracking_uri()
    name = uri.removeprefix(SQLITE).partition("?")[0]
    return Path(name) if uri.startswith(SQLITE) and name not in ("", ":memory:") else None


def create_store(path: Path) -> None:
    """Create a store beside its place and rename it: tables that are made half-way would block every later run."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    def write(part: Path) -> None:
        store = SqlAlchemyStore(f"{SQLITE}{part.absolute()}", (root() / "mlruns").as_uri())
        store.engine.dispose()

    write_atomic(path, write)


def connect(params: Params) -> Any:
    """The mlflow module, pointed at the store and the experiment."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    uri = tracking_uri()
    path = database()
    try:
        if path is not None and not path.exists():
            create_store(path)
        mlflow.set_tracking_uri(uri)
        name = experiment_name(params)
        if mlflow.get_experiment_by_name(name) is None:
            # The place of artefacts is frozen now; it has to be absolute, whatever directory this runs in.
            local = not uri.startswith(SERVERS)
            mlflow.create_experiment(name, artifact_location=(root() / "mlruns").as_uri() if local else None)
        mlflow.set_experiment(name)
    except mlflow.exceptions.MlflowException as error:
        raise UserError(f"The tracking store {uri} cannot be used ({error}). Check MLFLOW_TRACKING_URI.") from error
    return mlflow


def git_revision() -> str:
    """The present revision, marked where files differ from it; empty outside Git, or on a machine without it."""
    try:
        git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    except OSError:
        return ""
    return git.stdout.strip()


def provenance_tags() -> dict[str, str]:
    """The Git revision, and the DVC experiment where there is one."""
    tags = {"git.revision": git_revision() or "unknown"}
    for tag, variable in [("dvc.experiment", "DVC_EXP_NAME"), ("dvc.baseline", "DVC_EXP_BASELINE_REV")]:
        if os.environ.get(variable):
            tags[tag] = os.environ[variable]
    return tags


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested blocks as one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def apart(rows: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all rows have in common, flattened, and of every row the rest: the columns that a comparison needs."""
    flat = {name: flatten(row) for name, row in rows.items()}
    first = next(iter(flat.values()), {})
    same = {key for key in first if all(key in row and row[key] == first[key] for row in flat.values())}
    rest = {name: {key: value for key, value in row.items() if key not in same} for name, row in flat.items()}
    return {key: first[key] for key in first if key in same}, rest


def numbers(values: dict[str, Any]) -> dict[str, float]:
    """The numbers among nested values, flattened."""
    return {key: float(value) for key, value in flatten(values).items() if isinstance(value, (int, float))}


class MlflowRecord:
    """A record in MLflow's active run."""

    def __init__(self, mlflow: Any) -> None:
        self.mlflow = mlflow

    def log_params(self, params: dict[str, Any]) -> None:
        with alone():
            self.mlflow.log_params(flatten(params))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        with alone():
            self.mlflow.log_metrics(numbers(metrics), step=step)

    def log_artifacts(self, path: str | Path) -> None:
        path = Path(path)
        if path.is_dir():
            self.mlflow.log_artifacts(str(path), artifact_path=path.name)
        else:
            self.mlflow.log_artifact(str(path))

    def log_figure(self, figure: Any, name: str) -> None:
        self.mlflow.log_figure(figure, name)

    def log_curve(self, name: str, values: Sequence[float], every: int = 1) -> None:
        for place, value in enumerate(values, start=1):
            self.mlflow.log_metric(name, value, step=place * every)

    def log_data(self, path: str | Path, purpose: str) -> None:
        from mlflow.data.meta_dataset import MetaDataset

        path = Path(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a path is a source of several kinds, and the first will do
            source = self.mlflow.data.dataset_source_registry.resolve_dataset_source(str(path.resolve()))
        digest = fingerprint(path)[:8]
        self.mlflow.log_input(MetaDataset(source, name=path.as_posix(), digest=digest), context=purpose)


class JsonRecord:
    """A record that becomes one JSON line; of files and figures it keeps the names."""

    def __init__(self) -> None:
        self.line: dict[str, Any] = {"params": {}, "metrics": {}, "artifacts": [], "data": []}

    def log_params(self, params: dict[str, Any]) -> None:
        self.line["params"].update(flatten(params))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for key, value in numbers(metrics).items():
            self.line["metrics"][key if step is None else f"{key}@{step}"] = value

    def log_artifacts(self, path: str | Path) -> None:
        self.line["artifacts"].append(str(path))

    def log_figure(self, figure: Any, name: str) -> None:
        self.line["artifacts"].append(name)

    def log_curve(self, name: str, values: Sequence[float], every: int = 1) -> None:
        for place, value in enumerate(values, start=1):
            self.log_metrics({name: value}, step=place * every)

    def log_data(self, path: str | Path, purpose: str) -> None:
        self.line["data"].append({"path": str(path), "purpose": purpose, "hash": fingerprint(Path(path))})


@contextmanager
def json_lines(name: str, experiment: str, tags: dict[str, str]) -> Iterator[JsonRecord]:
    """Append one line to runs.jsonl when the run ends, failed or not."""
    record = JsonRecord()
    status = "FAILED"
    try:
        yield record
        status = "FINISHED"
    finally:
        line = {"name": name, "experiment": experiment, "status": status, "tags": tags, **record.line}
        # One unbuffered write, so that the lines of two processes do not mix.
        with (root() / "runs.jsonl").open("ab", buffering=0) as file:
            file.write((json.dumps(line, sort_keys=True) + "\n").encode())


# ---- The exported gate as a registered model: code beside weights, no pickle, an alias that names the current one.


def register_gate(params: Params, folder: str | Path, metrics: dict[str, Any] | None = None) -> str | None:
    """Register the gate in `folder` as a new version and move the alias to it; None where MLflow is absent.

    `mlflow.pyfunc.load_model("models:/gistgate@champion").predict(["Question: ..."])` generates text.
    """
    if importlib.util.find_spec("mlflow") is None:
        return None
    if why := unnamed(read_pair(params.pair)):
        print(f"The gate is not registered in MLflow, because the registered model could not load {why}.")
        return None
    with run(params, "export", kind="export") as record:
        record.log_metrics(metrics or {})
        if (prompts := prompts_of("calibration")).is_file():
            record.log_data(prompts, "calibration")
        import mlflow

        warnings.filterwarnings("ignore", message=".*input example", category=UserWarning)
        with alone():
            info = mlflow.pyfunc.log_model(
                name="gate",
                python_model=str(Path(__file__).with_name("gate_pyfunc.py")),
                artifacts={"gate": str(Path(folder).resolve())},
                signature=signature(params.decoding.max_new_tokens),
                model_config=configuration(params),
                pip_requirements=["gistgate", "torch", "transformers", "safetensors"],
                registered_model_name=MODEL,
            )
            version = str(info.registered_model_version)
            mlflow.MlflowClient().set_registered_model_alias(MODEL, ALIAS, version)
    return version


def unnamed(source: PairSource) -> str | None:
    """What of a pair the configuration of a registered model cannot name; None where it names everything."""
    if source.target.revision is not None and not source.target.is_folder:
        return "the target's revision"
    if source.draft is not None and source.draft.gguf_file is not None:
        return "the draft's GGUF file"
    return None if source.tokenizer is None else "the pair's own tokenizer"


def configuration(params: Params) -> dict[str, Any]:
    """Which models the gate decodes with, and how prompts become answers; a user may name others when loading."""
    source, prompts = read_pair(params.pair), prompts_of("test")
    first = read_json_lines(prompts)[0] if prompts.is_file() else {}
    return {
        "target": place(source.target),
        "target_gguf": source.target.gguf_file,
        **drafting(source.draft),
        "dtype": source.target.dtype,
        "chat": params.prompting.chat_template,
        "system": params.prompting.system,
        "stops": list(first.get("stops", [])),
        "max_new_tokens": first.get("max_new_tokens", params.decoding.max_new_tokens),
    }


def drafting(draft: ModelSource | None) -> dict[str, Any]:
    """The draft model and how its weights are kept; None everywhere where the pair drafts without one."""
    if draft is None:
        return {"draft": None, "draft_revision": None, "quantise_draft": None}
    return {"draft": place(draft), "draft_revision": draft.revision, "quantise_draft": draft.quantise}


def place(source: ModelSource) -> str:
    """Hub id, or the folder by its whole path."""
    return str(Path(source.model).resolve()) if source.is_folder else source.model


def signature(max_new_tokens: int) -> Any:
    """Prompts in, answers out."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    text = Schema([ColSpec(DataType.string)])
    limit = ParamSpec("max_new_tokens", DataType.long, max_new_tokens)
    return ModelSignature(inputs=text, outputs=text, params=ParamSchema([limit]))
