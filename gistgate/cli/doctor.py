"""`gistgate doctor`: what drafts cost and what looseness changes, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Annotated

import typer

from gistgate.cli import show
from gistgate.cli.decode import load
from gistgate.cli.options import (
    AsJson,
    Asking,
    Prompts,
    TargetName,
    decodes,
    needing,
    plain_option,
    refuse_options,
)
from gistgate.cli.promise import Promise
from gistgate.core.utils import UserError
from gistgate.models.options import DecodeOptions, read_prompts

if TYPE_CHECKING:
    from gistgate.cli.decode import Loaded
    from gistgate.measure.outlook import Findings
    from gistgate.tasks.task import Task

NUM_PROMPTS = 20  # prompts that are enough for one recommendation
# Wishes that doctor ignores, which decodes strictly with whole drafts at every K.
IGNORED = ("rule", "settings", "block", "segments", "guards", "stop_drafting", "speculate_up_to")


@decodes(max_new_tokens=64)
def doctor(
    target: TargetName,
    prompts: Prompts = "",
    *,
    task: Annotated[
        str | None, plain_option("Task in place of PROMPTS, which also scores the answers.")
    ] = None,
    task_data: Annotated[
        str | None, plain_option("Folder of .jsonl files that replaces the task's data.")
    ] = None,
    allow_code: Annotated[
        bool, plain_option("Run programs that the model writes.", "--allow-code")
    ] = False,
    documents: Annotated[
        int, plain_option("Documents of the task that are asked.", min=1)
    ] = NUM_PROMPTS,
    asking: Asking,
    as_json: AsJson = False,
    options: DecodeOptions,
) -> None:
    """Measure what drafts cost and what looseness changes in 20 answers; say which K, and yes or no
    to a gate.

    It also says how many of these answers reached the limit of tokens, and which limit answers like
    them ask for.
    """
    from gistgate.measure import outlook

    check(prompts, task, options)
    promise = Promise(
        task=task,
        task_data=task_data,
        allow_code=allow_code,
        chat=asking.chat,
        system=asking.system,
        template=asking.template,
        max_new_tokens=asking.max_new_tokens,
    )
    judge = None if task is None else judge_of(promise)
    # doctor plans for budget and confidence, and decodes strictly by itself
    unplanned = replace(options, budget=None, confidence=None)
    texts = read_prompts(prompts)[:NUM_PROMPTS] if prompts else ()
    loaded = load(target, asking, unplanned, texts)
    ids = loaded.ids
    request = loaded.request
    scores = None
    if judge is not None:
        ids, scores = documents_of(judge, loaded, documents)
        request["stops"] = [*judge.stops, *asking.stops]
        request["max_new_tokens"] = judge.max_new_tokens
    findings = outlook.examine(loaded.decoder, ids, scores, **request)
    plan = ""
    if judge is not None:
        budget = options.budget or promise.budget
        plan = outlook.plan(findings, budget, options.confidence or promise.confidence)
    tell(findings, plan, len(ids), as_json)


def tell(findings: Findings, plan: str, prompts: int, as_json: bool) -> None:
    """Print what was measured, and the advice that follows from it."""
    from gistgate.measure import outlook

    limit = outlook.limit_advice(**findings.lengths)
    pays, advice = outlook.verdict(findings)
    if as_json:
        entries = asdict(findings)
        entries["lengths"]["advice"] = limit
        entries |= {"advice": advice, "pays": pays, "plan": plan, "prompts": prompts}
        typer.echo(json.dumps(entries))
    else:
        show.say(show.promised(findings))
        typer.echo("\n".join(filter(None, [plan, limit, advice])))


def check(prompts: str, task: str | None, options: DecodeOptions) -> None:
    """Refuse (UserError) what doctor would not measure."""
    from gistgate.models.sources import HYBRID

    refuse_options(
        options,
        IGNORED,
        "is no part of what is measured: strict decoding with whole drafts at several K",
    )
    if options.drafter == HYBRID:
        raise UserError(
            f"'{HYBRID}' drafts in two ways, and one is measured at a time. Name model or suffix."
        )
    if bool(prompts) == (task is not None):
        raise UserError(
            "Doctor asks the prompts of a file or those of a task (--task). Name one of both."
        )


def judge_of(promise: Promise) -> Task:
    """The task whose documents are asked."""
    with needing("calibrate"):
        from gistgate.lm_eval.task import load_named
    return load_named(promise.spec(None))


def documents_of(
    task: Task, loaded: Loaded, number: int
) -> tuple[list[list[int]], Callable[[int, list[int]], float]]:
    """Token ids of prompts of the task, which no pipeline has used, and the score of an answer to
    the prompt at a place.
    """
    from gistgate.certificates.decoder import maker_for
    from gistgate.certificates.outcomes import TaskScore
    from gistgate.tasks.prompts import USED, fresh_prompts, used_problems

    tokenizer = loaded.target.tokenizer
    maker = maker_for(task, tokenizer, loaded.decoder.parts.models)
    unused = fresh_prompts(
        maker, task.documents("train"), Random("0 certificates"), used_problems(task, USED)
    )
    prompts = list(islice(unused, number))
    scorer = TaskScore(task, tokenizer)
    return (
        [prompt["ids"] for prompt in prompts],
        lambda place, ids: scorer.score(prompts[place], ids),
    )
