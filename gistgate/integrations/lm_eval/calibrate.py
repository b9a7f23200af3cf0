"""What `gistgate calibrate` does: any rule with a knob, any lm-eval task, any pair of models, one budget, one proof.

The stages of the pipeline use the same engine, `gistgate.certificates.calibration`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import gistgate
from gistgate.build.choose import BLOCK, GATED, STRICT
from gistgate.build.drafters import CORPUS, STORED, Sources, asks_draft, make_drafter
from gistgate.build.models import load_target, parse_settings
from gistgate.certificates.calibration import Method, Request, calibrate
from gistgate.certificates.certificate import Proof
from gistgate.certificates.looks import Looks, level
from gistgate.certificates.outcomes import Answer, Decode, Outcomes, cached
from gistgate.certificates.planning import check_possible, plan_sentence
from gistgate.certificates.scope import decoding_scope, task_scope
from gistgate.certificates.scores import Capped, LogProbability, PairwiseJudge, Scorer, TaskScore
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.prompt_cache import Prefilled
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.files import fingerprint
from gistgate.forward.context import num_ids
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, model_scope
from gistgate.integrations.lm_eval.calibrate_models import Models, load_models
from gistgate.integrations.lm_eval.calibrate_options import Options
from gistgate.integrations.lm_eval.calibrate_prompts import prompts_of
from gistgate.integrations.lm_eval.calibrate_task import spec_of
from gistgate.integrations.lm_eval.decoding import decode_prompts
from gistgate.integrations.lm_eval.prompts import Prompt, hashes_of
from gistgate.integrations.lm_eval.task import Task, load_task
from gistgate.integrations.transformers.flatten import FOLDER, write_code
from gistgate.rules import RULES, make_rule, meant, nearest

MEMORY_MB = 1000
"""Room for prompts that are read once and decoded at many settings, in megabytes."""
SCRATCH = Path(".scratch/certificates")
"""Where decoded answers wait, so that an interruption loses one chunk at most."""
SCORES = ["task", "capped", "logprob", "judge"]


def certify(options: Options) -> tuple[Proof, Path]:
    """Plan, choose, test, write; returns the proof and its file.

    Raises:
        UserError: parts that do not fit together, or nothing could be certified.
    """
    models = load_models(options)
    task = load_task(spec_of(options, models.gate))
    scorer = make_scorer(options, models, task)
    prompts = prompts_of(options, models, task, scorer.ternary)
    n = len(prompts["calibration"])
    confidence = level(options.confidence, options.looks)
    print(plan_sentence(options.budget, confidence, n, scorer.ternary, options.stop))
    check_possible(options.budget, confidence, n, scorer.ternary, options.stop)
    method = method_of(options, models)
    request = Request((options.budget,), confidence, n, options.stop)
    outcomes = outcomes_of(options, models, method, prompts, scorer)
    calibration = [prompt["ids"] for prompt in prompts["calibration"]]
    draft = models.draft if asks_draft(method.drafter) else None
    scope = {
        **scope_with(draft, options, models, method),
        **({"judge": model_scope(identify_model(scorer.judge))} if isinstance(scorer, PairwiseJudge) else {}),
        **task_scope(task, calibration, models.tokenizer),
    }
    looks = Looks(
        claim=f"{scope['target']['fingerprint']}, {options.task}, {scorer.id}: {method.rule} with {method.drafter}",
        prompts=calibration,
        error=1 - options.confidence,
        code=fingerprint(Path(gistgate.__file__).parent / "certificates"),
        remedy=f"Add --draw {options.draw + 1}, which takes fresh calibration prompts.",
        problems=hashes_of(task.problem(prompt["doc"]) for prompt in prompts["calibration"]).split(),
    )
    finding = calibrate(method, outcomes, request, looks.before(method, request, scorer.ternary, scope))
    if (refusal := finding.verdicts.refusal(options.budget)) is not None:
        raise UserError(refusal)
    if isinstance(scorer, TaskScore):
        warn_of_little_to_lose(options.budget, solved(scorer, outcomes, "development"))
    source = f"training documents of the task '{options.task}' and prompts like these"
    proof = finding.proof(scorer.id, scope, source, made=datetime.now(UTC).date().isoformat())
    path = proof.save(options.folder)
    if (options.folder / FOLDER).is_dir():  # the code for plain transformers has to hold what is certified now
        write_code(options.folder)
    return proof, path


def solved(scorer: TaskScore, outcomes: Outcomes, split: str) -> float:
    """Mean score of the strict answers to a split."""
    prompts = outcomes.prompts[split]
    scores = [scorer.score(prompt, ids) for prompt, ids in zip(prompts, outcomes.strict(prompts, 0), strict=True)]
    return sum(scores) / max(1, len(scores))


def warn_of_little_to_lose(budget: float, score: float) -> None:
    """Say that a certificate promises nothing where losing every right answer would keep its budget."""
    if score <= budget:
        warnings.warn(
            f"Strict decoding scores {100 * score:.1f} % on the development prompts, and the budget is "
            f"{100 * budget:g} points, so that this certificate promises nothing. Take an easier task, or a smaller "
            "budget.",
            stacklevel=2,
        )


def make_scorer(options: Options, models: Models, task: Task) -> Scorer:
    """The score by name.

    Raises:
        UserError: there is none of that name, or it lacks its model.
    """
    if options.judge is not None and options.score != "judge":
        raise UserError("--judge names a model that only --score judge asks. Add that, or leave --judge out.")
    if options.score == "task":
        return TaskScore(task, models.tokenizer)
    if options.score == "capped":
        return Capped()
    if options.score == "logprob":
        return LogProbability(models.target)
    if options.score != "judge":
        raise UserError(f"There is no score '{options.score}'. {nearest(options.score, SCORES)}")
    if options.judge is None:
        raise UserError("The score 'judge' needs a model. Name one with --judge.")
    judge = load_target(options.judge)
    return PairwiseJudge(judge.model, judge.tokenizer, models.tokenizer)


def method_of(options: Options, models: Models) -> Method:
    """The rule with its own grid; settings that are given stay fixed.

    Raises:
        UserError: no such rule, or it has no knob.
    """
    name = options.rule or (GATED if options.gate else STRICT)
    rule_id, preset = meant(name)
    rule = RULES[rule_id]
    if rule.knob is None or not rule.grid:
        raise UserError(f"The rule '{name}' has no knob to calibrate. Choose another, such as prob-ratio or fly.")
    said = parse_settings(options.settings)
    if rule.knob in said:
        raise UserError(f"Calibration chooses {rule.knob} itself. Leave --set {rule.knob} away.")
    fixed = {name: value for name, value in {**preset, **said}.items() if name != rule.knob}
    proof = models.gate.proof if models.gate is not None else None
    return Method(
        rule=rule_id,
        drafter=options.drafter or usual_drafter(proof, models.draft),
        block=options.block if options.block is not None else (proof.block if proof else BLOCK),
        knob=rule.knob,
        grid=tuple(rule.grid),
        fixed=fixed,
        variants=({},) if fixed else tuple(rule.variants),
    )


def usual_drafter(proof: Proof | None, draft: PreTrainedModel | None) -> str:
    """The drafter that the gate's certificate names; where it would ask a draft model that is not there, `lookup`."""
    certified = proof.drafter if proof is not None else "model"
    return "lookup" if draft is None and asks_draft(certified) else certified


def drafter_of(options: Options, models: Models, method: Method) -> Drafter | None:
    """A fresh drafter of the method."""
    if method.drafter == CORPUS or method.drafter in STORED:
        raise UserError(
            f"The drafter '{method.drafter}' reads data that this command does not take. Certify it by the pipeline "
            "(docs/retrieval.md), or choose another drafter."
        )
    sources = Sources(models.target, models.tokenizer, models.draft, stopping=options.stop_drafting)
    return make_drafter(method.drafter, sources)


def scope_with(draft: PreTrainedModel | None, options: Options, models: Models, method: Method) -> dict[str, Any]:
    """What decodes; `draft` is the draft model or None where the drafter does not ask it."""
    drafter = drafter_of(options, models, method)
    drafting = None if drafter is None else drafter.binding
    parts = (models.target, draft, models.tokenizer, models.gate)
    return decoding_scope(method, *parts, options.batch_size, drafting=drafting)


def outcomes_of(
    options: Options, models: Models, method: Method, prompts: dict[str, list[Prompt]], scorer: Scorer
) -> Outcomes:
    """The method and strict decoding on these prompts, both with the method's drafter and K."""
    memory = Prefilled(MEMORY_MB)
    shared = scope_with(models.draft, options, models, method)
    machine = (str(models.target.device), torch.__version__)  # an interrupted start goes on where rounding is the same
    depends = (shared, *machine, Path(gistgate.__file__).parent)

    def reader(rule: str, gate: Gate | None) -> Decode:
        def decode(settings: dict[str, Any], asked: Sequence[Prompt], start: int) -> list[Answer]:
            drafter, made = drafter_of(options, models, method), make_rule(rule, **settings)
            parts = {"gate": gate, "tokenizer": models.tokenizer, "vocabulary": num_ids(models.tokenizer)}
            decoder = Decoder(models.target, drafter, made, method.block, **parts)
            return decode_prompts(decoder, asked, range(start, start + len(asked)), options.batch_size, memory)

        return cached(decode, SCRATCH, rule, *depends)

    strict, loose = reader("exact", None), reader(method.rule, models.gate)
    return Outcomes(prompts, scorer, lambda asked, start: [one.ids for one in strict({}, asked, start)], loose)
