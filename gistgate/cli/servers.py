"""What `gistgate certify` does: it plans, asks both servers, tests and writes."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.ledger import Ledger, Look, hash_of
from gistgate.certify.address import Address, headers_of, keys_of
from gistgate.certify.card import CARD_FILE, ServedCertificate
from gistgate.certify.claims import CLAIMS, Claim
from gistgate.certify.comparison import AnswerStore, BothEndpoints, Comparison
from gistgate.certify.endpoint import Endpoint, with_model
from gistgate.cli.certify import Options
from gistgate.core.files import fingerprint, write_json, write_text
from gistgate.core.utils import UserError, nearest
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_task
from gistgate.tasks.prompt_file import PromptFile, rows_of
from gistgate.tasks.prompts import USED, distinct_documents, hashes_of, used_problems
from gistgate.tasks.task import TASKS, Document, Task, TaskSpec


def compare(options: Options) -> tuple[ServedCertificate, Path]:
    """Plan, ask both servers, test, write. The card is written after a refusal, too, and says
    so.
    """
    plan = options.plan(ternary=options.samples == 1)
    if (options.task is None) == (options.file is None):
        raise UserError(
            "Name what both servers are asked: a task (--task), or a file of your own prompts"
            " (--file)."
        )
    gate = Gate.load(options.gate) if options.gate else None
    spec = options.spec(gate)
    task: Task
    if options.file:
        task = PromptFile(rows_of(options.file), spec, options.scorer)
    else:
        task = load_task(spec, TASKS)
    claim = claim_of(options, task.judges, task.calls_tools)
    if options.file and claim.id in ("score", "tools"):
        print(f"Answers are compared by the {task.metric}.")
    need = claim.needed(plan, options.changed)
    ledger = Ledger(options.ledger)
    docs = documents(options, task, ledger.taken_marks(gate), need)
    if claim.counts_prompts:
        print(plan.sentence(len(docs), claim.lost, options.prompts))
        plan.check(len(docs))
    with asyncio.Runner() as runner:
        endpoints = connected(options, spec, runner)
        look = look_of(options, task, docs, claim, endpoints)
        ledger.check(look)
        sides = (endpoints.strict, endpoints.loose)
        servers = [{**side.described(), "reported": side.reported} for side in sides]
        path = ledger.local.with_name(f"answers-{fingerprint(servers)}.jsonl")
        store = AnswerStore(path, options.resume)
        comparison = Comparison(task, docs, endpoints, claim, plan, store)
        comparison.need = need
        is_ternary = plan.ternary and claim.counts_prompts
        chunks = comparison.chunks(runner)
        verdicts = fixed_sequence(
            [chunks], [options.budget], plan.confidence, plan.stop, is_ternary
        )
        for side in sides:  # again, so that a change is said
            with suppress(Exception):
                runner.run(side.survey())
    comparison.check_something_to_lose()
    comparison.check_finished()
    ledger.record(look)
    certificate = ServedCertificate.of(comparison, verdicts)
    card = (options.out or Path()) / CARD_FILE
    write_json(card, asdict(certificate))
    write_text(card.with_suffix(".md"), certificate.card)
    path.unlink(missing_ok=True)
    return certificate, card


def claim_of(options: Options, judges: bool, calls_tools: bool = False) -> Claim:
    """The claim that is made, if it can be, where right answers are known or not, and where tools
    are called.
    """
    usual = "tools" if calls_tools else "score" if judges else "agreement"
    name = options.claim or usual
    if name not in CLAIMS:
        raise UserError(f"There is no claim '{name}'. {nearest(name, CLAIMS)}")
    if name == "score" and not judges:
        raise UserError(
            f"{options.file} has prompts without `answer`, so no score is known. Take --claim"
            " agreement."
        )
    if name == "tools" and not calls_tools:
        raise UserError(f"{options.file or options.task} has no tools. Write them into each line.")
    if name == "agreement" and options.temperature:
        raise UserError(
            "Two samples differ by chance, so agreement shows nothing. Take another claim."
        )
    if options.samples > 1 and not options.temperature:
        raise UserError(
            "All greedy answers to a prompt are one. Add --temperature, or leave --samples out."
        )
    return CLAIMS[name](options.budget)


def documents(options: Options, task: Task, taken: set[str], need: int | None) -> list[Document]:
    """Calibration documents in random order, without problems of a finished run, or whose marks are
    taken.
    """
    train = task.documents("train")
    order = Random(f"{options.seed} certificates")
    places = distinct_documents(task, train, order, used_problems(task, USED))
    distinct = (train[place] for place in places)
    unused = [doc for doc in distinct if hashes_of([task.problem(doc)]) not in taken]
    n = options.prompts or (2 * need if need else len(unused))
    drawn = unused[(options.draw - 1) * n : options.draw * n]
    if not drawn:
        raise UserError(
            f"{len(unused)} unused documents are too few for draw {options.draw} of {n}. Lower"
            " --prompts."
        )
    return drawn


def connected(options: Options, spec: TaskSpec, runner: asyncio.Runner) -> BothEndpoints:
    """The strict endpoint and the loose one, unless both are one."""
    # Of requests that nobody waits for any more.
    runner.get_loop().set_exception_handler(lambda *_: None)
    keys = keys_of(options.strict, options.loose)
    strict = Endpoint(
        Address.parse(options.strict),
        options.strict_model or "",
        side="baseline",
        extra=body_of(options.strict_body, spec),
        key=keys["baseline"],
        headers=headers_of(options.strict_header),
        names=tuple(options.same_model),
    )
    loose = Endpoint(
        Address.parse(options.loose),
        options.loose_model or "",
        side="candidate",
        extra=body_of(options.loose_body, spec),
        key=keys["candidate"],
        headers=headers_of(options.loose_header),
        names=tuple(options.same_model),
    )
    endpoints = BothEndpoints(
        runner.run(with_model(strict)),
        runner.run(with_model(loose)),
        options.temperature,
        options.samples,
        options.seed,
        asyncio.Semaphore(options.concurrent),
    )
    if endpoints.strict.identity == endpoints.loose.identity:
        raise UserError(
            "Both endpoints are the same server, model and request. Tell them apart:"
            " --baseline-body."
        )
    return endpoints


def body_of(text: str, spec: TaskSpec) -> dict[str, Any]:
    """Further entries of a request, behind those of the chat template."""
    body: dict[str, Any] = {}
    if spec.prompting.arguments:  # as vLLM, SGLang and llama.cpp call them
        body["chat_template_kwargs"] = spec.prompting.arguments
    with suppress(ValueError, TypeError):
        return {**body, **json.loads(text)}
    raise UserError(
        "What --baseline-body or --candidate-body says is no JSON object. Write one such as"
        ' {"top_k": 1}.'
    )


def look_of(
    options: Options, task: Task, docs: list[Document], claim: Claim, endpoints: BothEndpoints
) -> Look:
    """The look at these documents; it says nothing of what is tested, because a server may be
    changed before the next one.
    """
    name = task.name if claim.id == "score" else f"{task.name}, {claim.id}"
    if options.temperature:
        name += f" at temperature {options.temperature}"
    marks = [hash_of(list(task.question(doc).encode())) for doc in docs]
    marks += [hashes_of([task.problem(doc)]) for doc in docs]
    return Look(
        claim=(
            f"{name}, served: {endpoints.loose.described()} against {endpoints.strict.described()}"
        ),
        marks=marks,
        spent=1 - options.plan().confidence,
        error=1 - options.confidence,
        remedy=(
            f"A server may have been changed since. Add --draw {options.draw + 1}, which takes"
            " fresh prompts."
        ),
    )
