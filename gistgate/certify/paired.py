"""The samples of two runs or servers, paired by task and document; what does not pair is refused by
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gistgate.certificates.ledger import digest
from gistgate.certify.logs import Run, TaskLog
from gistgate.core.utils import UserError

NAMED = 5
"""Documents or tasks that a message names, of those that it counts."""


@dataclass(frozen=True)
class Record:
    """One document with the scores of both sides, as the file of records holds it."""

    task: str
    id: str
    prompt: str
    """Hash of what both models were asked; empty where the logs do not say it."""
    baseline: float
    """What is compared, in [0, 1]: scores, agreement (1 and 1 or 0), or shares of the longest
    answer."""
    candidate: float
    differs: bool
    """Whether the two answers differ, scored alike or not."""
    tokens: tuple[float | None, ...] = ()
    """Mean lengths of the answers of both servers; None where one does not say it."""
    finishes: tuple[str, ...] = ()
    """Why the answers of the baseline and then those of the candidate ended."""
    forwards: tuple[float | None, ...] = ()
    """Target forwards of both answers."""
    seconds: tuple[float | None, ...] = ()
    """Of both answers, where each was a request by itself."""
    texts: tuple[str, ...] = ()
    """The prompt, then the answers of the baseline and then those of the candidate, if they were
    to be kept."""
    judge: tuple[str, ...] = ()
    """What a judge said of the answers."""

    @property
    def entries(self) -> dict[str, Any]:
        """What the file of records holds: logs say less than servers."""
        return {name: entry for name, entry in asdict(self).items() if entry != ()}

    @property
    def mark(self) -> str:
        """The hash of task and document, which also puts documents into an order that no score
        knows.
        """
        return digest([self.task, self.id])[:10]


def paired(baseline: Run, candidate: Run, patterns: Sequence[str] = ()) -> list[Record]:
    """Pair two runs on the tasks that the patterns name, or on all; records of one task lie
    together, in the order of their marks.
    """
    if patterns:
        baseline = baseline.only(patterns)
        candidate = candidate.only(patterns)
    for run, counterpart in ((baseline, candidate), (candidate, baseline)):
        unpaired = sorted(run.tasks.keys() - counterpart.tasks.keys())
        if unpaired:
            raise UserError(
                f"{counterpart.path} has no samples of {named(unpaired)}, which {run.path} has. Add"
                " them, or name the tasks that both have (--task)."
            )
    records: list[Record] = []
    for task, log in baseline.tasks.items():
        records += sorted(
            paired_task(task, log, candidate.tasks[task]), key=lambda record: record.mark
        )
    return records


def paired_task(task: str, baseline: TaskLog, candidate: TaskLog) -> list[Record]:
    """Pair the documents of one task."""
    check_alike(task, baseline, candidate)
    unpaired = baseline.samples.keys() ^ candidate.samples.keys()
    refuse(task, "are in one run only", unpaired, "Evaluate both runs on the same documents.")
    records = []
    contents = []
    prompts = []
    for document, sample in baseline.samples.items():
        answered = candidate.samples[document]
        if sample.content != answered.content:
            contents.append(document)
        if sample.prompt != answered.prompt:
            prompts.append(document)
        differs = (sample.answer, sample.score) != (answered.answer, answered.score)
        record = Record(task, document, sample.prompt, sample.score, answered.score, differs)
        records.append(record)
    refuse(
        task,
        "are not the same text, right answer or number of epochs in both runs",
        contents,
        "Evaluate both runs on the same version of the data.",
    )
    refuse(
        task,
        "have other prompts in the candidate's run",
        prompts,
        "Evaluate both runs with the same few-shot examples, system text and chat template.",
    )
    return records


def check_alike(task: str, baseline: TaskLog, candidate: TaskLog) -> None:
    """Refuse two runs of which one counts another metric, or was set up otherwise."""
    if baseline.metric != candidate.metric:
        raise UserError(
            f"The first score of the task '{task}' is {baseline.metric} in one run and"
            f" {candidate.metric} in the other. Name one that both have (--metric)."
        )
    for name in sorted(baseline.settings.keys() & candidate.settings.keys()):
        values = (baseline.settings[name], candidate.settings[name])
        if values[0] != values[1]:
            raise UserError(
                f"The runs of the task '{task}' differ in {name}: {values[0]} and {values[1]}."
                " Evaluate both alike."
            )


def refuse(task: str, what: str, documents: Iterable[str], remedy: str) -> None:
    """Refuse documents that do not pair, if there are any."""
    names = sorted(documents)
    if names:
        raise UserError(
            f"{len(names)} documents of the task '{task}' {what}: {named(names)}. {remedy}"
        )


def named(names: Sequence[str]) -> str:
    """The first names of a list, in words."""
    beginning = ", ".join(f"'{name}'" for name in names[:NAMED])
    return beginning if len(names) <= NAMED else f"{beginning} and {len(names) - NAMED} further"
