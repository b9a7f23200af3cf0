"""What `gistgate certify` does: it plans, asks both servers, tests and writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from gistgate.certificates.bounds import SequentialTest
from gistgate.certificates.calibration import task_scope
from gistgate.certificates.fixed_sequence import decode_until_clear
from gistgate.certificates.ledger import Ledger, Look, hash_of
from gistgate.certificates.planning import Plan, confidence_of_test
from gistgate.certify.address import Address, headers_of, keys_of
from gistgate.certify.card import Card
from gistgate.certify.claims import CLAIMS, Claim
from gistgate.certify.comparison import BothEndpoints, Comparison
from gistgate.certify.control import controlled
from gistgate.certify.endpoint import Endpoint, note, with_model
from gistgate.certify.joint import Design, judged
from gistgate.certify.judge import PROMPT, Judge
from gistgate.certify.play import request_of
from gistgate.certify.records import write_card
from gistgate.certify.store import AnswerStore
from gistgate.certify.timing import timed
from gistgate.cli.certify import Options
from gistgate.core.files import check_folder, fingerprint, read_text
from gistgate.core.utils import UserError, nearest
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_named
from gistgate.models.options import read_rows
from gistgate.tasks.bfcl import from_bfcl, is_bfcl
from gistgate.tasks.bfcl_turns import BfclTurns, is_conversation
from gistgate.tasks.prompt_file import PromptFile
from gistgate.tasks.prompts import USED, distinct_documents, hashes_of, used_problems
from gistgate.tasks.task import Document, Prompting, Task, TaskSpec


@dataclass(frozen=True)
class Planned:
    """What is known before a server is asked."""

    spec: TaskSpec
    task: Task
    claim: Claim
    plan: Plan
    need: int | None
    """Prompts that the plan asks for."""
    ledger: Ledger
    draw: Draw


def planned(options: Options) -> Planned:
    """Plan, and say what the plan is."""
    options.plan()
    gate = Gate.load(options.gate) if options.gate else None
    spec = options.spec(gate)
    task = task_of(options, spec)
    claim = claim_of(options, task.judges, task.calls_tools)
    is_ternary = claim.counts_prompts and (task.ternary or not claim.is_scored)
    plan = options.plan(ternary=is_ternary and options.samples == 1)
    if options.file and claim.is_scored:
        print(f"Answers are compared by the {task.metric}.")
    need = claim.needed(plan, options.changed)
    ledger = Ledger(options.ledger)
    draw = documents(options, task, ledger.taken_marks(gate), need)
    if claim.counts_prompts:
        print(plan.sentence(len(draw.docs), claim.lost, options.prompts))
    return Planned(spec, task, claim, plan, need, ledger, draw)


def compare(options: Options) -> tuple[Card, Path]:
    """Plan, ask both servers, test, write; the card says whether the budget is kept."""
    folder = options.out or Path()
    check_folder(folder)
    before = planned(options)
    task = before.task
    claim = before.claim
    plan = before.plan
    draw = before.draw
    if claim.counts_prompts:
        plan.check(len(draw.docs))
    design = Design(claim.id, plan.stop, plan.ternary)
    with asyncio.Runner() as runner:
        endpoints = connected(options, before.spec, runner)
        sides = (endpoints.strict, endpoints.loose)
        judge = judge_of(options, before.spec, runner)
        servers = [{**side.described(), "reported": side.reported} for side in sides]
        if judge:
            servers.append(judge.described())
        path = before.ledger.local.with_name(f"answers-{fingerprint(servers)}.jsonl")
        marks = [endpoints.mark(request_of(task, doc)) for doc in draw.docs]
        store = AnswerStore(path, marks, options.resume)
        look = look_of(options, task, draw, claim, endpoints)
        remedy = look.remedy
        if store.has_earlier:
            remedy = f"--resume repeats this look with the answers that are kept. {remedy}"
        tested = [store.run, marks, asdict(design)]
        if claim.is_scored:
            tested.append(task.metric)
        look = replace(look, tested=fingerprint(*tested), remedy=remedy)
        before.ledger.check(look)
        store.begin()
        comparison = Comparison(
            task,
            draw.docs,
            endpoints,
            claim,
            plan,
            store,
            options.skip_refused,
            options.keep_texts,
            judge,
        )
        comparison.need = before.need
        sure = confidence_of_test(plan.stop, plan.confidence, plan.ternary)
        test = SequentialTest(claim.aim, sure)
        decode_until_clear(comparison.chunks(runner), [test], plan.stop)
        comparison.check_something_to_lose()
        comparison.check_finished()
        comparison.check_judge()
        try:
            before.ledger.record(look)
            further = further_entries(options, comparison, draw, runner)
            for side in sides:  # again, so that a change is said
                with suppress(Exception):
                    runner.run(side.survey())
            card = card_of(comparison, design, before.ledger.looks_at(look.marks), further)
            return card, write_card(card, comparison.records, folder)
        except (OSError, UserError):
            comparison.tell_kept()
            raise


def further_entries(
    options: Options, comparison: Comparison, draw: Draw, runner: asyncio.Runner
) -> dict[str, dict[str, Any]]:
    """What a control and timed prompts say, behind the test, on which they have no bearing."""
    entries = {}
    if options.control:
        note(f"The baseline answers up to {options.control} prompts again, as a control.")
        entries["control"] = runner.run(controlled(comparison, options.control))
    if options.time:
        note(f"Both servers answer {len(draw.further)} further prompts in turn, to be timed.")
        requests = [request_of(comparison.task, doc) for doc in draw.further]
        warm = request_of(comparison.task, comparison.answered[0].doc)
        entries["speed"] = runner.run(timed(comparison.endpoints, requests, warm))
    return entries


def task_of(options: Options, spec: TaskSpec) -> Task:
    """The task, or the file of prompts, that both servers are asked."""
    if (options.task is None) == (options.file is None):
        raise UserError(
            "Name what both servers are asked: a task (--task), or a file of your own prompts"
            " (--file)."
        )
    return file_of(options, options.file, spec) if options.file else load_named(spec)


def file_of(options: Options, place: str, spec: TaskSpec) -> Task:
    """The file of prompts, of which it is said what is not sent and not scored."""
    rows = read_rows(place)
    first = rows[0][1] if rows else None
    if is_conversation(first):
        return BfclTurns(rows, place, spec)
    if is_bfcl(first):
        rows = from_bfcl(rows, place)
    scorer = None if options.scorer == "judge" else options.scorer
    file = PromptFile(rows, spec, scorer, options.replay, options.scores_turns)
    if file.unscored:
        print(
            f"Right answers to earlier turns stand in {file.unscored} prompts and are not scored."
            " To score all turns, add --turns all."
        )
    if file.shortened:
        print(
            f"Answers of the assistant that stand in {file.shortened} prompts are not sent: each"
            " server writes its own. If they are examples, add --replay."
        )
    return file


def card_of(
    comparison: Comparison, design: Design, looks: int, further: dict[str, dict[str, Any]]
) -> Card:
    """What the test of the answers said."""
    task = comparison.task
    plan = comparison.plan
    endpoints = comparison.endpoints
    metric = task.metric if comparison.claim.is_scored else design.claim
    records = comparison.records
    joint = judged(records, {task.name: metric}, plan.budget, plan.confidence, "each", design)
    described = []
    for number, side in enumerate((endpoints.strict, endpoints.loose)):
        means = comparison.means(number)
        described.append({**side.described(), "reported": side.reported, "answers": means})
    questions = [task.question(prompt.doc) for prompt in comparison.answered]
    sampling = {
        "temperature": endpoints.temperature,
        "max_tokens": task.max_new_tokens,
        "stop": list(task.stops),
        "samples": endpoints.samples,
        "seed": endpoints.seed,
        "concurrent": endpoints.concurrent,
    }
    scope = {**task_scope(task, questions), "sampling": sampling}
    if comparison.judge:
        scope["judge"] = {**comparison.judge.described(), "without verdict": comparison.unread}
    return Card.of(
        "served-certificate",
        joint,
        design,
        records,
        baseline=described[0],
        candidate=described[1],
        looks=looks,
        scope=scope,
        refused=tuple(comparison.refused),
        **further,
    )


def claim_of(options: Options, judges: bool, calls_tools: bool = False) -> Claim:
    """The claim that is made, if it can be, where right answers are known or not, and where tools
    are called.
    """
    name = options.claim or usual_claim(options, judges, calls_tools)
    if name not in CLAIMS:
        raise UserError(f"There is no claim '{name}'. {nearest(name, CLAIMS)}")
    fault = fault_of_claim(name, options, judges, calls_tools)
    if fault is not None:
        raise UserError(fault)
    return CLAIMS[name](options.budget)


def usual_claim(options: Options, judges: bool, calls_tools: bool) -> str:
    """The claim where the user names none."""
    if options.judge or options.scorer == "judge":
        return "judge"
    if calls_tools:
        return "tools"
    return "score" if judges else "agreement"


def fault_of_claim(name: str, options: Options, judges: bool, calls_tools: bool) -> str | None:
    """Why this claim cannot be made of these prompts, and what helps."""
    if name == "score" and not judges:
        return (
            f"{options.file} has prompts without `answer`, so no score is known. Take --claim"
            " agreement."
        )
    if (name == "judge") != bool(options.judge):
        return "A claim about what a judge prefers needs one, and no other: --judge URL."
    if name == "tools" and not calls_tools:
        return f"{options.file or options.task} has no tools. Write them into each line."
    if name == "agreement" and options.temperature:
        return "Two samples differ by chance, so agreement shows nothing. Take another claim."
    if options.samples > 1 and not options.temperature:
        return "All greedy answers to a prompt are one. Add --temperature, or leave --samples out."
    return None


@dataclass(frozen=True)
class Draw:
    """The calibration documents of a look."""

    docs: Sequence[Document]
    spare: int
    """Further ones that no look has taken."""
    further: Sequence[Document] = ()
    """Those that are timed, which are in no draw."""


def documents(options: Options, task: Task, taken: set[str], need: int | None) -> Draw:
    """Calibration documents in random order, without problems of a finished run, or whose marks are
    taken.
    """
    train = task.documents("train")
    order = Random(f"{options.seed} certificates")
    places = distinct_documents(task, train, order, used_problems(task, USED))
    distinct = (train[place] for place in places)
    unused = [doc for doc in distinct if hashes_of([task.problem(doc)]) not in taken]
    if options.time >= len(unused):
        wish = "--quick" if options.quick else "--time"
        raise UserError(
            f"{wish} takes {options.time} prompts beside those of the test, and there are"
            f" {len(unused)} in all. Take further prompts, or leave {wish} out."
        )
    further = unused[len(unused) - options.time :]
    unused = unused[: len(unused) - options.time]
    n = options.prompts or (2 * need if need else len(unused))
    drawn = unused[(options.draw - 1) * n : options.draw * n]
    if not drawn:
        raise UserError(
            f"{len(unused)} unused documents are too few for draw {options.draw} of {n}. Lower"
            " --prompts."
        )
    return Draw(drawn, max(0, len(unused) - options.draw * n), further)


def connected(options: Options, spec: TaskSpec, runner: asyncio.Runner) -> BothEndpoints:
    """The strict endpoint and the loose one, unless both are one."""
    # Of requests that nobody waits for any more.
    runner.get_loop().set_exception_handler(lambda *_: None)
    keys = keys_of(options.strict, options.loose)
    sides = []
    for side, name in (("baseline", "strict"), ("candidate", "loose")):
        endpoint = Endpoint(
            Address.parse(getattr(options, name)),
            getattr(options, f"{name}_model") or "",
            side=side,
            extra=body_of(getattr(options, f"{name}_body"), spec),
            key=keys[side],
            headers=headers_of(getattr(options, f"{name}_header")),
            names=tuple(options.same_model),
        )
        sides.append(endpoint)
    endpoints = BothEndpoints(
        runner.run(with_model(sides[0])),
        runner.run(with_model(sides[1])),
        options.temperature,
        options.samples,
        options.seed,
        options.concurrent,
    )
    if endpoints.strict.identity == endpoints.loose.identity:
        raise UserError(
            "Both endpoints are the same server, model and request. Tell them apart:"
            " --baseline-body."
        )
    return endpoints


def judge_of(options: Options, spec: TaskSpec, runner: asyncio.Runner) -> Judge | None:
    """The judge, if one is named."""
    if not options.judge:
        return None
    endpoint = Endpoint(
        Address.parse(options.judge),
        options.judge_model or "",
        side="judge",
        extra=body_of(options.judge_body, replace(spec, prompting=Prompting())),
        key=keys_of(options.strict, options.loose, options.judge)["judge"],
        headers=headers_of(options.judge_header),
    )
    template = read_text(options.judge_prompt) if options.judge_prompt else PROMPT
    return Judge(runner.run(with_model(endpoint)), template)


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
    options: Options, task: Task, draw: Draw, claim: Claim, endpoints: BothEndpoints
) -> Look:
    """The look at these documents; it says nothing of what is tested, because a server may be
    changed before the next one.
    """
    name = task.name if claim.id == "score" else f"{task.name}, {claim.id}"
    if options.temperature:
        name += f" at temperature {options.temperature}"
    marks = [hash_of(list(task.question(doc).encode())) for doc in draw.docs]
    marks += [hashes_of([task.problem(doc)]) for doc in draw.docs]
    plan = options.plan()
    least = plan.needed(0.0) or 1
    remedy = (
        f"Add --draw {options.draw + 1}, which takes {min(draw.spare, len(draw.docs))} fresh"
        " prompts."
    )
    if draw.spare < least:
        remedy = (
            f"Only {draw.spare} fresh prompts are left, and a proof needs at least {least}: take"
            " further prompts, or plan several looks from the start (--looks 2)."
        )
    return Look(
        claim=(
            f"{name}, served: {endpoints.loose.described()} against {endpoints.strict.described()}"
        ),
        marks=marks,
        spent=1 - plan.confidence,
        error=1 - options.confidence,
        remedy=f"A server may have been changed since. {remedy}",
    )
