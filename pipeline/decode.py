"""Decoding as the stages need it: the task, a method as a decoder, its certified setting, a whole
split through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gistgate.core.batches import PromptCache, decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.files import read_json, read_json_lines
from gistgate.core.request import Generation, eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.choose import Choice
from gistgate.gate import Gate
from gistgate.models import build as library
from gistgate.models.build import CORPUS, STORED, assemble
from pipeline.methods import MODEL, SEGMENT, MethodParams
from pipeline.pair.pair import Pair
from pipeline.params import Params
from pipeline.paths import DATASTORE, REPORTS, SEGMENTS, TASKS, prompts_of, reference_of
from pipeline.run import bar

if TYPE_CHECKING:
    from gistgate.lm_eval.task import HarnessTask
    from gistgate.tasks.task import TaskSpec


TEXTS = (prompts_of("train"), reference_of("train"))
RETRIEVAL = {CORPUS: TEXTS, "choice": TEXTS, **dict.fromkeys(STORED, (DATASTORE,))}
"""Ids of drafters -> the files that each knows besides the request: a certificate holds for no
other content.
"""


def make_decoder(
    pair: Pair,
    method: MethodParams,
    settings: dict[str, Any],
    block: int,
    gate: Gate | None = None,
    **parts: Any,
) -> Decoder:
    """The decoder of a method with these settings of its rule; `parts` go to `Decoder`."""
    if method.drafter == SEGMENT:
        return segment_decoder(pair, method, settings, block, **parts)
    choice = Choice(method.rule, settings, block, method.drafter)
    return assemble(
        pair.target, pair.tokenizer, choice, make_drafter(pair, method.drafter), gate, **parts
    )


def segment_decoder(
    pair: Pair, method: MethodParams, settings: dict[str, Any], block: int, **parts: Any
) -> Decoder:
    """The decoder of the probes of the stage `segments`, with the token gate that lies beside
    them.
    """
    from gistgate.segments.build import DEFAULTS, decoder_of
    from gistgate.segments.probes import load_probes

    own = load_probes(SEGMENTS, pair.target, pair.draft_model, pair.tokenizer)
    if block != own.limit:
        raise UserError(
            f"The probes in {SEGMENTS} judge segments of {own.limit} tokens. Set 'block' to that."
        )
    choice = Choice(method.rule, {**DEFAULTS, **settings}, block, SEGMENT)
    return decoder_of(own, choice, pair.target, pair.draft_model, pair.tokenizer, **parts)


def make_drafter(pair: Pair, drafter: str) -> Drafter | None:
    """A fresh drafter by id, of which "model" is the pair's own; None, which decodes plainly, for
    "none".
    """
    if drafter in RETRIEVAL:
        from pipeline.retrieval import (
            retrieval_drafter,
        )  # with its searches only where one is asked for

        return retrieval_drafter(drafter, pair)
    own = pair.drafter if drafter == MODEL else drafter
    return library.make_drafter(own, library.Sources(pair.target, pair.tokenizer, pair.draft))


def asks_draft(drafter: str) -> bool:
    """Whether a drafter drafts with the pair's draft model, alone or among others."""
    return drafter in (SEGMENT, "choice") or (
        drafter not in RETRIEVAL and library.asks_draft(drafter)
    )


def files_behind(drafter: str) -> list[Path]:
    """What a drafter knows besides the request: a certificate holds for no other content."""
    return [SEGMENTS] if drafter == SEGMENT else list(RETRIEVAL.get(drafter, ()))


def decoder_at(pair: Pair, point: Operating, **parts: Any) -> Decoder:
    """The decoder of a method at its operating point."""
    method = point.as_method()
    return make_decoder(pair, method, point.settings, point.block, load_gate(method, pair), **parts)


def load_gate(method: MethodParams, pair: Pair) -> Gate | None:
    """The gate that a method's rule asks, checked against the pair; None for a rule without one."""
    return Gate.load(method.gate, pair.target, pair.draft, pair.tokenizer) if method.gate else None


@dataclass(frozen=True)
class Operating:
    """One method at one setting."""

    method: str  # name in params.yaml, or "plain"
    rule: str  # rule id that runs; "exact" where nothing looser is certified
    drafter: str  # drafter id; "none" is plain decoding
    block: int  # K, in tokens
    settings: dict[str, Any] = field(default_factory=dict)
    knob: float | None = None  # value of the knob
    head: str | None = None  # head whose gate the rule asks
    budget: float | None = (
        None  # certified loss against strict, as a share of prompts; None where none was asked for
    )
    # False where calibration certified nothing at the budget, so that the method runs strictly
    certified: bool = True
    after: str = MethodParams.after  # where the method's parts come from

    def as_method(self) -> MethodParams:
        """What `make_decoder` wants to know."""
        return MethodParams(self.rule, drafter=self.drafter, after=self.after)


def calibration_file(name: str) -> Path:
    """Where the calibration of a method is written."""
    return REPORTS / "calibration" / f"{name}.json"


def evaluation_folder(name: str) -> Path:
    """Where lm-eval's verdict on a method lies."""
    return REPORTS / "evaluation" / name


def at_budget(budgets: dict[str, dict[str, Any]], budget: float) -> dict[str, Any] | None:
    """What a calibration says about one of its budgets."""
    return next((entry for key, entry in budgets.items() if float(key) == budget), None)


def operating_point(params: Params, name: str) -> Operating:
    """Where `name` runs at the headline budget."""
    if name == "plain":
        return Operating("plain", "exact", "none", 0)
    method = params.method(name)
    block = params.block_of(name)
    common: dict[str, Any] = {"head": method.head, "after": method.after}
    if method.knob is None:
        return Operating(
            name, method.rule, method.drafter, block, method.settings({}, None), **common
        )
    budget = params.headline_budget
    if (found := at_budget(read_json(calibration_file(name))["budgets"], budget)) is None:
        raise UserError(
            f"{calibration_file(name)} says nothing about the budget {budget:g}. Calibrate for it."
        )
    if not found["certified"]:
        drafter = (
            MODEL if method.drafter == SEGMENT else method.drafter
        )  # segments are not verified token by token
        block = params.decoding.block if method.drafter == SEGMENT else block
        return Operating(
            name, "exact", drafter, block, budget=budget, certified=False, after=method.after
        )
    settings = {**method.fixed, **found["fixed"], method.knob: found["knob"]}
    return Operating(
        name, method.rule, method.drafter, block, settings, found["knob"], budget=budget, **common
    )


def read_prompts(split: str) -> list[dict[str, Any]]:
    """The prompts of a split as the stage `prompts` wrote them."""
    return read_json_lines(prompts_of(split))


def request_of(prompts: Sequence[dict[str, Any]], pair: Pair) -> dict[str, Any]:
    """What all prompts of a split have in common, as arguments of `Decoder.generate`."""
    return {
        "max_new_tokens": prompts[0]["max_new_tokens"],
        "stops": prompts[0]["stops"],
        "eos_ids": eos_ids(pair.target, pair.tokenizer),
    }


def seeds_of(params: Params, prompts: Sequence[Any], first: int = 0) -> list[int]:
    """One seed for each prompt of a split from its place `first` on."""
    return [params.seed * 1_000_003 + first + index for index in range(len(prompts))]


def decode_split(
    decoder: Decoder,
    pair: Pair,
    prompts: Sequence[dict[str, Any]],
    params: Params,
    title: str = "decode",
    memory: PromptCache | None = None,
    first: int = 0,
) -> list[Generation]:
    """Answers to prompts of a split; the place `first` of the first one decides the seeds."""
    with bar(title=title, unit="prompt", total=len(prompts)) as shown:
        return decode_all(
            decoder,
            [prompt["ids"] for prompt in prompts],
            batch_size=params.decoding.batch_size,
            seeds=seeds_of(params, prompts, first),
            progress=shown.update,
            memory=memory,
            **request_of(prompts, pair),
        )


def load_task(params: Params) -> HarnessTask:
    """The task of params.yaml, prompted as its block `prompting` says."""
    from gistgate.lm_eval import task  # costs seconds, and not every stage has a task

    return task.load_task(task_spec(params), TASKS)


def task_parts(params: Params) -> list[Any]:
    """What verdicts depend on besides code, for a fingerprint: the task's settings, its files and
    its documents.
    """
    data = [Path(params.task_data)] if params.task_data else []
    return [params.task, params.task_metric, TASKS, *data]


def task_spec(params: Params) -> TaskSpec:
    """What params.yaml says about the task."""
    from gistgate.tasks.task import Prompting, TaskSpec

    prompting = Prompting(**vars(params.prompting))
    longest = params.decoding.max_new_tokens
    return TaskSpec(
        params.task, params.task_metric, params.task_data, prompting, longest, params.allow_code
    )
