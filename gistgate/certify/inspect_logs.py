"""Logs of inspect_ai, read by its own library (extra `inspect`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from inspect_ai.log import read_eval_log
from inspect_ai.scorer import value_to_float

from gistgate.certify.logs import Sample, TaskLog
from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError, first_line, nearest, shown

UNREAD = {"messages", "events", "store"}
"""Parts of a sample that nobody needs here, and that are large."""


def read_inspect(path: Path, wish: str | None) -> tuple[str, str, TaskLog]:
    """The task, the model and the samples of one log; the score of a document is its mean over
    epochs.
    """
    log = read_log(path, exclude_fields=UNREAD)
    if log.status != "success" or not log.samples:
        cause = f" ({log.error.message.strip()[:100]})" if log.error else ""
        raise UserError(
            f"{path} is the log of an evaluation that ended with status '{log.status}'{cause} and"
            f" {len(log.samples or ())} samples. Repeat it (inspect eval-retry)."
        )
    check_errors(log.samples, path)
    header = log.eval
    scorer, _, key = (wish or first_scorer(log, path)).partition(",")
    settings = {"task_args": header.task_args, "version": header.task_version}
    task = TaskLog(f"{scorer},{key}" if key else scorer, settings)
    epochs = defaultdict(list)
    for sample in log.samples:
        epochs[str(sample.id)].append(sample)
    for document, samples in epochs.items():
        if len({sample.epoch for sample in samples}) < len(samples):
            raise UserError(f"{path} has two samples with the id '{document}'. Give each its own.")
        samples.sort(key=lambda sample: sample.epoch)
        scores = [score_of(sample, scorer, key, path) for sample in samples]
        first = samples[0]
        row = Sample(
            score=fmean(scores),
            prompt=fingerprint(input_of(first)),
            content=fingerprint(first.target, [sample.epoch for sample in samples]),
            answer=fingerprint([sample.output.completion for sample in samples]),
        )
        task.add(document, row, str(path))
    return header.task, header.model, task


def read_log(path: Path, **parts: Any) -> Any:
    """A log, or the `parts` of it that its library is told to read."""
    try:
        return read_eval_log(str(path), **parts)
    except Exception as error:  # whatever its parser raises
        raise UserError(
            f"{path} cannot be read as a log of inspect_ai ({first_line(error)}). It may be cut:"
            " restore it, or install the version that wrote it."
        ) from error


def last_attempts(paths: Sequence[Path]) -> list[Path]:
    """The logs without those of attempts that broke off, if another log of the task is whole."""
    headers = {path: read_log(path, header_only=True) for path in paths}
    whole = {log.eval.task for log in headers.values() if log.status == "success"}
    return [
        path
        for path, log in headers.items()
        if log.status == "success" or log.eval.task not in whole
    ]


def check_errors(samples: Sequence[Any], path: Path) -> None:
    """Refuse samples that an error ended before they were scored."""
    broken = [sample for sample in samples if sample.error and not sample.scores]
    if broken:
        cause = broken[0].error.message.strip()
        raise UserError(
            f"{path} has {len(broken)} samples that ended with an error and have no score, such as"
            f" '{broken[0].id}' ({cause[:100]}). Repeat them (inspect eval-retry)."
        )


def first_scorer(log: Any, path: Path) -> str:
    """The scorer whose score counts where nobody names one."""
    for sample in log.samples:
        if sample.scores:
            return str(next(iter(sample.scores)))
    raise UserError(f"{path} has no score. Add one with `inspect score`.")


def input_of(sample: Any) -> list[Any]:
    """What the model was asked, without the ids that every run draws anew."""
    if isinstance(sample.input, str):
        return [sample.input, sample.choices]
    messages = [[message.role, message.text] for message in sample.input]
    return [messages, sample.choices]


def score_of(sample: Any, scorer: str, key: str, path: Path) -> float:
    """The score of a sample as a number, by the library's own table of words."""
    where = f"{path} gives the sample '{sample.id}' of epoch {sample.epoch}"
    scores = sample.scores or {}
    again = "Score the log again (inspect score)."
    if not scores:
        raise UserError(f"{where} no score. {again}")
    if scorer not in scores:
        raise UserError(f"{where} no score '{scorer}'. {nearest(scorer, scores)}")
    value = scores[scorer].value
    if isinstance(value, dict):
        if not key:
            names = ", ".join(f"--metric {scorer},{name}" for name in value)
            raise UserError(f"{where} several scores. Name one: {names}.")
        if key not in value:
            raise UserError(f"{where} no score '{scorer},{key}'. {nearest(key, value)}")
        value = value[key]
    is_readable = isinstance(value, str | int | float)
    score = value_to_float()(value) if is_readable else 0.0
    if score == 0 and not is_zero(value):
        raise UserError(f"{where} the score {shown(value)}, which is no number. {again}")
    return float(score)


def is_zero(value: Any) -> bool:
    """Whether a score says 0, and not what the library takes for 0 because it cannot read it."""
    if isinstance(value, str):
        if value.lower() in ("i", "n", "no", "false"):
            return True
        try:
            value = float(value)
        except ValueError:
            return False
    return isinstance(value, int | float) and math.isfinite(value)
