"""The methods of params.yaml as outcomes: decoded on the prompts of a run, and scored against its
strict reference.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from gistgate.certificates.calibration import Method, decoding_scope, task_scope
from gistgate.certificates.fixed_sequence import Tested
from gistgate.certificates.ledger import Look, hash_of, level
from gistgate.certificates.outcomes import Answer, Outcomes, TaskScore
from gistgate.core.batches import PromptCache
from gistgate.core.files import fingerprint, read_json_lines, write_text
from gistgate.core.identity import identify_model, model_scope, tokenizer_scope
from gistgate.core.request import Statistics, eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from gistgate.lm_eval.files import files_of
from gistgate.tasks.prompts import Prompt, hashes_of
from gistgate.tasks.task import Task
from pipeline.decode import KNOWN, asks_draft, decode_split, load_gate, make_decoder
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import FORMER, Params, recorded
from pipeline.paths import PAIRS, TASKS, prompts_of, reference_of
from pipeline.task import load_task, read_prompts

TOGETHER = 2  # batches that calibration decodes between two looks at whether a setting is lost
SPLITS = ("development", "calibration")


def chunk_of(params: Params, dtype: torch.dtype) -> int | None:
    """Prompts between two looks at whether a setting is lost; None where all are decoded in any
    case. Outside float32 the stage `reference` decodes in the same pieces, because there a row's
    rounding depends on its batch.
    """
    whole = params.calibrate.stop == "planned" and dtype == torch.float32
    return None if whole else TOGETHER * params.decoding.batch_size


class Setup:
    """What calibration shares between settings: the pair, the task, the prompts, and prompts that
    are read once.
    """

    def __init__(self, params: Params) -> None:
        self.params = params
        self.pair = load_pair(params)
        self.task = load_task(params)
        self.prompts = {split: read_prompts(split) for split in SPLITS}
        self.memory = PromptCache(params.decoding.prompt_memory_mb)
        self.scorer = TaskScore(self.task, self.pair.tokenizer)

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

    def outcomes(self, name: str, chunk: int | None = None) -> Outcomes:
        """A method against the strict reference; each of its settings is decoded once."""
        params = self.params
        method = method_of(params, name)
        gate = load_gate(params.method(name), self.pair)
        is_reference = method == Method("exact", "model", params.decoding.block)
        decoded: dict[str, list[Answer]] = {}

        def strict(prompts: Sequence[Prompt], _start: int) -> list[list[int]]:
            return [row["ids"] for row in self.strict_rows(prompts)]

        def loose(
            settings: dict[str, Any],
            prompts: Sequence[Prompt],
            start: int,
        ) -> list[Answer]:
            if is_reference:
                rows = self.strict_rows(prompts)
                return [Answer(row["ids"], Statistics.from_dict(row["statistics"])) for row in rows]
            key = fingerprint(settings, start, [prompt["id"] for prompt in prompts])
            if key not in decoded:
                choice = Choice(method.rule, settings, method.block, method.drafter)
                decoder = make_decoder(self.pair, choice, gate)
                values = ", ".join(f"{key} {value}" for key, value in settings.items())
                job = (decoder, self.pair, prompts, params, f"{name} {values}", self.memory, start)
                decoded[key] = [
                    Answer(answer.ids, answer.statistics) for answer in decode_split(*job)
                ]
            return decoded[key]

        return Outcomes(self.prompts, self.scorer, strict, loose, chunk)


def method_of(params: Params, name: str) -> Method:
    """A method of params.yaml as the certification engine takes it."""
    method = params.method(name)
    block = params.block_of(name)
    search = (method.knob, method.grid, method.fixed, method.variants)
    return Method(method.rule, method.drafter, block, *search)


def maker_of(pair: Pair) -> str:
    """Fingerprint of all of a pair that decides an answer: weights and forms of its models, and how
    texts are read.
    """
    models = [model_scope(identify_model(model)) for model in (pair.target, pair.draft) if model]
    encoding = tokenizer_scope(pair.tokenizer, ("encoding",))
    return fingerprint(models, encoding, eos_ids(pair.target, pair.tokenizer))


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
            " with other weights or another tokenizer. Run `dvc repro --force --single-item"
            " reference`, then go on."
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
    rows = params.decoding.batch_size
    data = KNOWN.get(method.drafter, ())
    decoding = decoding_scope(method, pair.target, draft, pair.tokenizer, gate, rows, data)
    return {**decoding, **task_scope(task, prompts_of("calibration"), pair.tokenizer)}


COLUMNS = ("setting", "id", "strict", "loose", "tokens", "capped")
"""Place in the sequence, prompt, scores of strict and loose decoding in [0, 1], length of the loose
answer in tokens, and 1 where the answer reached its longest length.
"""


def write_records(
    path: Path,
    tested: Sequence[Tested],
    prompts: Sequence[Prompt],
    strict: Sequence[float],
) -> None:
    """Write the outcomes of a sequence on the calibration prompts, whose strict scores are `strict
    [N]`.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for place, setting in enumerate(tested):
        decoded = setting.decoded
        # A setting that was left early has the first prompts alone.
        rows = zip(prompts, strict, decoded.differences.tolist(), decoded.statistics)
        for prompt, score, difference, counted in rows:
            scores = (f"{score:.12g}", f"{score - difference:.12g}")
            capped = int(counted.tokens >= prompt["max_new_tokens"])
            table.writerow([place, prompt["id"], *scores, counted.tokens, capped])
    write_text(path, text.getvalue())


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
    method = asdict(params.method(name))
    files = [PAIRS / f"{params.pair}.yaml", *files_of(TASKS / f"{params.task}.yaml")]
    if params.task_data:
        files.append(Path(params.task_data))
    return fingerprint(values, params.decoding.deciding, method, *files)
