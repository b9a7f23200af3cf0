"""A decoder of one's own as calibration wants it: its models, its method, and what they decode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import gistgate
from gistgate.build import assemble
from gistgate.certificates.calibration import Method, decoding_scope
from gistgate.certificates.ledger import hash_of
from gistgate.certificates.outcomes import Answer, Decode, Ids, Outcomes, Scorer, cached
from gistgate.core.batches import PromptCache, decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.reader import context_of
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.choose import BLOCK, GATED, STRICT, Choice
from gistgate.gate import Gate
from gistgate.models.loading import load_draft, load_target
from gistgate.models.options import DecodeOptions
from gistgate.models.sources import CORPUS, STORED, Sources, asks_draft, make_drafter
from gistgate.rules import RULES, meant
from gistgate.tasks.prompts import Prompt, PromptMaker, hashes_of
from gistgate.tasks.task import Task

LONGEST = 2048
"""Context assumed where a model does not say its own, in tokens."""
MEMORY_MB = 1000
"""Room for prompts that are read once and decoded at many settings."""


@dataclass(frozen=True)
class Models:
    """What decodes: the models that are named, else those that the gate was trained for."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    gate: Gate | None


def load_models(
    target_name: str | None, gguf: str | None, draft_gguf: str | None, options: DecodeOptions
) -> Models:
    """Load the target, the draft, as light as the gate's unless the options say otherwise, and the
    gate; `gguf` and `draft_gguf` name files in the folders of both models.
    """
    config = Gate.load(options.gate).config if options.gate else None
    trained = config.draft if config else None
    draft_name = options.draft or (trained.name if trained else None)
    bits = options.quantise_draft
    is_lighter = bits not in (None, "none") or options.draft_vocabulary
    if draft_name is None and (is_lighter or draft_gguf is not None):
        raise UserError(
            "--quantise-draft, --draft-vocabulary, --draft-gguf: no draft is named. Add --draft."
        )
    if trained and trained.draft_vocabulary and options.draft_vocabulary is None:
        raise UserError(
            "The gate's draft proposes a part of the vocabulary. Name its file with"
            " --draft-vocabulary."
        )
    with explaining("target", target_name):
        name, dtype = (config.target.name, config.target.dtype) if config else ("", "auto")
        target = load_target(target_name or name, dtype, gguf=gguf)
    draft = None
    if draft_name:
        with explaining("draft", options.draft):
            draft = load_draft(
                draft_name,
                target.model,
                target.tokenizer,
                gguf=draft_gguf,
                quantised=bits or (trained.quantisation if trained else None),
                vocabulary=options.draft_vocabulary,
            )
            draft.requires_grad_(False)
    target.model.requires_grad_(False)
    target.tokenizer.padding_side = "left"
    gate = None
    if options.gate:
        gate = Gate.load(options.gate, target.model, draft, target.tokenizer, True)
    return Models(target.model, draft, target.tokenizer, gate)


@contextmanager
def explaining(role: str, name: str | None) -> Iterator[None]:
    """While open, an error about a model that the user has not named says where its name is
    from.
    """
    try:
        yield
    except UserError as error:
        if name:
            raise
        raise UserError(
            f"{error} The gate records this name, and of a folder elsewhere the last part alone."
            f" Name the model with --{role}."
        ) from error


def maker_for(
    task: Task, tokenizer: PreTrainedTokenizerBase, models: Iterable[PreTrainedModel | None]
) -> PromptMaker:
    """What makes prompts that every one of these models can read, with room for the answer."""
    contexts = [
        context_of(model.config.get_text_config()) or LONGEST
        for model in models
        if model is not None
    ]
    return PromptMaker(task, tokenizer, min(contexts))


def marks_of(task: Task, prompt: Prompt) -> set[str]:
    """By what a judged prompt is known: its token ids, and its problem."""
    return {hash_of(prompt["ids"]), hashes_of([task.problem(prompt["doc"])])}


def method_of(options: DecodeOptions, models: Models) -> Method:
    """The rule with its own grid; settings that the options name stay fixed."""
    name = options.rule or (GATED if options.gate else STRICT)
    rule_id, preset = meant(name)
    rule = RULES[rule_id]
    if rule.knob is None or not rule.grid:
        raise UserError(
            f"The rule '{name}' has no knob to calibrate. Choose another, such as prob-ratio or"
            " fly."
        )
    if rule.knob in options.settings:
        raise UserError(f"Calibration chooses {rule.knob} itself. Leave --set {rule.knob} away.")
    fixed = {**preset, **options.settings}
    fixed.pop(rule.knob, None)
    certificate = models.gate.certificate if models.gate is not None else None
    drafter = certificate.drafter if certificate else "model"
    if models.draft is None and asks_draft(drafter):
        drafter = "lookup"
    block = options.block
    if block is None:
        block = certificate.block if certificate else BLOCK
    return Method(
        rule=rule_id,
        drafter=options.drafter or drafter,
        block=block,
        knob=rule.knob,
        grid=tuple(rule.grid),
        fixed=fixed,
        variants=({},) if fixed else tuple(rule.variants),
    )


def decode_prompts(
    decoder: Decoder, prompts: Sequence[Prompt], seeds: Sequence[int], **batches: Any
) -> list[Answer]:
    """Answers in the order of the prompts; `batches` (batch_size, memory, progress) go to
    `decode_all`.
    """
    answers = decode_all(
        decoder,
        [prompt["ids"] for prompt in prompts],
        seeds=list(seeds),
        max_new_tokens=prompts[0]["max_new_tokens"],
        stops=prompts[0]["stops"],
        eos_ids=eos_ids(decoder.target, decoder.tokenizer),
        **batches,
    )
    return [Answer(answer.ids, answer.statistics) for answer in answers]


@dataclass(frozen=True)
class OwnDecoder:
    """A method on loaded models."""

    models: Models
    method: Method
    stop_drafting: str | None
    """File of fit-draft or a confidence, by which drafts end."""
    batch_size: int
    """Rows decoded together."""

    def drafter(self) -> Drafter | None:
        """A fresh drafter of the method."""
        name = self.method.drafter
        if name == CORPUS or name in STORED:
            raise UserError(
                f"'{name}' reads data; the pipeline certifies it (docs/rules.md). Choose another."
            )
        models = self.models
        sources = Sources(
            models.target, models.tokenizer, models.draft, stopping=self.stop_drafting
        )
        return make_drafter(name, sources)

    def scope(self) -> dict[str, Any]:
        """What decodes; the draft model is None where the drafter does not ask it."""
        models = self.models
        drafter = self.drafter()
        return decoding_scope(
            self.method,
            models.target,
            models.draft if asks_draft(self.method.drafter) else None,
            models.tokenizer,
            models.gate,
            self.batch_size,
            drafting=None if drafter is None else drafter.binding,
        )

    def outcomes(
        self, prompts: Mapping[str, Sequence[Prompt]], scorer: Scorer, scratch: Path
    ) -> Outcomes:
        """The method and strict decoding on these prompts, both with the method's drafter and K;
        decoded answers wait in the folder `scratch`, so that an interruption loses a chunk at most.
        """
        memory = PromptCache(MEMORY_MB)
        # An interrupted start goes on where the rounding is the same.
        machine = (str(self.models.target.device), torch.__version__)
        depends = (self.scope(), *machine, Path(gistgate.__file__).parent)

        def decode_with(rule: str, gate: Gate | None) -> Decode:
            def decode(
                settings: dict[str, Any], prompts: Sequence[Prompt], start: int
            ) -> list[Answer]:
                choice = Choice(rule, settings, self.method.block)
                models = self.models
                decoder = assemble(models.target, models.tokenizer, choice, self.drafter(), gate)
                seeds = range(start, start + len(prompts))
                return decode_prompts(
                    decoder, prompts, seeds, batch_size=self.batch_size, memory=memory
                )

            return cached(decode, scratch, rule, *depends)

        strict = decode_with("exact", None)
        loose = decode_with(self.method.rule, self.models.gate)

        def strict_ids(prompts: Sequence[Prompt], start: int) -> list[Ids]:
            return [answer.ids for answer in strict({}, prompts, start)]

        return Outcomes(prompts, scorer, strict_ids, loose)
