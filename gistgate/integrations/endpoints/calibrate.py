"""What `gistgate calibrate --strict-endpoint … --loose-endpoint …` does: certify one server against another.

Nothing is known of either server but its answers, so this certifies vLLM's own lossy verification, relaxed acceptance
of other engines, quantised weights, or anything else that can be put behind an address. Only one claim is tested, so no
prompt chooses anything.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock

from gistgate.certificates.fixed_sequence import Stop, Verdicts, check_stop, fixed_sequence
from gistgate.certificates.looks import Looks, level
from gistgate.certificates.planning import check_possible, default_n, plan_sentence
from gistgate.certificates.scope import task_scope
from gistgate.certificates.served import ServedCertificate
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, write_json
from gistgate.gates.gate import Gate
from gistgate.integrations.endpoints.compared import Compared
from gistgate.integrations.endpoints.kept import KeptAnswers
from gistgate.integrations.endpoints.server import Endpoint, connect
from gistgate.integrations.lm_eval.calibrate_prompts import judged_marks, learned_by
from gistgate.integrations.lm_eval.calibrate_task import spec_of
from gistgate.integrations.lm_eval.prompting import Document
from gistgate.integrations.lm_eval.prompts import distinct_documents, hashes_of, problems_of, used_prompts
from gistgate.integrations.lm_eval.task import Task, load_task

MOST_STOPS = 4
"""Stop texts that the protocol allows."""
KEPT = Path(".scratch/endpoints.sqlite")
"""Where answers wait for a rerun."""
FINISHED = Path(".gistgate/served.json")
"""How often each comparison came to its end here: a server may be changed before the next one."""


@dataclass(frozen=True)
class Options:
    """The options of the command; its help texts say what each one means."""

    task: str
    strict_endpoint: str
    loose_endpoint: str
    strict_model: str | None = None
    loose_model: str | None = None
    strict_body: str = "{}"
    loose_body: str = "{}"
    gate: str | None = None
    budget: float = 0.02
    confidence: float = 0.95
    prompts: int | None = None
    stop: Stop = "lost"
    task_data: str | None = None
    allow_code: bool = False
    chat: bool | None = None
    system: str | None = None
    num_fewshot: int | None = None
    metric: str | None = None
    max_new_tokens: int | None = None
    concurrent: int = 8
    out: Path = Path()
    draw: int = 1
    looks: int = 1
    seed: int = 0


def certify(options: Options) -> tuple[ServedCertificate, Path]:
    """Plan, ask both servers, test, write. The file is written after a refusal, too, and says so.

    Raises:
        UserError: a server does not answer as it should, so few prompts can certify nothing, or these prompts were
            judged before: a comparison that came to its end is not repeated on its prompts.
    """
    check_options(options)
    gate = None if options.gate is None else Gate.load(options.gate)
    spec = spec_of(options, gate)
    task = load_task(spec)
    if len(task.stops) > MOST_STOPS:
        raise UserError(
            f"The task '{options.task}' has {len(task.stops)} stop texts; servers take {MOST_STOPS}. Remove some "
            "of its `until`."
        )
    docs = documents(task, options, gate)
    confidence = level(options.confidence, options.looks)
    print(plan_sentence(options.budget, confidence, len(docs), True, options.stop))
    check_possible(options.budget, confidence, len(docs), True, options.stop)
    strict = connect(options.strict_endpoint, options.strict_model, body(options.strict_body))
    loose = connect(options.loose_endpoint, options.loose_model, body(options.loose_body))
    if strict == loose:
        raise UserError(
            "Strict and loose endpoint are the same server, model and request. Name two addresses, or tell them apart "
            "by --strict-body and --loose-body."
        )
    looks = looks_of(options, task, docs, strict, loose)
    tested = [options.budget, options.stop, asdict(spec.prompting), spec.metric, spec.max_new_tokens]
    comparison = fingerprint(looks.claim, looks.hashes, tested)
    again = times_finished(comparison)
    looks.take(looks.look([*tested, again], 1 - confidence))
    kept = KeptAnswers(KEPT, f"{comparison}-{again}")
    if len(kept):
        print(
            f"{len(kept)} answers come from a run that was interrupted, and are not asked again. If a server was "
            f"changed in between, stop here and remove {KEPT}."
        )
    compared = Compared(task, docs, strict, loose, kept, options.concurrent)
    verdicts = fixed_sequence([compared.chunks()], [options.budget], confidence, options.stop)
    certificate = certificate_of(options, compared, verdicts)
    path = certificate.save(options.out)
    times_finished(comparison, more=1)
    kept.finish()
    return certificate, path


def times_finished(comparison: str, more: int = 0) -> int:
    """How often a comparison came to its end in this folder, `more` times of them right now.

    Raises:
        UserError: the file is damaged.
    """
    FINISHED.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(FINISHED.with_name(f".{FINISHED.name}.lock")):
        counts = read_json(FINISHED) if FINISHED.exists() else {}
        if not isinstance(counts, dict) or not all(isinstance(one, int) for one in counts.values()):
            raise UserError(f"{FINISHED} does not count comparisons. Remove it, and take fresh prompts with --draw.")
        times: int = counts.get(comparison, 0) + more
        if more:
            write_json(FINISHED, {**counts, comparison: times})
    return times


def looks_of(options: Options, task: Task, docs: list[Document], strict: Endpoint, loose: Endpoint) -> Looks:
    """What the ledger is told: which claim is about to be tested on which prompts."""
    return Looks(
        claim=f"{options.task}, served: {loose.described()} against {strict.described()}",
        prompts=[list(task.question(doc).encode()) for doc in docs],
        problems=[hashes_of([task.problem(doc)]) for doc in docs],
        error=1 - options.confidence,
        remedy=f"A server may have been changed since. Add --draw {options.draw + 1}, which takes fresh calibration "
        "prompts.",
    )


def certificate_of(options: Options, compared: Compared, verdicts: Verdicts) -> ServedCertificate:
    """What the answers proved."""
    bound, refusal = verdicts.bound(options.budget), verdicts.refusal(options.budget)
    strict, loose = compared.lengths()
    return ServedCertificate(
        strict=compared.strict.described(),
        loose=compared.loose.described(),
        scope=task_scope(compared.task, [compared.task.question(doc) for doc in compared.docs]),
        budget=options.budget,
        confidence=bound.confidence,
        n=bound.n,
        losses=bound.losses,
        gains=bound.gains,
        differing=compared.differing,
        loss=bound.mean,
        bound=bound.value,
        bound_kind=bound.kind,
        certified=refusal is None,
        strict_answers=strict,
        loose_answers=loose,
        refusal=refusal,
        made=datetime.now(UTC).date().isoformat(),
    )


def documents(task: Task, options: Options, gate: Gate | None) -> list[Document]:
    """Calibration documents in random order, without problems that a finished run used, a ledger knows from a pipeline
    or the gate behind the loose server was trained on.

    Raises:
        UserError: none is left.
    """
    train = task.documents("train")
    order = random.Random(f"{options.seed} certificates")
    seen = problems_of(task, used_prompts())
    known = judged_marks() | set(learned_by(gate).split())
    unused = (train[index] for index in distinct_documents(task, train, order, seen))
    found = [doc for doc in unused if hashes_of([task.problem(doc)]) not in known]
    confidence = level(options.confidence, options.looks)
    n = options.prompts or default_n(options.budget, confidence, True, len(found), options.stop)
    drawn = found[(options.draw - 1) * n : options.draw * n]
    if not drawn:
        raise UserError(
            f"The task '{options.task}' has {len(found)} unused training documents, which is too few for draw "
            f"{options.draw} of {n} prompts. Lower --prompts or --draw, or take a larger task."
        )
    return drawn


def body(text: str) -> dict[str, object]:
    """Further entries of a request.

    Raises:
        UserError: the text is no JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"'{text}' is no JSON ({error}). Write an object such as {{\"top_k\": 1}}.") from error
    if not isinstance(value, dict):
        raise UserError(f"'{text}' is no JSON object. Write one such as {{\"top_k\": 1}}.")
    return value


def check_options(options: Options) -> None:
    """Refuse a claim that nobody can certify.

    Raises:
        UserError: budget, confidence or way to stop are none.
    """
    if not (0 < options.budget < 1 and 0.5 <= options.confidence < 1):
        raise UserError(
            f"A budget of {options.budget:g} at confidence {options.confidence:g} cannot be certified. "
            "The budget lies in (0, 1), the confidence in [0.5, 1)."
        )
    check_stop(options.stop)
