"""What `gistgate calibrate` does: it plans, chooses settings, tests them and writes."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from gistgate.build import Builder
from gistgate.certificates.calibration import Request, calibrate, task_scope
from gistgate.certificates.decoder import OwnDecoder, load_parts, maker_for, marks_of, method_of
from gistgate.certificates.ledger import Ledger, Look
from gistgate.certificates.outcomes import (
    READ_TOGETHER,
    Capped,
    LogProbability,
    Outcomes,
    PairwiseJudge,
    Scorer,
    TaskScore,
)
from gistgate.certificates.planning import Plan
from gistgate.cli.calibrate import Options
from gistgate.core.identity import identify_model, model_scope
from gistgate.core.utils import UserError, nearest
from gistgate.coverage.certificate import OTHERS, Certificate
from gistgate.export.write import FOLDER, write_code
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_named
from gistgate.models.loading import load_target
from gistgate.tasks.prompts import USED, Prompt, fresh_prompts, used_problems
from gistgate.tasks.task import Task

SCRATCH = Path(".scratch/certificates")  # where decoded answers wait


def certify(options: Options) -> tuple[Certificate, Path]:
    """Plan, choose, test, write; returns the certificate and its file, and refuses where nothing
    could be certified.
    """
    plan = options.plan()
    if not options.gate and (options.out is None or options.target is None):
        raise UserError(
            "Without --gate, say where the certificate goes (--out) and which model decodes"
            " (--target)."
        )
    parts = load_parts(options.target, options.gguf, options.quantise, options.decoding)
    task = load_named(options.spec(parts.gate))
    scorer = make_scorer(options, parts, task)
    plan = replace(plan, ternary=scorer.ternary)
    ledger = Ledger(options.ledger)
    prompts = prompts_of(options, parts, task, plan, ledger.taken_marks(parts.gate))
    calibration = prompts["calibration"]
    n = len(calibration)
    print(plan.sentence(n, planned=options.prompts))
    plan.check(n)
    method = method_of(parts)
    decoder = OwnDecoder(parts, method, options.batch_size)
    reader = None if options.fluency is None else LogProbability(parts.target, READ_TOGETHER)
    outcomes = decoder.outcomes(prompts, scorer, SCRATCH, reader)
    scope = decoder.scope()
    scope |= task_scope(task, [prompt["ids"] for prompt in calibration], parts.tokenizer)
    if isinstance(scorer, PairwiseJudge):
        scope["judge"] = model_scope(identify_model(scorer.judge.model))
    look = Look(
        claim=(
            f"{scope['target']['fingerprint']}, {options.task}, {scorer.id}: {method.rule} with"
            f" {method.drafter}"
        ),
        marks=[mark for prompt in calibration for mark in marks_of(task, prompt)],
        spent=1 - plan.confidence,
        error=1 - options.confidence,
        remedy=f"Add --draw {options.draw + 1}, which takes fresh calibration prompts.",
    )
    request = Request(
        (options.budget,),
        plan.confidence,
        n,
        plan.stop,
        growth=options.growth,
        fluency=options.fluency,
    )
    finding = calibrate(method, outcomes, request, look, scope, ledger)
    refusal = finding.verdicts.refusal(options.budget)
    if refusal is not None:
        raise UserError(refusal)
    if isinstance(scorer, TaskScore):
        warn_of_little_to_lose(options.budget, scorer, outcomes)
    certificate = finding.certificate(
        scorer.id,
        scope,
        source=f"training documents of the task '{options.task}' and prompts like these",
        made=datetime.now(UTC).date().isoformat(),
    )
    return certificate, save(certificate, options, parts.gate)


def make_scorer(options: Options, parts: Builder, task: Task) -> Scorer:
    """The score by name."""
    scorers: dict[str, Callable[[], Scorer]] = {
        "task": lambda: TaskScore(task, parts.tokenizer),
        "capped": Capped,
        "logprob": lambda: LogProbability(parts.target),
        "judge": lambda: PairwiseJudge(load_target(str(options.judge)), parts.tokenizer),
    }
    if options.score not in scorers:
        raise UserError(f"There is no score '{options.score}'. {nearest(options.score, scorers)}")
    if (options.judge is not None) != (options.score == "judge"):
        raise UserError(
            "--score judge and --judge, the model that it asks, belong together. Name both, or"
            " none."
        )
    return scorers[options.score]()


def prompts_of(
    options: Options, parts: Builder, task: Task, plan: Plan, taken: set[str]
) -> dict[str, list[Prompt]]:
    """Development and calibration prompts, without those of a finished run and those whose marks
    are taken.
    """
    maker = maker_for(task, parts.tokenizer, [parts.target, parts.draft])
    order = Random(f"{options.seed} certificates")
    fresh = fresh_prompts(maker, task.documents("train"), order, used_problems(task, USED))
    unused = [prompt for prompt in fresh if taken.isdisjoint(marks_of(task, prompt))]
    remaining = unused[options.development :]
    n = min(len(remaining), options.prompts or plan.usual_n(len(remaining)))
    calibration = remaining[(options.draw - 1) * n : options.draw * n]
    if not n or len(calibration) < n:
        raise UserError(
            f"'{options.task}' has {len(unused)} unused training documents, of which"
            f" {options.development} choose settings and {len(calibration)} are left for draw"
            f" {options.draw} of {n} calibration prompts. Lower --development, --prompts or --draw,"
            " or take a task with more documents."
        )
    return {"development": unused[: options.development], "calibration": calibration}


def warn_of_little_to_lose(budget: float, scorer: TaskScore, outcomes: Outcomes) -> None:
    """Say that a certificate promises nothing where losing every right answer would keep its
    budget.
    """
    prompts = outcomes.prompts["development"]
    answers = outcomes.strict(prompts, 0)
    scores = [scorer.score(prompt, ids) for prompt, ids in zip(prompts, answers, strict=True)]
    mean = sum(scores) / len(scores)
    if mean <= budget:
        warnings.warn(
            f"Strict decoding scores {100 * mean:.1f} % on the development prompts, within the"
            f" budget of {100 * budget:g} points, so this certificate promises nothing. Take an"
            " easier task or a smaller budget.",
            stacklevel=2,
        )


def save(certificate: Certificate, options: Options, gate: Gate | None) -> Path:
    """Write the certificate to its folder; one that the gate has for another task goes on holding,
    and the code for plain transformers is written anew.
    """
    folder = options.out or Path(str(options.gate))
    path = certificate.save(folder)
    if gate is not None and gate.certificate is not None and options.out is None:
        task = gate.certificate.scope.get("task")
        if task != certificate.scope["task"]:
            gate.certificate.save(folder / OTHERS / str(task))
    if (folder / FOLDER).is_dir():
        write_code(folder)
    return path
