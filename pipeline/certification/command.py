"""What `gistgate calibrate` does: any rule with a knob, any task, any pair, one budget, one certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gistgate.build.choose import BLOCK, GATED, STRICT
from gistgate.build.models import load_draft, load_target, parse_settings
from gistgate.certificates.scores import LogProbability, PairwiseJudge, Scorer, TaskScore
from gistgate.certificates.sequence import check_stop
from gistgate.cli.show import proved
from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.task import load_task
from gistgate.registry import nearest
from gistgate.rules import PRESETS, RULES
from pipeline.certification.certificate import (
    Request,
    check_possible,
    default_n,
    find,
    plan_sentence,
    proof,
    scope_of_trial,
)
from pipeline.certification.prompts import unused_prompts, used_prompts
from pipeline.certification.trial import Ground, Trial
from pipeline.common.scope import task_hash
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params, PromptingParams
from pipeline.params.reading import build
from pipeline.stages.prompts import Maker, Prompt

LONGEST = 2048
"""Context assumed where a model does not say its own, in tokens."""


@dataclass(frozen=True)
class Options:
    """The options of the command; their help texts are in gistgate/cli/main.py."""

    task: str
    budget: float = 0.02
    confidence: float = 0.95
    gate: str | None = None
    rule: str | None = None
    target: str | None = None
    draft: str | None = None
    drafter: str | None = None
    settings: Sequence[str] = ()
    block: int | None = None
    prompts: int | None = None
    development: int = 300
    stop: Any = "lost"
    score: str = "task"
    judge: str | None = None
    task_data: str | None = None
    out: Path | None = None
    batch_size: int = 32
    seed: int = 0

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


def certify(options: Options) -> str:
    """Plan, choose, test, write; returns what was proved, in words.

    Raises:
        UserError: parts that do not fit together, or nothing could be certified.
    """
    params = params_of(options)
    gate, pair = load_parts(options)
    scorer = make_scorer(options, pair, params)
    prompts, maker = prompts_of(options, pair, params)
    n = len(prompts["calibration"])
    print(plan_sentence(options.budget, options.confidence, n, scorer.ternary, options.stop))
    check_possible(options.budget, options.confidence, n, scorer.ternary, options.stop)
    trial = Trial(
        Ground(pair, prompts, scorer, options.batch_size), method_of(options, pair), block_of(options, gate), gate
    )
    request = Request((options.budget,), options.confidence, n, options.stop)
    finding = find(trial, request)
    if (refusal := finding.refusal(options.budget)) is not None:
        raise UserError(refusal)
    scope = scope_of_trial(trial, task_hash(maker.task, params), params.prompting)
    kept = proof(trial, finding, [options.budget], scope, source_of(options))
    path = kept.save(folder_of(options))
    return f"{proved(kept)}\nwritten to {path}"


def params_of(options: Options) -> Params:
    """Task and prompting as the pipeline's modules want them; a gate decides how prompts are built."""
    prompting = PromptingParams()
    if options.gate is not None:
        prompting = build(PromptingParams, Gate.load(options.gate).config.prompting)
    return Params(task=options.task, task_data=options.task_data, seed=options.seed, prompting=prompting)


def load_parts(options: Options) -> tuple[Gate | None, Pair]:
    """The models that are named, else those that the gate was trained for."""
    config = Gate.load(options.gate).config if options.gate else None
    target_name = options.target or (config.target.name if config else "")
    draft_name = options.draft or (config.draft.name if config and config.draft else None)
    target = load_target(target_name, config.target.dtype if config else "auto")
    draft = load_draft(draft_name, target.model, target.tokenizer) if draft_name else target.model
    for model in (target.model, draft):
        model.requires_grad_(False)
    target.tokenizer.padding_side = "left"
    gate = Gate.load(options.gate, target.model, draft, target.tokenizer) if options.gate else None
    return gate, Pair(target.model, draft, target.tokenizer, target_name)


def make_scorer(options: Options, pair: Pair, params: Params) -> Scorer:
    """The score by name.

    Raises:
        UserError: there is none of that name, or it lacks its model.
    """
    if options.score == "task":
        return TaskScore(load_task(params), pair.tokenizer)
    if options.score == "logprob":
        return LogProbability(pair.target)
    if options.score != "judge":
        raise UserError(f"There is no score '{options.score}'. {nearest(options.score, ['task', 'logprob', 'judge'])}")
    if options.judge is None:
        raise UserError("The score 'judge' needs a model. Name one with --judge.")
    judge = load_target(options.judge)
    return PairwiseJudge(judge.model, judge.tokenizer, pair.tokenizer)


def prompts_of(options: Options, pair: Pair, params: Params) -> tuple[dict[str, list[Prompt]], Maker]:
    """Development and calibration prompts, without problems of a finished run's other splits in data/prompts.

    Raises:
        UserError: nothing is left for calibration.
    """
    config = pair.target.config.get_text_config()
    maker = Maker(load_task(params), pair.tokenizer, getattr(config, "max_position_embeddings", None) or LONGEST)
    docs = maker.task.documents("train")
    found = unused_prompts(maker, docs, len(docs), options.seed, used_prompts())
    available = len(found) - options.development
    if available < 1:
        raise UserError(
            f"The task '{options.task}' has {len(found)} unused training documents, of which {options.development} "
            "choose settings and none is left to calibrate. Lower --development or take a larger task."
        )
    ternary = options.score != "logprob"
    planned = default_n(options.budget, options.confidence, ternary, available, options.stop)
    n = min(available, options.prompts or planned)
    return {"development": found[: options.development], "calibration": found[options.development :][:n]}, maker


def method_of(options: Options, pair: Pair) -> MethodParams:
    """The rule with its own grid; settings that are given stay fixed.

    Raises:
        UserError: no such rule, or it has no knob.
    """
    name = options.rule or (GATED if options.gate else STRICT)
    rule_id = PRESETS[name][0] if name in PRESETS else name
    if rule_id not in RULES:
        raise UserError(f"There is no rule '{name}'. {nearest(name, [*RULES, *PRESETS])}")
    rule = RULES[rule_id]
    if rule.knob is None or not rule.grid:
        raise UserError(f"The rule '{name}' has no knob to calibrate. Choose another, such as prob-ratio or fly.")
    fixed = {**(PRESETS[name][1] if name in PRESETS else {}), **parse_settings(options.settings)}
    fixed.pop(rule.knob, None)
    drafter = options.drafter or ("lookup" if pair.draft is pair.target else "model")
    head = "given" if options.gate else None
    return MethodParams(
        rule_id, drafter, learned=head is not None, head=head, fixed=fixed,
        variants=({},) if fixed else tuple(rule.variants), knob=rule.knob, grid=tuple(rule.grid),
    )  # fmt: skip


def block_of(options: Options, gate: Gate | None) -> int:
    """K: as asked for, else that of the gate's proof, else the usual one."""
    if options.block is not None:
        return options.block
    return gate.proof.block if gate is not None and gate.proof is not None else BLOCK


def source_of(options: Options) -> str:
    """Where the prompts come from, for people."""
    return f"training documents of the task '{options.task}' and prompts like these"


def folder_of(options: Options) -> Path:
    """Where the certificate goes."""
    return options.out or Path(options.gate or ".")
