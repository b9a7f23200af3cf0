"""Runs of an evaluation as their logs tell them: samples of lm-eval, logs of inspect_ai, tables.

An lm-eval run is a folder or one of its `samples_*.jsonl` files (`--log_samples`); a table is CSV,
TSV or JSON lines with the columns id and score, and text, prompt and task if it has them. Files may
be compressed by gzip.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from gistgate.core.files import fingerprint, parsed, read_json, read_json_lines, read_text
from gistgate.core.utils import UserError, nearest, refusing, shown
from gistgate.models.options import read_rows

SAMPLES = "samples_*.jsonl"
"""Files that lm-eval writes with `--log_samples`."""
DATED = re.compile(r"samples_(?P<task>.+?)(_(?P<date>\d{4}-\d\d-\d\dT[^_]*?))?\.jsonl(\.gz)?")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The place in memory of a function, which a configuration of lm-eval may hold."""
SETTINGS = ("num_fewshot", "metric_list", "filter_list", "output_type", "repeats")
"""Entries of a task's configuration that decide what is asked and how answers are scored."""
ALWAYS = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps"),
    *("doc_hash", "prompt_hash", "target_hash", "filter", "metrics"),
}
"""Entries of a sample of lm-eval that are no scores."""
TABLE = "all"
"""Name of the task of a table that names none."""


@dataclass(frozen=True)
class Sample:
    """One document as it was answered and scored."""

    score: float
    """In [0, 1]."""
    prompt: str = ""
    """Hash of what the model was asked; empty where the log does not say it."""
    content: str = ""
    """Hash of the document and its right answer."""
    answer: str = ""
    """Hash of the answer as it is scored."""


@dataclass
class TaskLog:
    """The samples of one task in a run."""

    metric: str
    """The score that counts, and the filter of answers where there is one."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What has to be the same in both runs, as far as the log says it."""
    samples: dict[str, Sample] = field(default_factory=dict)
    """By the id of the document."""

    def add(self, document: Any, sample: Sample, where: str) -> None:
        """Take in one document; another sample of it, or a score outside [0, 1], is refused."""
        name = str(document)
        if name in self.samples:
            raise UserError(
                f"{where} holds the document '{name}' twice. Leave one sample of each document."
            )
        if math.isnan(sample.score):
            raise UserError(
                f"{where} gives the document '{name}' no score (NaN). Score it again, or leave it"
                " out of both runs."
            )
        if not 0 <= sample.score <= 1:
            raise UserError(
                f"{where} gives the document '{name}' the score {sample.score:g}, and a bound needs"
                f" scores from 0 to 1. Choose another metric than {self.metric} (--metric), or"
                " divide the scores by the largest one that is possible."
            )
        self.samples[name] = sample


@dataclass(frozen=True)
class Run:
    """What one model answered to the documents of one or more tasks."""

    path: str
    source: str
    """lm-eval, inspect_ai or table."""
    model: str
    """Its name and arguments; empty where the log does not say it."""
    tasks: dict[str, TaskLog]

    @property
    def name(self) -> str:
        """The model and the place of its log."""
        return f"{self.model} ({self.path})" if self.model else self.path

    @property
    def described(self) -> dict[str, str]:
        """What a card says of it."""
        return {
            "path": self.path,
            "source": self.source,
            "model": self.model,
            "fingerprint": self.fingerprint,
        }

    @property
    def fingerprint(self) -> str:
        """A hash of all samples, wherever they lie."""
        rows = []
        for task, log in sorted(self.tasks.items()):
            for document, sample in sorted(log.samples.items()):
                rows.append([task, log.metric, document, *vars(sample).values()])
        return fingerprint(rows)

    def only(self, patterns: Sequence[str]) -> Run:
        """The run with those tasks alone that patterns such as gsm8k or mmlu_* name."""
        tasks = {}
        for pattern in patterns:
            names = [task for task in self.tasks if fnmatch(task, pattern)]
            if not names:
                raise UserError(
                    f"{self.path} holds no task '{pattern}'. {nearest(pattern, self.tasks)}"
                )
            tasks.update({task: self.tasks[task] for task in names})
        return replace(self, tasks=tasks)


def read_run(place: str, metric: str | None) -> Run:
    """Read the log of a run, of whichever kind it is; `metric` names the score and, behind a comma,
    the filter of answers.
    """
    path = Path(place)
    if not path.exists():
        raise UserError(
            f"{place} is neither a file or folder nor an address such as http://HOST:8000/v1."
            " Correct it."
        )
    if path.is_dir():
        return read_folder(path, metric)
    if path.suffix == ".eval" or is_inspect_log(path):
        return read_inspect_run([path], place, metric)
    if path.name.removesuffix(".gz").endswith(".jsonl") and is_lm_eval(path):
        return read_lm_eval([path], place, metric)
    return read_table(path, metric)


def read_folder(folder: Path, metric: str | None) -> Run:
    """Read all samples of lm-eval, or else all logs of inspect_ai, in a folder."""
    samples = sorted([*folder.rglob(SAMPLES), *folder.rglob(f"{SAMPLES}.gz")])
    if samples:
        return read_lm_eval(samples, str(folder), metric)
    logs = sorted(folder.rglob("*.eval"))
    logs += [path for path in sorted(folder.rglob("*.json")) if is_inspect_log(path)]
    if logs:
        return read_inspect_run(logs, str(folder), metric)
    raise UserError(
        f"{folder} holds neither {SAMPLES} of lm-eval (--log_samples) nor logs of inspect_ai. Name"
        " a folder or file that does, or a table."
    )


def is_inspect_log(path: Path) -> bool:
    """Whether a file is a log of inspect_ai as JSON, by its beginning."""
    if path.suffix != ".json":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(2000)
    return all(f'"{key}"' in beginning for key in ("version", "status", "eval"))


def is_lm_eval(path: Path) -> bool:
    """Whether the first sample of a file is one of lm-eval."""
    line, _, _ = read_text(path).lstrip().partition("\n")
    first = parsed(line or "{}", f"{path}, line 1,")
    return isinstance(first, dict) and "doc_id" in first


def read_inspect_run(paths: Sequence[Path], place: str, metric: str | None) -> Run:
    """Read logs of inspect_ai, each of one task; its library is imported only here."""
    from gistgate.certify.inspect_logs import last_attempts, read_inspect

    tasks: dict[str, TaskLog] = {}
    places: dict[str, Path] = {}
    models = set()
    for path in last_attempts(paths):
        task, model, log = read_inspect(path, metric)
        refuse_second(places, task, path)
        tasks[task] = log
        models.add(model)
    return Run(place, "inspect_ai", ", ".join(sorted(models)), tasks)


def refuse_second(places: dict[str, Path], task: str, path: Path) -> None:
    """Refuse a second file of one task."""
    if task in places:
        raise UserError(
            f"{places[task]} and {path} both hold the task '{task}'. Name one of them, or move the"
            " other one out of the folder."
        )
    places[task] = path


def read_lm_eval(paths: Sequence[Path], place: str, metric: str | None) -> Run:
    """Read `samples_*.jsonl` of lm-eval, with what the `results_*.json` beside them says."""
    tasks: dict[str, TaskLog] = {}
    places: dict[str, Path] = {}
    models = set()
    for path in paths:
        matched = DATED.fullmatch(path.name)
        task = matched["task"] if matched else path.stem
        refuse_second(places, task, path)
        date = matched["date"] if matched else None
        results = results_beside(path, date)
        tasks[task] = lm_eval_task(path, task, results, metric)
        models.add(model_in(results))
    return Run(place, "lm-eval", ", ".join(sorted(models - {""})), tasks)


def results_beside(path: Path, date: str | None) -> dict[str, Any]:
    """The results of lm-eval that belong to a file of samples; empty where there are none."""
    for results in path.parent.glob(f"*_{date}.json"):
        content = read_json(results)
        if isinstance(content, dict):
            return content
    return {}


def model_in(results: Mapping[str, Any]) -> str:
    """The model and its arguments, as lm-eval was told them."""
    arguments = results.get("config", {}).get("model_args") or results.get("model_name") or ""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, sort_keys=True)


def lm_eval_task(path: Path, task: str, results: Mapping[str, Any], wish: str | None) -> TaskLog:
    """The samples of one metric and one filter."""
    rows = read_json_lines(path)
    if not rows:
        raise UserError(f"{path} holds no sample. Repeat that evaluation.")
    with refusing(f"{path} holds no samples of lm-eval", "Write them with --log_samples."):
        complete(rows, results.get("configs", {}).get(task, {}))
        metric, answer_filter = chosen(path, rows, wish)
        if results.get("higher_is_better", {}).get(task, {}).get(metric) is False:
            raise UserError(
                f"Lower values of {metric} are better in the task '{task}', so that it is no score."
                " Choose another metric (--metric)."
            )
        log = TaskLog(f"{metric},{answer_filter}", settings_in(results, task))
        for row in rows:
            if row["filter"] == answer_filter:
                sample = Sample(
                    score=number(row[metric], f"{metric} in {path}"),
                    prompt=row["prompt_hash"],
                    content=fingerprint(row["doc_hash"], row["target_hash"]),
                    answer=fingerprint(row["filtered_resps"]),
                )
                log.add(row["doc_id"], sample, str(path))
    return log


def complete(rows: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> None:
    """Fill in what earlier versions of lm-eval did not write: hashes, the names of scores, and the
    filter of answers, which the configuration of the task names.
    """
    filters = [entry["name"] for entry in config.get("filter_list") or ()] or ["none"]
    occurrences = Counter[str]()
    for row in rows:
        document = str(row["doc_id"])
        row.setdefault("filter", filters[min(occurrences[document], len(filters) - 1)])
        occurrences[document] += 1
        row.setdefault("prompt_hash", fingerprint(row.get("arguments")))
        row.setdefault("doc_hash", fingerprint(row.get("doc")))
        row.setdefault("target_hash", fingerprint(row.get("target")))
        scores = (name for name in row.keys() - ALWAYS if isinstance(row[name], int | float))
        row.setdefault("metrics", sorted(scores))


def chosen(path: Path, rows: Sequence[Mapping[str, Any]], wish: str | None) -> tuple[str, str]:
    """Metric and filter: those of the user, else the first ones of the file."""
    metrics = rows[0]["metrics"]
    filters = list(dict.fromkeys(row["filter"] for row in rows))
    metric, _, answer_filter = (wish or metrics[0]).partition(",")
    answer_filter = answer_filter or filters[0]
    if metric not in metrics:
        raise UserError(f"{path} has no metric '{metric}'. {nearest(metric, metrics)}")
    if answer_filter not in filters:
        raise UserError(
            f"{path} has no filter '{answer_filter}'. {nearest(answer_filter, filters)}"
        )
    return metric, answer_filter


def settings_in(results: Mapping[str, Any], task: str) -> dict[str, Any]:
    """What decides about prompts and scores of a task."""
    config = results.get("configs", {}).get(task, {})
    settings = {name: config[name] for name in SETTINGS if name in config}
    for name in ("n-shot", "versions"):
        if task in results.get(name, {}):
            settings[name] = results[name][task]
    return {name: ADDRESS.sub("", json.dumps(value)) for name, value in settings.items()}


def number(value: Any, where: str) -> float:
    """A score as a number; lists and objects, such as those of a corpus metric, are refused."""
    try:
        return float({"true": 1, "false": 0}.get(str(value).lower(), value))
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{where} is {shown(value)}, which is no number. Choose another metric (--metric), or"
            " mend the file."
        ) from error


def read_table(path: Path, metric: str | None) -> Run:
    """Read a table with the columns id and score (or the one that `metric` names), and text, prompt
    and task if it has them.
    """
    column = metric or "score"
    tasks: dict[str, TaskLog] = defaultdict(lambda: TaskLog(column))
    for where, row in read_rows(str(path)):
        if not isinstance(row, dict):
            raise UserError(f"{where} is no object. Write one with id and score for each document.")
        missing = [name for name in ("id", column) if row.get(name) in (None, "")]
        if missing:
            raise UserError(
                f"{where} says no {missing[0]}. A table has the columns id and {column}, and text,"
                " prompt and task if you know them."
            )
        prompt = row.get("prompt")
        sample = Sample(
            score=number(row[column], f"The {column} in {where}"),
            prompt=fingerprint(prompt) if prompt else "",
            answer=fingerprint(row.get("text")),
        )
        tasks[str(row.get("task") or TABLE)].add(row["id"], sample, str(path))
    if not tasks:
        raise UserError(f"{path} holds no row. Write one for each document.")
    return Run(str(path), "table", "", dict(tasks))
