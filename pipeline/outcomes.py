"""The methods of params.yaml as outcomes: decoded on the prompts of a run, and scored against its
strict reference.
"""

from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gistgate.certificates.calibration import Method, decoding_scope, task_scope
from gistgate.certificates.ledger import Look, hash_of, level
from gistgate.certificates.outcomes import (
    READ_TOGETHER,
    Answer,
    LogProbability,
    Outcomes,
    TaskScore,
    cached,
)
from gistgate.core.batches import PromptCache
from gistgate.core.files import fingerprint, read_json_lines
from gistgate.core.identity import identify_model, model_scope, tokenizer_scope
from gistgate.core.request import Generation, Statistics, eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from gistgate.lm_eval.files import files_of
from gistgate.tasks.prompts import Prompt, hashes_of
from gistgate.tasks.task import Task
from pipeline.decode import KNOWN, asks_draft, decode_split, load_gate, surroundings
from pipeline.pair.pair import Pair
from pipeline.params import EAGER, FORMER, Params, recorded
from pipeline.paths import PAIRS, TASKS, prompts_of, reference_of
from pipeline.served import answering_decoder, load_answering
from pipeline.task import load_task, read_prompts

TOGETHER = 2  # batches that calibration decodes between two looks at whether a setting is lost
SINGLE = 16  # the same in prompts, where one row is decoded at a time
SPLITS = ("development", "calibration")


def piece_of(rows: int) -> int:
    """Prompts between two looks at whether a setting is lost, and that an interruption loses at
    most. Outside float32 the stage `reference` decodes in the same pieces, because there a row's
    rounding depends on its batch.
    """
    return SINGLE if rows == 1 else TOGETHER * rows


def chunk_of(params: Params, name: str, dtype: torch.dtype) -> int | None:
    """Such a piece for a method; None where all prompts are decoded in any case, and together."""
    rows = params.rows_of(name)
    whole = params.calibrate.stop == "planned" and dtype == torch.float32 and rows > 1
    return None if whole else piece_of(rows)


class Setup:
    """What calibration shares between settings: the pair, the task, the prompts, and prompts that
    are read once.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        self.pair = load_answering(params)
        self.task = load_task(params)
        self.prompts = {split: read_prompts(split) for split in SPLITS}
        self.memory = PromptCache(params.decoding.prompt_memory_mb)
        self.scorer = TaskScore(self.task, self.pair.tokenizer)
        is_read = params.calibrate.fluency is not None
        self.reader = LogProbability(self.pair.target, READ_TOGETHER) if is_read else None

    @cached_property
    def reference(self) -> dict[str, dict[str, Any]]:
        """The strict answers by prompt, as the stage `reference` decoded them."""
        answers: dict[str, dict[str, Any]] = {}
        for split, prompts in self.prompts.items():
            answers |= {row["id"]: row for row in read_reference(split, prompts, self.pair)}
        return answers

    def strict_rows(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """The strict answers to these prompts."""
        return [self.reference[prompt["id"]] for prompt in prompts]

    def outcomes(self, name: str, scratch: Path, chunk: int | None = None) -> Outcomes:
        """A method against the strict reference; each of its settings is decoded once, and its
        answers wait in the folder `scratch`, so that an interruption loses a chunk at most.
        """
        params = self.params
        method = method_of(params, name)
        gate = load_gate(params.method(name), self.pair)
        rows = params.rows_of(name)
        engine = params.engine_of(name)
        memory = self.memory if engine == EAGER else None

        def strict(prompts: Sequence[Prompt], _start: int) -> list[list[int]]:
            return [row["ids"] for row in self.strict_rows(prompts)]

        def loose(
            settings: dict[str, Any],
            prompts: Sequence[Prompt],
            start: int,
        ) -> list[Answer]:
            choice = Choice(method.rule, settings, method.block, method.drafter)
            decoder = answering_decoder(self.pair, choice, gate, engine)
            values = ", ".join(f"{key} {value}" for key, value in settings.items())
            job = (decoder, self.pair, prompts, params, f"{name} {values}", memory, start)
            return [answer_of(answer) for answer in decode_split(*job, rows)]

        def reference(
            _settings: dict[str, Any],
            prompts: Sequence[Prompt],
            _start: int,
        ) -> list[Answer]:
            return [reference_answer(row) for row in self.strict_rows(prompts)]

        if params.is_reference(name):
            return Outcomes(self.prompts, self.scorer, strict, reference, chunk, self.reader)
        scope = scope_of(params, name, self.pair, self.task)
        kept = cached(loose, scratch, name, scope, *surroundings(self.pair))
        return Outcomes(self.prompts, self.scorer, strict, kept, chunk, self.reader)


def answer_of(answer: Generation) -> Answer:
    """A decoded answer, as outcomes have it."""
    return Answer(answer.ids, answer.statistics, answer.finish)


def reference_answer(row: dict[str, Any]) -> Answer:
    """The answer in a row of the strict reference."""
    counted = Statistics.from_dict(row["statistics"])
    if "seconds" in row:
        counted.seconds["answer"] = row["seconds"]
    return Answer(row["ids"], counted, row["finish"])


def method_of(params: Params, name: str) -> Method:
    """A method of params.yaml as the certification engine takes it."""
    method = params.method(name)
    block = params.block_of(name)
    search = (method.knob, method.grid, method.fixed, method.variants)
    return Method(method.rule, method.drafter, block, *search)


def maker_of(pair: Pair) -> str:
    """Fingerprint of all of a pair that decides an answer: weights and forms of its models, how
    texts are read, and an engine that is not this library's.
    """
    models = [model_scope(identify_model(model)) for model in (pair.target, pair.draft) if model]
    encoding = tokenizer_scope(pair.tokenizer, ("encoding",))
    engine = [] if pair.server is None else [pair.server.scope]
    return fingerprint(models, encoding, eos_ids(pair.target, pair.tokenizer), *engine)


def mark(maker: str, ids: Sequence[int]) -> str:
    """The mark of an answer of `maker` to the prompt with these token ids."""
    return fingerprint(maker, [int(token) for token in ids])[:10]


def read_reference(
    split: str,
    prompts: Sequence[Prompt],
    pair: Pair,
) -> list[dict[str, Any]]:
    """The strict reference of a split, in the order of its prompts."""
    rows = read_json_lines(reference_of(split))
    if not prompts or [row["id"] for row in rows] != [prompt["id"] for prompt in prompts]:
        raise UserError(
            f"{reference_of(split)} does not belong to {prompts_of(split)}. Run `reference` again."
        )
    maker = maker_of(pair)
    if [row["mark"] for row in rows] != [mark(maker, prompt["ids"]) for prompt in prompts]:
        raise UserError(
            f"{reference_of(split)} answers other prompts than {prompts_of(split)}, or was made"
            " with other weights, another tokenizer or engine. Run `dvc repro --force"
            " --single-item reference`, then go on."
        )
    return rows


def scope_of(
    params: Params,
    name: str,
    pair: Pair,
    task: Task,
) -> dict[str, Any]:
    """Everything that a certificate of method `name` depends on; whatever differs at use makes it
    void.
    """
    method = method_of(params, name)
    draft = pair.draft if asks_draft(method.drafter) else None
    gate = load_gate(params.method(name), pair)
    rows = params.rows_of(name)
    data = KNOWN.get(method.drafter, ())
    decoding = decoding_scope(method, pair.target, draft, pair.tokenizer, gate, rows, data)
    decoding["engine"] = params.engine_of(name)
    if pair.server is not None:
        decoding |= pair.server.scope
    return {**decoding, **task_scope(task, prompts_of("calibration"), pair.tokenizer)}


APART = {
    "benchmark",
    "adversarial",
    "allow_code",
    "methods",
    "decoding",
    "task_data",
    "documents",
}
"""Keys of params.yaml that choose nothing, or of which only a part does."""


def look_of(setup: Setup, name: str) -> Look:
    """The look at the calibration prompts for the method `name`."""
    params = setup.params
    prompts = setup.prompts["calibration"]
    confidence = params.calibrate.confidence
    problems = hashes_of(setup.task.problem(prompt["doc"]) for prompt in prompts).split()
    return Look(
        claim=f"{params.pair}, {params.task}, {setup.scorer.id}: {name}",
        marks=[hash_of(prompt["ids"]) for prompt in prompts] + problems,
        spent=1 - level(confidence, params.calibrate.looks),
        error=1 - confidence,
        choice=choice_of(params, name),
        remedy=(
            f"Set prompts.draw to {params.prompts.draw + 1} in params.yaml, which draws fresh"
            " calibration prompts."
        ),
    )


def choice_of(params: Params, name: str) -> str:
    """Fingerprint of every parameter and file that leads to a method's tested settings."""
    values: dict[str, Any] = {"choice": FORMER["choice"]}
    values |= {key: value for key, value in vars(params).items() if key not in APART}
    for key, value in values.items():
        if is_dataclass(value):
            values[key] = recorded(value)
    method = recorded(params.method(name))
    files = [PAIRS / f"{params.pair}.yaml", *files_of(TASKS / f"{params.task}.yaml")]
    if params.task_data:
        files.append(Path(params.task_data))
    return fingerprint(values, params.decoding.deciding, method, *files)
