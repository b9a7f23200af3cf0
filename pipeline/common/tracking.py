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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from gistgate.errors import UserError
from gistgate.files import write_atomic
from pipeline.params import Params

MODEL = "gistgate"
"""Name of the registered model."""
ALIAS = "best"
"""Alias of the version that was exported last."""
SQLITE = "sqlite:///"
PATIENCE = 300
"""Seconds for which a writer waits for another one."""


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


@contextmanager
def run(params: Params, name: str, kind: str) -> Iterator[Record]:
    """A run called `name`; `kind` ("head", "method", "export") becomes a tag, as do DVC experiment and revision.

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
        mlflow.start_run(run_name=name, tags=tags)
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
            local = uri.startswith("sqlite:")
            mlflow.create_experiment(name, artifact_location=(root() / "mlruns").as_uri() if local else None)
        mlflow.set_experiment(name)
    except mlflow.exceptions.MlflowException as error:
        raise UserError(f"The tracking store {uri} cannot be used ({error}). Check MLFLOW_TRACKING_URI.") from error
    return mlflow


def provenance_tags() -> dict[str, str]:
    """The Git revision, and the DVC experiment where there is one."""
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    tags = {"git.revision": git.stdout.strip() or "unknown"}
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


class JsonRecord:
    """A record that becomes one JSON line; of files and figures it keeps the names."""

    def __init__(self) -> None:
        self.line: dict[str, Any] = {"params": {}, "metrics": {}, "artifacts": []}

    def log_params(self, params: dict[str, Any]) -> None:
        self.line["params"].update(flatten(params))

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        for key, value in numbers(metrics).items():
            self.line["metrics"][key if step is None else f"{key}@{step}"] = value

    def log_artifacts(self, path: str | Path) -> None:
        self.line["artifacts"].append(str(path))

    def log_figure(self, figure: Any, name: str) -> None:
        self.line["artifacts"].append(name)


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
