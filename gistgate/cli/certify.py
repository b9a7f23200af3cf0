"""`gistgate certify`: one server against another, on a task or on one's own prompts."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gistgate.cli import show
from gistgate.cli.options import needing, typed
from gistgate.cli.promise import ENDS, Promise, fields_of, plain_option, written
from gistgate.core.utils import UserError, nearest
from gistgate.models.options import read_rows

if TYPE_CHECKING:
    from gistgate.certificates.ledger import Look
    from gistgate.certify.card import ServedCertificate
    from gistgate.certify.claims import Claim
    from gistgate.certify.comparison import BothEndpoints
    from gistgate.gate import Gate
    from gistgate.tasks.task import Document, Task, TaskSpec


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate certify`."""

    strict: Annotated[str, plain_option("The reference server, such as http://HOST:8000/v1.")]
    loose: Annotated[str, plain_option("The server that is certified against it.")]
    file: Annotated[
        str | None,
        plain_option(
            "In place of a task, .jsonl with `prompt` or `messages`, and `answer` if one is known."
        ),
    ] = None
    claim: Annotated[
        str | None,
        plain_option(
            "score (usual if right answers are known), agreement (with the strict answer) or"
            " length."
        ),
    ] = None
    changed: Annotated[
        float, plain_option("Share of answers that the plan expects to differ.", min=0, max=1)
    ] = 0.05
    stop: Annotated[str, plain_option(ENDS)] = "clear"
    out: Annotated[Path | None, plain_option("Folder of the card; default: this one.")] = None
    strict_model: Annotated[
        str | None, plain_option("Model of the reference server; default: its only one.")
    ] = None
    loose_model: Annotated[
        str | None, plain_option("Model of the other server; default: its only one.")
    ] = None
    same_model: Annotated[
        list[str],
        plain_option("Another name that the answers may give the model asked for; repeatable."),
    ] = ()  # type: ignore[assignment]
    strict_body: Annotated[
        str, plain_option("Further entries of every request to the reference server, as JSON.")
    ] = "{}"
    loose_body: Annotated[
        str, plain_option("Further entries of every request to the other server, as JSON.")
    ] = "{}"
    concurrent: Annotated[
        int, plain_option("Requests that are under way at the same time at a server.", min=1)
    ] = 8
    temperature: Annotated[
        float, plain_option("Of all requests; above 0 the claim is on average over samples.", min=0)
    ] = 0.0
    samples: Annotated[
        int, plain_option("Answers to each prompt, by seeds that follow --seed.", min=1)
    ] = 1
    resume: Annotated[
        bool, plain_option("Go on after an interruption, both servers unchanged.", "--resume")
    ] = False
    watch: Annotated[
        bool, plain_option("Test exchangeable prompts as they come, until a loss.", "--watch")
    ] = False
    share: Annotated[
        float,
        plain_option("Share of the prompts that --watch asks, drawn by chance.", min=0, max=1),
    ] = 1.0


def certify(as_json: bool, **given: Any) -> None:
    """Certify one server against another, whatever runs behind it; exit with status 1 if the claim
    is not shown.

    The claim is on a task, or on a file of your own prompts. A card is written as JSON and as
    Markdown.
    """
    from gistgate.cli.watch import watch

    options = Options(**given)
    if options.watch:
        watch(options)
        return
    certificate = written(partial(compare, options), show.compared, as_json)
    if not certificate.certified:
        raise UserError(certificate.refusal)


typed(certify, fields_of(Options))


def compare(options: Options) -> tuple[ServedCertificate, Path]:
    """Plan, ask both servers, test, write. The card is written after a refusal, too, and says
    so.
    """
    with needing("endpoints"):
        from gistgate.certificates.fixed_sequence import fixed_sequence
        from gistgate.certify.card import CARD_FILE, ServedCertificate
        from gistgate.certify.comparison import AnswerStore, Comparison
        from gistgate.core.files import fingerprint, write_json, write_text
        from gistgate.gate import Gate
        from gistgate.lm_eval.task import load_task
        from gistgate.tasks.prompt_file import PromptFile
        from gistgate.tasks.task import TASKS
    options.check()
    if (options.task is None) == (options.file is None):
        raise UserError(
            "Name what both servers are asked: a task (--task), or a file of your own prompts"
            " (--file)."
        )
    gate = None if options.gate is None else Gate.load(options.gate)
    spec = options.spec(gate)
    task: Task
    if options.file:
        task = PromptFile([row for _, row in read_rows(options.file)], options.file, spec)
    else:
        task = load_task(spec, TASKS)
    claim = claim_of(options, task.judges)
    plan = options.plan(ternary=options.samples == 1)
    need = claim.needed(plan, options.changed)
    docs = documents(options, task, gate, need)
    if claim.counts_prompts:
        options.announce(plan, len(docs), claim.lost)
    ledger = options.open_ledger()
    with asyncio.Runner() as runner:
        endpoints = connected(options, spec, runner)
        look = look_of(options, task, docs, claim, endpoints, plan.confidence)
        ledger.check(look)
        sides = (endpoints.strict, endpoints.loose)
        servers = [{**side.described(), "reported": side.reported} for side in sides]
        place = ledger.local.with_name(f"answers-{fingerprint(servers)}.jsonl")
        store = AnswerStore(place, options.resume)
        comparison = Comparison(task, docs, endpoints, claim, plan, store, need)
        chunks = comparison.chunks(runner)
        is_ternary = plan.ternary and claim.counts_prompts
        verdicts = fixed_sequence(
            [chunks], [options.budget], plan.confidence, plan.stop, is_ternary
        )
        for side in sides:  # again, so that a change is said
            with suppress(Exception):
                runner.run(side.survey())
    comparison.check_something_to_lose()
    ledger.record(look)
    certificate = ServedCertificate.of(comparison, verdicts)
    path = (options.out or Path()) / CARD_FILE
    write_json(path, asdict(certificate))
    write_text(path.with_suffix(".md"), certificate.card)
    store.path.unlink(missing_ok=True)
    return certificate, path


def claim_of(options: Options, judges: bool) -> Claim:
    """The claim that is made, if it can be, where right answers are known or not."""
    from gistgate.certify.claims import CLAIMS

    name = options.claim or ("score" if judges else "agreement")
    if name not in CLAIMS:
        raise UserError(f"There is no claim '{name}'. {nearest(name, CLAIMS)}")
    if name == "score" and not judges:
        raise UserError(
            f"{options.file} has prompts without `answer`, so no score is known. Take --claim"
            " agreement."
        )
    if name == "agreement" and options.temperature:
        raise UserError(
            "Two samples differ by chance, so agreement shows nothing. Take another claim."
        )
    if options.samples > 1 and not options.temperature:
        raise UserError(
            "All greedy answers to a prompt are one. Add --temperature, or leave --samples out."
        )
    return CLAIMS[name](options.budget)


def documents(options: Options, task: Task, gate: Gate | None, need: int | None) -> list[Document]:
    """Calibration documents in random order, without problems of a finished run, or that a pipeline
    or a gate knows.
    """
    from gistgate.tasks.prompts import USED, distinct_documents, hashes_of, used_problems

    train = task.documents("train")
    taken = options.open_ledger().taken_marks(gate)
    used = used_problems(task, USED)
    distinct = (train[index] for index in distinct_documents(task, train, options.order(), used))
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
    from gistgate.certify.address import keys_of
    from gistgate.certify.comparison import BothEndpoints, Samples
    from gistgate.certify.endpoint import connect

    # Of requests that nobody waits for any more.
    runner.get_loop().set_exception_handler(lambda *_: None)
    keys = keys_of(options.strict, options.loose)
    names = tuple(options.same_model)
    common = {}
    if spec.prompting.arguments:  # as vLLM, SGLang and llama.cpp call them
        common["chat_template_kwargs"] = spec.prompting.arguments
    strict_extra = {**common, **body_of(options.strict_body)}
    loose_extra = {**common, **body_of(options.loose_body)}
    strict = runner.run(
        connect(options.strict, options.strict_model, strict_extra, keys["strict"], names)
    )
    loose = runner.run(
        connect(options.loose, options.loose_model, loose_extra, keys["loose"], names)
    )
    if strict.identity == loose.identity:
        raise UserError(
            "Both endpoints are the same server, model and request. Tell them apart: --strict-body."
        )
    samples = Samples(options.temperature, options.samples, options.seed)
    return BothEndpoints(strict, loose, samples, options.concurrent)


def body_of(text: str) -> dict[str, Any]:
    """Further entries of a request."""
    with suppress(ValueError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    raise UserError(
        'What --strict-body or --loose-body says is no JSON object. Write one such as {"top_k": 1}.'
    )


def look_of(
    options: Options,
    task: Task,
    docs: list[Document],
    claim: Claim,
    endpoints: BothEndpoints,
    confidence: float,
) -> Look:
    """The look at these documents; it says nothing of what is tested, because a server may be
    changed before the next one.
    """
    from gistgate.certificates.ledger import Look, hash_of
    from gistgate.tasks.prompts import hashes_of

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
        spent=1 - confidence,
        error=1 - options.confidence,
        remedy=(
            f"A server may have been changed since. Add --draw {options.draw + 1}, which takes"
            " fresh prompts."
        ),
    )
