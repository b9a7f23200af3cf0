"""What `gistgate calibrate` does: any rule with a knob, any lm-eval task, any pair of models, one
budget.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import gistgate
from gistgate.build import assemble
from gistgate.certificates.calibration import Method, Request, calibrate, decoding_scope, task_scope
from gistgate.certificates.fixed_sequence import Stop
from gistgate.certificates.ledger import Ledger, Look, hash_of, level
from gistgate.certificates.outcomes import (
    Answer,
    Capped,
    Decode,
    LogProbability,
    Outcomes,
    PairwiseJudge,
    Scorer,
    TaskScore,
    cached,
)
from gistgate.certificates.planning import check_possible, default_n, plan_sentence
from gistgate.core.batches import PromptCache
from gistgate.core.drafter import Drafter
from gistgate.core.identity import identify_model, model_scope
from gistgate.core.reader import context_of
from gistgate.core.utils import UserError, nearest
from gistgate.coverage.certificate import OTHERS, Certificate
from gistgate.coverage.choose import BLOCK, GATED, STRICT, Choice
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_task
from gistgate.models.loading import load_draft, load_target
from gistgate.models.options import parse_settings, parse_template
from gistgate.models.sources import CORPUS, STORED, Sources, asks_draft, make_drafter
from gistgate.rules import RULES, meant
from gistgate.tasks.prompts import (
    Prompt,
    PromptMaker,
    decode_prompts,
    fresh_prompts,
    hashes_of,
    used_problems,
)
from gistgate.tasks.task import TASKS, Prompting, Task, TaskSpec

if TYPE_CHECKING:
    from gistgate.cli.calibrate import Options, Promise

LONGEST = 2048  # context assumed where a model does not say its own, in tokens
MEMORY_MB = 1000  # room for prompts that are read once and decoded at many settings
SCRATCH = Path(
    ".scratch/certificates"
)  # where decoded answers wait, so that an interruption loses one chunk at most


def certify(options: Options) -> tuple[Certificate, Path]:
    """Plan, choose, test, write; returns the certificate and its file, and refuses where nothing
    could be certified.
    """
    check_options(options)
    if not options.gate and (options.out is None or options.target is None):
        raise UserError(
            "Without --gate, say where the certificate goes (--out) and which model decodes"
            " (--target)."
        )
    models = load_models(options)
    task = load_task(spec_of(options, models.gate), TASKS)
    scorer = make_scorer(options, models, task)
    prompts = prompts_of(options, models, task, scorer.ternary)
    calibration = [prompt["ids"] for prompt in prompts["calibration"]]
    confidence = planned(options, len(calibration), scorer.ternary)
    method = method_of(options, models)
    outcomes = outcomes_of(options, models, method, prompts, scorer)
    draft = models.draft if asks_draft(method.drafter) else None
    scope = {
        **scope_with(draft, options, models, method),
        **(
            {"judge": model_scope(identify_model(scorer.judge.model))}
            if isinstance(scorer, PairwiseJudge)
            else {}
        ),
        **task_scope(task, calibration, models.tokenizer),
    }
    look = Look(
        claim=(
            f"{scope['target']['fingerprint']}, {options.task}, {scorer.id}: {method.rule} with"
            f" {method.drafter}"
        ),
        marks=[mark for prompt in prompts["calibration"] for mark in marks_of(task, prompt)],
        spent=1 - confidence,
        error=1 - options.confidence,
        remedy=f"Add --draw {options.draw + 1}, which takes fresh calibration prompts.",
    )
    request = Request(
        (options.budget,), confidence, len(calibration), options.stop, growth=options.growth
    )  # type: ignore[arg-type]
    finding = calibrate(method, outcomes, request, look, scope, Ledger())
    if (refusal := finding.verdicts.refusal(options.budget)) is not None:
        raise UserError(refusal)
    if isinstance(scorer, TaskScore):
        warn_of_little_to_lose(options.budget, scorer, outcomes)
    source = f"training documents of the task '{options.task}' and prompts like these"
    today = datetime.now(UTC).date()
    certificate = finding.certificate(scorer.id, scope, source, made=today.isoformat())
    from gistgate.export.write import FOLDER, write_code

    path = certificate.save(folder := options.out or Path(options.gate or "."))
    earlier = models.gate.certificate if models.gate is not None and options.out is None else None
    if earlier is not None and earlier.scope.get("task") != scope["task"]:
        earlier.save(
            folder / OTHERS / str(earlier.scope.get("task"))
        )  # that of another task goes on holding
    if (
        folder / FOLDER
    ).is_dir():  # the code for plain transformers has to hold what is certified now
        write_code(folder)
    return certificate, path


def check_options(options: Promise) -> None:
    """Refuse a claim that nobody can certify."""
    if not (0 < options.budget < 1 and 0.5 <= options.confidence < 1):
        raise UserError(
            "A budget outside (0, 1) or a confidence outside [0.5, 1) cannot be certified. Correct"
            " that."
        )
    level(options.confidence, options.looks)  # refuses what no number of prompts can reach
    if options.stop not in get_args(Stop):
        raise UserError(
            f"There is no way to stop called '{options.stop}'. Use one of:"
            f" {', '.join(get_args(Stop))}."
        )


def planned(options: Promise, n: int, ternary: bool, lost: float = 0.0) -> float:
    """Say what n prompts can certify, or refuse; returns the confidence of one look."""
    confidence = level(options.confidence, options.looks)
    print(
        plan_sentence(options.budget, confidence, n, ternary, options.stop, lost, options.prompts)
    )
    check_possible(options.budget, confidence, n, ternary, options.stop)
    return confidence


def warn_of_little_to_lose(budget: float, scorer: TaskScore, outcomes: Outcomes) -> None:
    """Say that a certificate promises nothing where losing every right answer would keep its
    budget.
    """
    prompts = outcomes.prompts["development"]
    scores = [
        scorer.score(prompt, ids)
        for prompt, ids in zip(prompts, outcomes.strict(prompts, 0), strict=True)
    ]
    if (score := sum(scores) / max(1, len(scores))) <= budget:
        warnings.warn(
            f"Strict decoding scores {100 * score:.1f} % on the development prompts, within the"
            f" budget of {100 * budget:g} points, so this certificate promises nothing. Take an"
            " easier task or a smaller budget.",
            stacklevel=2,
        )


@dataclass(frozen=True)
class Models:
    """What decodes: the models that are named, else those that the gate was trained for."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    gate: Gate | None


def load_models(options: Options) -> Models:
    """The models; the draft is as light as the gate's."""
    config = Gate.load(options.gate).config if options.gate else None
    name, dtype = (config.target.name, config.target.dtype) if config else ("", "auto")
    trained = config.draft if config else None
    draft_name = options.draft or (trained.name if trained else None)
    lighter = options.quantise_draft not in (None, "none") or options.draft_vocabulary
    if draft_name is None and (lighter or options.draft_gguf is not None):
        raise UserError(
            "--quantise-draft, --draft-vocabulary, --draft-gguf: no draft is named. Add --draft."
        )
    if trained and trained.draft_vocabulary and options.draft_vocabulary is None:
        raise UserError(
            "The gate's draft proposes a part of the vocabulary. Name its file with"
            " --draft-vocabulary."
        )
    bits = options.quantise_draft or (trained.quantisation if trained else None)
    named: dict[str, Any] = {
        "gguf": options.draft_gguf,
        "quantised": bits,
        "vocabulary": options.draft_vocabulary,
    }
    role = "target"
    is_named = bool(options.target)
    try:
        target = load_target(options.target or name, dtype, gguf=options.gguf)
        role = "draft"
        is_named = bool(options.draft)
        draft = (
            load_draft(draft_name, target.model, target.tokenizer, **named) if draft_name else None
        )
    except UserError as error:
        if is_named:
            raise
        hint = (
            "The gate records this name, and of a folder elsewhere the last part alone. Name the"
            " model with"
        )
        raise UserError(f"{error} {hint} --{role}.") from error
    for model in (target.model, draft):
        if model is not None:
            model.requires_grad_(False)
    target.tokenizer.padding_side = "left"
    gate = (
        Gate.load(options.gate, target.model, draft, target.tokenizer, True)
        if options.gate
        else None
    )
    return Models(target.model, draft, target.tokenizer, gate)


def spec_of(options: Promise, gate: Gate | None) -> TaskSpec:
    """What `load_task` has to load. A gate's metric and limit count on the task that it was trained
    on.
    """
    prompting = Prompting(None) if gate is None else Prompting(**gate.config.prompting)
    if options.chat is not None:
        prompting = replace(
            prompting, chat_template=options.chat, system=prompting.system if options.chat else None
        )
    if options.num_fewshot is not None:
        prompting = replace(prompting, num_fewshot=options.num_fewshot)
    if options.system is not None:
        prompting = replace(prompting, system=options.system or None)
    if options.template:
        prompting = replace(prompting, arguments=parse_template(options.template))
    if (options.system or options.template) and not prompting.chat_template:
        raise UserError(
            "A system text and a template need a chat. Add --chat, or leave --system and --template"
            " out."
        )
    taught = (
        {} if gate is None or gate.config.labels.get("task") != options.task else gate.config.labels
    )
    said = {"metric": options.metric, "max_new_tokens": options.max_new_tokens}
    known: dict[str, Any] = {
        name: taught.get(name) if value is None else value for name, value in said.items()
    }
    known = {name: value for name, value in known.items() if value is not None}
    return TaskSpec(
        str(options.task),
        data=options.task_data,
        prompting=prompting,
        allow_code=options.allow_code,
        **known,
    )


def make_scorer(options: Options, models: Models, task: Task) -> Scorer:
    """The score by name."""
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


def prompts_of(
    options: Options, models: Models, task: Task, ternary: bool
) -> dict[str, list[Prompt]]:
    """Development and calibration prompts, without what a pipeline used or judged and the gate was
    trained on.
    """
    read_by = [model for model in (models.target, models.draft) if model is not None]
    context = min(context_of(model.config.get_text_config()) or LONGEST for model in read_by)
    maker = PromptMaker(task, models.tokenizer, context)
    known = known_marks(models.gate)
    order = random.Random(f"{options.seed} certificates")
    unused = fresh_prompts(maker, task.documents("train"), order, used_problems(task))
    found = [prompt for prompt in unused if known.isdisjoint(marks_of(task, prompt))]
    available = max(0, len(found) - options.development)
    confidence = level(options.confidence, options.looks)
    n = min(
        available,
        options.prompts or default_n(options.budget, confidence, ternary, available, options.stop),
    )
    calibration = found[options.development :][(options.draw - 1) * n : options.draw * n]
    if not n or len(calibration) < n:
        raise UserError(
            f"'{options.task}' has {len(found)} unused training documents, of which"
            f" {options.development} choose settings and {len(calibration)} are left for draw"
            f" {options.draw} of {n} calibration prompts. Lower --development, --prompts or --draw,"
            " or take a task with more documents."
        )
    return {"development": found[: options.development], "calibration": calibration}


def known_marks(gate: Gate | None) -> set[str]:
    """Marks of what pipelines judged and of the gate's problems; a gate of an earlier version does
    not say them.
    """
    if gate is not None and not gate.config.problems:
        warnings.warn(
            "The gate does not say which problems it was trained on. If this task has them, the"
            " certificate promises too much. Train the gate again with this version.",
            stacklevel=2,
        )
    return Ledger().judged_marks() | set(gate.config.problems.split() if gate else ())


def marks_of(task: Task, prompt: Prompt) -> set[str]:
    """By what a judged prompt is known: its token ids, and its problem."""
    return {hash_of(prompt["ids"]), hashes_of([task.problem(prompt["doc"])])}


def method_of(options: Options, models: Models) -> Method:
    """The rule with its own grid; settings that are given stay fixed."""
    name = options.rule or (GATED if options.gate else STRICT)
    rule_id, preset = meant(name)
    rule = RULES[rule_id]
    if rule.knob is None or not rule.grid:
        raise UserError(
            f"The rule '{name}' has no knob to calibrate. Choose another, such as prob-ratio or"
            " fly."
        )
    said = parse_settings(options.settings)
    if rule.knob in said:
        raise UserError(f"Calibration chooses {rule.knob} itself. Leave --set {rule.knob} away.")
    fixed = {name: value for name, value in {**preset, **said}.items() if name != rule.knob}
    certificate = models.gate.certificate if models.gate is not None else None
    usual = certificate.drafter if certificate else "model"
    if models.draft is None and asks_draft(usual):
        usual = "lookup"
    block = (
        options.block
        if options.block is not None
        else (certificate.block if certificate else BLOCK)
    )
    variants = ({},) if fixed else tuple(rule.variants)
    return Method(
        rule_id, options.drafter or usual, block, rule.knob, tuple(rule.grid), fixed, variants
    )


def drafter_of(options: Options, models: Models, method: Method) -> Drafter | None:
    """A fresh drafter of the method."""
    if method.drafter == CORPUS or method.drafter in STORED:
        raise UserError(
            f"'{method.drafter}' reads data; the pipeline certifies it (docs/rules.md). Choose"
            " another."
        )
    sources = Sources(models.target, models.tokenizer, models.draft, stopping=options.stop_drafting)
    return make_drafter(method.drafter, sources)


def scope_with(
    draft: PreTrainedModel | None, options: Options, models: Models, method: Method
) -> dict[str, Any]:
    """What decodes; `draft` is the draft model or None where the drafter does not ask it."""
    drafter = drafter_of(options, models, method)
    parts = (models.target, draft, models.tokenizer, models.gate)
    return decoding_scope(
        method, *parts, options.batch_size, drafting=None if drafter is None else drafter.binding
    )


def outcomes_of(
    options: Options,
    models: Models,
    method: Method,
    prompts: dict[str, list[Prompt]],
    scorer: Scorer,
) -> Outcomes:
    """The method and strict decoding on these prompts, both with the method's drafter and K."""
    memory = PromptCache(MEMORY_MB)
    shared = scope_with(models.draft, options, models, method)
    machine = (
        str(models.target.device),
        torch.__version__,
    )  # an interrupted start goes on where rounding is the same
    depends = (shared, *machine, Path(gistgate.__file__).parent)

    def reader(rule: str, gate: Gate | None) -> Decode:
        def decode(settings: dict[str, Any], asked: Sequence[Prompt], start: int) -> list[Answer]:
            choice = Choice(rule, settings, method.block)
            drafter = drafter_of(options, models, method)
            decoder = assemble(models.target, models.tokenizer, choice, drafter, gate)
            seeds = range(start, start + len(asked))
            return decode_prompts(
                decoder, asked, seeds, batch_size=options.batch_size, memory=memory
            )

        return cached(decode, SCRATCH, rule, *depends)

    strict = reader("exact", None)
    loose = reader(method.rule, models.gate)
    return Outcomes(
        prompts, scorer, lambda asked, start: [one.ids for one in strict({}, asked, start)], loose
    )
