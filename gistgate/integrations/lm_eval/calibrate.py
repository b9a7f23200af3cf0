"""What `gistgate calibrate` does: any rule with a knob, any lm-eval task, any pair of models, one budget, one proof.

The stages of the pipeline use the same engine, `gistgate.certificates.calibration`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

import gistgate
from gistgate.build.choose import BLOCK, GATED, STRICT
from gistgate.build.drafters import Sources, asks_draft, make_drafter
from gistgate.build.models import load_draft, load_target, parse_settings
from gistgate.certificates.calibration import Method, Request, calibrate
from gistgate.certificates.certificate import Proof
from gistgate.certificates.fixed_sequence import Stop, check_stop
from gistgate.certificates.ledger import Ledger, hash_of
from gistgate.certificates.looks import LOCAL, PUBLISHED, Looks, level
from gistgate.certificates.outcomes import Answer, Decode, Outcomes, cached
from gistgate.certificates.planning import check_possible, default_n, plan_sentence
from gistgate.certificates.scope import decoding_scope, task_scope
from gistgate.certificates.scores import Capped, LogProbability, PairwiseJudge, Scorer, TaskScore
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.prompt_cache import Prefilled
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.files import fingerprint
from gistgate.gates.gate import Gate
from gistgate.identity import ModelIdentity, identify_model, model_scope
from gistgate.integrations.lm_eval.decoding import decode_prompts
from gistgate.integrations.lm_eval.prompting import Prompting
from gistgate.integrations.lm_eval.prompts import Prompt, PromptMaker, unused_prompts, used_prompts
from gistgate.integrations.lm_eval.task import Task, TaskSpec, load_task
from gistgate.rules import PRESETS, RULES, make_rule, nearest
from gistgate.typed import dataclass_from

LONGEST = 2048
"""Context assumed where a model does not say its own, in tokens."""
MEMORY_MB = 1000
"""Room for prompts that are read once and decoded at many settings, in megabytes."""
SCRATCH = Path(".scratch/certificates")
"""Where decoded answers wait, so that an interruption loses one chunk at most."""
SCORES = ["task", "capped", "logprob", "judge"]


@dataclass(frozen=True)
class Options:
    """The options of the command; its help texts say what each one means."""

    task: str
    budget: float = 0.02
    confidence: float = 0.95
    gate: str | None = None
    rule: str | None = None
    target: str | None = None
    draft: str | None = None
    quantise_draft: str | None = None
    stop_drafting: str | None = None
    draft_vocabulary: str | None = None
    drafter: str | None = None
    settings: Sequence[str] = ()
    block: int | None = None
    prompts: int | None = None
    development: int = 300
    stop: Stop = "lost"
    score: str = "task"
    judge: str | None = None
    task_data: str | None = None
    allow_code: bool = False
    out: Path | None = None
    batch_size: int = 32
    seed: int = 0
    draw: int = 1
    looks: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.budget < 1 and 0.5 <= self.confidence < 1):
            raise UserError(
                f"A budget of {self.budget:g} at confidence {self.confidence:g} cannot be certified. "
                "The budget lies in (0, 1), the confidence in [0.5, 1)."
            )
        check_stop(self.stop)
        if self.gate is None and (self.out is None or self.target is None):
            raise UserError(
                "Without --gate, say where the certificate goes (--out) and which model decodes (--target)."
            )

    @property
    def folder(self) -> Path:
        """Where the certificate goes."""
        return self.out or Path(self.gate or ".")


@dataclass(frozen=True)
class Models:
    """What decodes."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    gate: Gate | None


def certify(options: Options) -> tuple[Proof, Path]:
    """Plan, choose, test, write; returns the proof and its file.

    Raises:
        UserError: parts that do not fit together, or nothing could be certified.
    """
    models = load_models(options)
    task = task_of(options, models.gate)
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
        **task_scope(task, calibration),
    }
    looks = Looks(
        claim=f"{scope['target']['fingerprint']}, {options.task}, {scorer.id}: {method.rule} with {method.drafter}",
        prompts=calibration,
        error=1 - options.confidence,
        code=fingerprint(Path(gistgate.__file__).parent / "certificates"),
        remedy=f"Add --draw {options.draw + 1}, which takes fresh calibration prompts.",
    )
    finding = calibrate(method, outcomes, request, looks.before(method, request, scorer.ternary, scope))
    if (refusal := finding.verdicts.refusal(options.budget)) is not None:
        raise UserError(refusal)
    source = f"training documents of the task '{options.task}' and prompts like these"
    proof = finding.proof(scorer.id, scope, source, made=datetime.now(UTC).date().isoformat())
    return proof, proof.save(options.folder)


def load_models(options: Options) -> Models:
    """The models that are named, else those that the gate was trained for; the draft is as light as the gate's.

    Raises:
        UserError: a model cannot be loaded, or the gate was trained for another one.
    """
    config = Gate.load(options.gate).config if options.gate else None
    name, dtype = (config.target.name, config.target.dtype) if config else ("", "auto")
    target = load_target(options.target or name, dtype)
    draft_name = options.draft or (config.draft.name if config and config.draft else None)
    lighter = lighter_as_trained(options, config.draft if config else None)
    draft = load_draft(draft_name, target.model, target.tokenizer, **lighter) if draft_name else None
    for model in (target.model, draft):
        if model is not None:
            model.requires_grad_(False)
    target.tokenizer.padding_side = "left"
    gate = Gate.load(options.gate, target.model, draft, target.tokenizer, True) if options.gate else None
    return Models(target.model, draft, target.tokenizer, gate)


def lighter_as_trained(options: Options, trained: ModelIdentity | None) -> dict[str, Any]:
    """How the draft is made lighter: as the user says, else as the draft was that the gate was trained with.

    Raises:
        UserError: that draft had a vocabulary of its own, of which a gate keeps no more than a hash.
    """
    if trained is not None and trained.draft_vocabulary and options.draft_vocabulary is None:
        raise UserError(
            "The gate was trained with a draft that proposes a part of the vocabulary. Name the file of that part with "
            "--draft-vocabulary."
        )
    bits = trained.quantisation if trained is not None else None
    return {"quantised": options.quantise_draft or bits, "vocabulary": options.draft_vocabulary}


def task_of(options: Options, gate: Gate | None) -> Task:
    """The task; a gate decides how its prompts are built."""
    try:
        prompting = dataclass_from(Prompting, gate.config.prompting) if gate is not None else Prompting()
    except ValueError as error:
        raise UserError(f"The gate's config.json has no valid prompting: {error}. Train the gate again.") from error
    return load_task(TaskSpec(options.task, data=options.task_data, prompting=prompting, allow_code=options.allow_code))


def make_scorer(options: Options, models: Models, task: Task) -> Scorer:
    """The score by name.

    Raises:
        UserError: there is none of that name, or it lacks its model.
    """
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


def prompts_of(options: Options, models: Models, task: Task, ternary: bool) -> dict[str, list[Prompt]]:
    """Development and calibration prompts, without problems of a finished run in data/prompts.

    Prompts that the ledgers know from a pipeline are left out as well: its earlier draws are training documents, too.

    Raises:
        UserError: nothing is left for calibration.
    """
    config = models.target.config.get_text_config()
    maker = PromptMaker(task, models.tokenizer, getattr(config, "max_position_embeddings", None) or LONGEST)
    docs = task.documents("train")
    unused, judged = unused_prompts(maker, docs, len(docs), options.seed, used_prompts()), judged_prompts()
    found = [prompt for prompt in unused if hash_of(prompt["ids"]) not in judged]
    available = len(found) - options.development
    if available < 1:
        raise UserError(
            f"The task '{options.task}' has {len(found)} unused training documents, of which {options.development} "
            "choose settings and none is left to calibrate. Lower --development or take a larger task."
        )
    planned = default_n(options.budget, options.confidence, ternary, available, options.stop)
    n = min(available, options.prompts or planned)
    calibration = found[options.development :][(options.draw - 1) * n : options.draw * n]
    if len(calibration) < n:
        raise UserError(
            f"Draw {options.draw} needs {n} calibration prompts that no earlier draw has, but '{options.task}' has "
            f"only {len(calibration)} left. Lower --prompts, or take a task with more documents."
        )
    return {"development": found[: options.development], "calibration": calibration}


def judged_prompts() -> set[str]:
    """Hashes of the prompts that stages of a pipeline judged; unlike commands, they record what led to their choice.

    Raises:
        UserError: a ledger was edited.
    """
    ledgers = [Ledger.read(path) for path in (LOCAL, PUBLISHED)]
    return {mark for ledger in ledgers for look in ledger.looks if look.choice for mark in ledger.draws[look.prompts]}


def method_of(options: Options, models: Models) -> Method:
    """The rule with its own grid; settings that are given stay fixed.

    Raises:
        UserError: no such rule, or it has no knob.
    """
    name = options.rule or (GATED if options.gate else STRICT)
    rule_id, preset = PRESETS.get(name, (name, {}))
    if rule_id not in RULES:
        raise UserError(f"There is no rule '{name}'. {nearest(name, [*RULES, *PRESETS])}")
    rule = RULES[rule_id]
    if rule.knob is None or not rule.grid:
        raise UserError(f"The rule '{name}' has no knob to calibrate. Choose another, such as prob-ratio or fly.")
    fixed = {**preset, **parse_settings(options.settings)}
    fixed.pop(rule.knob, None)
    proof = models.gate.proof if models.gate is not None else None
    return Method(
        rule=rule_id,
        drafter=options.drafter or ("lookup" if models.draft is None else "model"),
        block=options.block if options.block is not None else (proof.block if proof else BLOCK),
        knob=rule.knob,
        grid=tuple(rule.grid),
        fixed=fixed,
        variants=({},) if fixed else tuple(rule.variants),
    )


def drafter_of(options: Options, models: Models, method: Method) -> Drafter | None:
    """A fresh drafter of the method."""
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
    depends = (shared, Path(gistgate.__file__).parent)

    def reader(rule: str, gate: Gate | None) -> Decode:
        def decode(settings: dict[str, Any], asked: Sequence[Prompt], start: int) -> list[Answer]:
            drafter, made = drafter_of(options, models, method), make_rule(rule, **settings)
            parts = {"gate": gate, "tokenizer": models.tokenizer, "vocabulary": len(models.tokenizer)}
            decoder = Decoder(models.target, drafter, made, method.block, **parts)
            return decode_prompts(decoder, asked, range(start, start + len(asked)), options.batch_size, memory)

        return cached(decode, SCRATCH, rule, *depends)

    strict, loose = reader("exact", None), reader(method.rule, models.gate)
    return Outcomes(prompts, scorer, lambda asked, start: [one.ids for one in strict({}, asked, start)], loose)
