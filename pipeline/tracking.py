"""The record of runs in MLflow, and the exported gate as a registered model.

MLflow takes seconds to import, so nothing here imports it before a run starts.
"""

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gistgate.core.files import fingerprint, read_json_lines
from gistgate.core.utils import UserError, first_line
from pipeline.pair.pair import ModelSource, PairSource, read_pair
from pipeline.params import Params
from pipeline.paths import prompts_of
from pipeline.run import revision

MODEL = "gistgate"  # name of the registered model
ALIAS = "champion"  # alias of the version that was exported last
SERVERS = ("http", "databricks")
"""How URIs begin whose server keeps artefacts itself; a database keeps rows alone."""
DATABASES = "sqlite|postgresql|mysql|mssql"
USUAL = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # it may hold a password
}
"""MLflow's settings unless the user says otherwise: its own wait minutes for a server."""
PROBE = "/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
PROBED = 5  # seconds in which a server has to answer at first


@dataclass(frozen=True)
class Record:
    """MLflow's active run; nested blocks are flattened with dots."""

    mlflow: Any

    def log_params(self, params: dict[str, Any]) -> None:
        """Settings."""
        self.mlflow.log_params(flatten(params))

    def log_metrics(self, metrics: dict[str, Any]) -> None:
        """Numbers; what is no number is left out."""
        for key, value in flatten(metrics).items():
            if isinstance(value, (int, float)):
                self.mlflow.log_metric(key, float(value))

    def log_artifacts(self, path: str | Path) -> None:
        """A file, or everything in a folder."""
        path = Path(path)
        if path.is_dir():
            self.mlflow.log_artifacts(str(path), artifact_path=path.name)
        else:
            self.mlflow.log_artifact(str(path))

    def log_curve(
        self,
        name: str,
        values: Sequence[float],
        every: int = 1,
    ) -> None:
        """A metric over steps, the first value at step `every`."""
        for place, value in enumerate(values, start=1):
            self.mlflow.log_metric(name, value, step=place * every)

    def log_data(self, path: str | Path, purpose: str) -> None:
        """A file or folder that the run reads, by its place and a hash of its content."""
        from mlflow.data.meta_dataset import MetaDataset

        path = Path(path)
        registry = self.mlflow.data.dataset_source_registry
        with warnings.catch_warnings():
            # A path is a source of several kinds, and the first will do.
            warnings.simplefilter("ignore")
            source = registry.resolve_dataset_source(str(path.resolve()))
        data = MetaDataset(source, name=path.as_posix(), digest=fingerprint(path)[:8])
        self.mlflow.log_input(data, context=purpose)


@contextmanager
def run(params: Params, name: str, kind: str) -> Iterator[Record]:
    """A run of a `kind`, nested in the one around it; failed where an error leaves it.

    Where the server stops answering, a sentence says so and the rest is not recorded: what was
    computed before must not be lost.
    """
    mlflow = connect(params)
    tags = {"kind": kind, "git.revision": revision()}
    if experiment := os.environ.get("DVC_EXP_NAME"):
        tags["dvc.experiment"] = experiment
        tags["dvc.baseline"] = os.environ.get("DVC_EXP_BASELINE_REV", "")
    is_open = False
    try:
        with mlflow.start_run(run_name=name, tags=tags, nested=bool(mlflow.active_run())):
            is_open = True
            yield Record(mlflow)
    except mlflow.exceptions.MlflowException as error:
        uri = mlflow.get_tracking_uri()
        if not is_open:
            raise unusable(uri, error) from error
        if not uri.startswith(SERVERS):
            raise
        print(without_password(f"MLflow has no whole record of '{name}' ({cause_of(error)})."))


def root() -> Path:
    """The repository's folder; a queued DVC experiment runs in a copy below .dvc, whose store would
    not last.
    """
    here = Path(os.environ.get("DVC_ROOT") or Path.cwd()).resolve()
    return next((parent.parent for parent in here.parents if parent.name == ".dvc"), here)


def connect(params: Params) -> Any:
    """The mlflow module at MLFLOW_TRACKING_URI, else a SQLite file in the repository, in this
    pair's experiment.
    """
    logging.getLogger("alembic").setLevel(logging.WARNING)
    import mlflow
    from mlflow.store.db.utils import create_sqlalchemy_engine
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    for variable, value in USUAL.items():
        os.environ.setdefault(variable, value)
    local = f"sqlite:///{root() / 'mlflow.db'}"
    uri = os.environ.get("MLFLOW_TRACKING_URI") or local
    if uri.startswith("http") and not answers(uri):
        uri = local
    try:
        if re.match(DATABASES, uri):  # tried once: MLflow tries it for minutes
            create_sqlalchemy_engine(uri).connect().close()
        mlflow.set_tracking_uri(uri)
        if mlflow.active_run() is None:  # a run inside another one stays in its experiment
            name = f"{params.pair}/{params.task}"
            if mlflow.get_experiment_by_name(name) is None:
                # The place of artefacts is frozen now; it has to be absolute, whatever directory
                # this runs in.
                place = None if uri.startswith(SERVERS) else (root() / "mlruns").as_uri()
                mlflow.create_experiment(name, artifact_location=place)
            mlflow.set_experiment(name)
    except (mlflow.exceptions.MlflowException, ImportError, SQLAlchemyError) as error:
        raise unusable(uri, error) from error
    return mlflow


def unusable(uri: str, error: Exception) -> UserError:
    """What is said of a store that cannot be used."""
    remedy = "Install what is missing, or check" if isinstance(error, ImportError) else "Check"
    cause = first_line(error)
    message = f"The tracking store {uri} cannot be used ({cause}). {remedy} MLFLOW_TRACKING_URI."
    return UserError(without_password(message))


@cache
def answers(uri: str) -> bool:
    """Whether a tracking server answers within seconds; where not, it is said once what happens."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking._tracking_service.utils import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        http_request(get_default_host_creds(uri), PROBE, "GET", max_retries=0, timeout=PROBED)
    except MlflowException as error:
        print(
            without_password(
                f"The tracking server {uri} does not answer ({cause_of(error)}). This stage is"
                " recorded in mlflow.db of the project instead."
            )
        )
        return False
    return True


def cause_of(error: Exception) -> str:
    """The end of a message of a request that failed, which has the cause behind the address."""
    return str(error).rpartition("Caused by ")[2][-200:]


def without_password(message: str) -> str:
    """A message without the credentials of addresses in it."""
    return re.sub(r"(?<=//)[^/\s@]+@", "", message)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested blocks as one level with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def register_gate(
    params: Params,
    folder: str | Path,
    metrics: dict[str, Any],
) -> str | None:
    """Register the gate in `folder` as a new version that generates text, move the alias to it and
    return the version. A pair that the registered model could not load is not registered: a
    sentence says so, and None is returned.
    """
    if why := unnamed(read_pair(params.pair)):
        print(
            "The gate is not registered in MLflow, because the registered model could not load"
            f" {why}."
        )
        return None
    version = None
    with run(params, "export", kind="export") as record:
        record.log_metrics(metrics)
        if (prompts := prompts_of("calibration")).is_file():
            record.log_data(prompts, "calibration")
        import mlflow
        from mlflow.models import ModelSignature
        from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

        text = Schema([ColSpec(DataType.string)])
        limit = ParamSpec("max_new_tokens", DataType.long, params.decoding.max_new_tokens)
        warnings.filterwarnings("ignore", message=".*input example", category=UserWarning)
        info = mlflow.pyfunc.log_model(
            name="gate",
            python_model=str(Path(__file__).with_name("gate_pyfunc.py")),
            artifacts={"gate": str(Path(folder).resolve())},
            signature=ModelSignature(inputs=text, outputs=text, params=ParamSchema([limit])),
            model_config=configuration(params),
            pip_requirements=["gistgate", "torch", "transformers", "safetensors"],
            registered_model_name=MODEL,
        )
        version = str(info.registered_model_version)
        mlflow.MlflowClient().set_registered_model_alias(MODEL, ALIAS, version)
    return version


def unnamed(source: PairSource) -> str | None:
    """What of a pair the configuration of a registered model cannot name; None where it names
    everything.
    """
    if source.target.revision and not source.target.is_folder:
        return "the target's revision"
    draft = source.roles.get("draft")
    return "the draft's GGUF file" if draft and draft.gguf_file else None


def configuration(params: Params) -> dict[str, Any]:
    """Which models the gate decodes with, and how prompts become answers; a user may name others
    when loading.
    """
    source = read_pair(params.pair)
    prompts = prompts_of("test")
    prompt = read_json_lines(prompts)[0] if prompts.is_file() else {}
    draft = source.roles.get("draft")
    return {
        "target": place_of(source.target),
        "target_gguf": source.target.gguf_file,
        "draft": draft and place_of(draft),
        "draft_revision": draft and draft.revision,
        "quantise_draft": draft and draft.quantise,
        "draft_vocabulary": source.vocabulary and str(source.vocabulary.resolve()),
        "dtype": source.target.dtype,
        "chat": params.prompting.chat_template,
        "system": params.prompting.system,
        "arguments": params.prompting.arguments,
        "stops": prompt.get("stops", []),
        "max_new_tokens": prompt.get("max_new_tokens", params.decoding.max_new_tokens),
    }


def place_of(model: ModelSource) -> str:
    """The hub id of a model, or its folder by its whole path."""
    return str(Path(model.model).resolve()) if model.is_folder else model.model
