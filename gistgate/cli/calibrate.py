"""`gistgate calibrate`: certify a rule of one's own decoder, with or without a gate."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gistgate.cli import show
from gistgate.cli.options import DECODER, needing, option, typed
from gistgate.cli.promise import TASK, Promise, fields_of, plain_option, written
from gistgate.core.utils import UserError, nearest
from gistgate.models.options import DecodeOptions, parse_settings

if TYPE_CHECKING:
    from gistgate.certificates.decoder import Models
    from gistgate.certificates.outcomes import Outcomes, Scorer, TaskScore
    from gistgate.certificates.planning import Plan
    from gistgate.coverage.certificate import Certificate
    from gistgate.gate import Gate
    from gistgate.tasks.prompts import Prompt
    from gistgate.tasks.task import Task

SCRATCH = Path(".scratch/certificates")  # where decoded answers wait


@dataclass(frozen=True, kw_only=True)
class Options(Promise):
    """Those of `gistgate calibrate`."""

    task: Annotated[str, plain_option(TASK)]
    rule: Annotated[str | None, DECODER["rule"]] = None
    target: Annotated[str | None, option("Target model; default: the gate's.")] = None
    gguf: Annotated[
        str | None, option("GGUF file in the target's folder or repository.", "--gguf")
    ] = None
    draft: Annotated[str | None, DECODER["draft"]] = None
    draft_gguf: Annotated[str | None, DECODER["draft_gguf"]] = None
    quantise_draft: Annotated[str | None, DECODER["quantise_draft"]] = None
    stop_drafting: Annotated[str | None, DECODER["stop_drafting"]] = None
    draft_vocabulary: Annotated[str | None, DECODER["draft_vocabulary"]] = None
    drafter: Annotated[str | None, DECODER["drafter"]] = None
    settings: Annotated[list[str], DECODER["settings"]] = ()  # type: ignore[assignment]
    block: Annotated[int | None, DECODER["block"]] = None
    development: Annotated[int, option("Prompts that choose the settings to test.", min=1)] = 300
    score: Annotated[
        str,
        option(
            "What is compared: task (its metric), capped (answers cut at the limit), logprob or"
            " judge."
        ),
    ] = "task"
    growth: Annotated[
        float | None,
        option(
            "Largest growth of answers, as a share, to certify beside the loss; default: any.",
            min=0,
        ),
    ] = None
    judge: Annotated[str | None, option("Judge model, for --score judge.")] = None
    batch_size: Annotated[int, option("Rows decoded together.", min=1)] = 32

    @property
    def decoding(self) -> DecodeOptions:
        """The parts of the decoder, but for the file of the draft."""
        return DecodeOptions(
            draft=self.draft,
            quantise_draft=self.quantise_draft,
            draft_vocabulary=self.draft_vocabulary,
            drafter=self.drafter,
            gate=self.gate,
            rule=self.rule,
            settings=parse_settings(self.settings),
            block=self.block,
        )


def calibrate(as_json: bool, **given: Any) -> None:
    """Find the loosest setting of a rule whose loss is certified, and write certificate.json."""
    written(partial(certify, Options(**given)), show.proved, as_json)


typed(calibrate, fields_of(Options))


def certify(options: Options) -> tuple[Certificate, Path]:
    """Plan, choose, test, write; returns the certificate and its file, and refuses where nothing
    could be certified.
    """
    with needing("calibrate"):
        from gistgate.certificates.calibration import Request, task_scope
        from gistgate.certificates.calibration import calibrate as choose_and_test
        from gistgate.certificates.decoder import OwnDecoder, load_models, marks_of, method_of
        from gistgate.certificates.ledger import Look
        from gistgate.certificates.outcomes import PairwiseJudge, TaskScore
        from gistgate.core.identity import identify_model, model_scope
        from gistgate.lm_eval.task import load_task
        from gistgate.tasks.task import TASKS
    options.check()
    if not options.gate and (options.out is None or options.target is None):
        raise UserError(
            "Without --gate, say where the certificate goes (--out) and which model decodes"
            " (--target)."
        )
    decoding = options.decoding
    models = load_models(options.target, options.gguf, options.draft_gguf, decoding)
    task = load_task(options.spec(models.gate), TASKS)
    scorer = make_scorer(options, models, task)
    plan = options.plan(scorer.ternary)
    prompts = prompts_of(options, models, task, plan)
    calibration = prompts["calibration"]
    n = len(calibration)
    options.announce(plan, n)
    method = method_of(decoding, models)
    decoder = OwnDecoder(models, method, options.stop_drafting, options.batch_size)
    outcomes = decoder.outcomes(prompts, scorer, SCRATCH)
    judge_scope = {}
    if isinstance(scorer, PairwiseJudge):
        judge_scope["judge"] = model_scope(identify_model(scorer.judge.model))
    scope = {
        **decoder.scope(),
        **judge_scope,
        **task_scope(task, [prompt["ids"] for prompt in calibration], models.tokenizer),
    }
    marks = [mark for prompt in calibration for mark in marks_of(task, prompt)]
    look = Look(
        claim=(
            f"{scope['target']['fingerprint']}, {options.task}, {scorer.id}: {method.rule} with"
            f" {method.drafter}"
        ),
        marks=marks,
        spent=1 - plan.confidence,
        error=1 - options.confidence,
        remedy=f"Add --draw {options.draw + 1}, which takes fresh calibration prompts.",
    )
    request = Request((options.budget,), plan.confidence, n, plan.stop, growth=options.growth)
    ledger = options.open_ledger()
    finding = choose_and_test(method, outcomes, request, look, scope, ledger)
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
    return certificate, save(certificate, options, models.gate)


def make_scorer(options: Options, models: Models, task: Task) -> Scorer:
    """The score by name."""
    from gistgate.certificates.outcomes import Capped, LogProbability, PairwiseJudge, TaskScore
    from gistgate.models.loading import load_target

    scorers: dict[str, Callable[[], Scorer]] = {
        "task": lambda: TaskScore(task, models.tokenizer),
        "capped": Capped,
        "logprob": lambda: LogProbability(models.target),
        "judge": lambda: PairwiseJudge(load_target(str(options.judge)), models.tokenizer),
    }
    if options.score not in scorers:
        raise UserError(f"There is no score '{options.score}'. {nearest(options.score, scorers)}")
    if (options.judge is not None) != (options.score == "judge"):
        raise UserError(
            "--score judge and --judge, the model that it asks, belong together. Name both, or"
            " none."
        )
    return scorers[options.score]()


def prompts_of(options: Options, models: Models, task: Task, plan: Plan) -> dict[str, list[Prompt]]:
    """Development and calibration prompts, without what a pipeline used or judged and the gate was
    trained on.
    """
    from gistgate.certificates.decoder import maker_for, marks_of
    from gistgate.tasks.prompts import USED, fresh_prompts, used_problems

    maker = maker_for(task, models.tokenizer, [models.target, models.draft])
    taken = options.open_ledger().taken_marks(models.gate)
    used = used_problems(task, USED)
    fresh = fresh_prompts(maker, task.documents("train"), options.order(), used)
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
    mean = sum(scores) / max(1, len(scores))
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
    from gistgate.coverage.certificate import OTHERS
    from gistgate.export.write import FOLDER, write_code

    folder = options.out or Path(str(options.gate))
    path = certificate.save(folder)
    earlier = gate.certificate if gate is not None and options.out is None else None
    if earlier is not None and earlier.scope.get("task") != certificate.scope["task"]:
        earlier.save(folder / OTHERS / str(earlier.scope.get("task")))
    if (folder / FOLDER).is_dir():
        write_code(folder)
    return path
