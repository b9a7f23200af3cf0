"""A decoder of one's own as calibration wants it: its parts, its method, and what they decode."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import gistgate
from gistgate.build import Builder
from gistgate.certificates.calibration import Method, decoding_scope
from gistgate.certificates.ledger import hash_of
from gistgate.certificates.outcomes import (
    Answer,
    Decode,
    Ids,
    LogProbability,
    Outcomes,
    Scorer,
    cached,
)
from gistgate.core.architecture import context_of
from gistgate.core.batches import PromptCache, decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.ask import Settings
from gistgate.coverage.choose import BLOCK, GATED, STRICT, Choice
from gistgate.gate import Gate
from gistgate.models.loading import load_target
from gistgate.models.options import DecodeOptions
from gistgate.models.sources import CORPUS, STORED, asks_draft
from gistgate.rules import RULES, meant
from gistgate.tasks.prompts import Prompt, PromptMaker, hashes_of
from gistgate.tasks.task import Task

LONGEST = 2048
"""Context assumed where a model does not say its own, in tokens."""
MEMORY_MB = 1000
"""Room for prompts that are read once and decoded at many settings."""


def load_parts(
    target_name: str | None, gguf: str | None, quantise: str | None, options: DecodeOptions
) -> Builder:
    """The models that are named, else those that the gate was trained for, the draft as light as
    then; `gguf` names a file in the target's folder, and `quantise` how its weights are kept.
    """
    dtype = "auto"
    if options.gate:
        config = Gate.load(options.gate).config
        target_name = target_name or config.target.name
        dtype = config.target.dtype
        quantise = quantise or config.target.quantisation
        if config.draft is not None:
            if config.draft.draft_vocabulary and options.draft_vocabulary is None:
                raise UserError(
                    "The gate's draft proposes a part of the vocabulary. Name its file with"
                    " --draft-vocabulary."
                )
            options = replace(
                options,
                draft=options.draft or config.draft.name,
                quantise_draft=options.quantise_draft or config.draft.quantisation,
            )
    target = load_target(str(target_name), dtype, gguf=gguf, quantise=quantise)
    return Builder(target.model, target.tokenizer, options).loaded()


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


def method_of(parts: Builder) -> Method:
    """The rule with its own grid; settings that the options name stay fixed."""
    options = parts.options
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
    drafter = "model"
    block = BLOCK
    certificate = parts.gate.certificate if parts.gate else None
    if certificate is not None:
        drafter = certificate.drafter
        block = certificate.block
    if parts.draft is None and asks_draft(drafter):
        drafter = "lookup"
    return Method(
        rule_id,
        options.drafter or drafter,
        block if options.block is None else options.block,
        rule.knob,
        tuple(rule.grid),
        fixed,
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
    return [Answer(answer.ids, answer.statistics, answer.finish) for answer in answers]


@dataclass(frozen=True)
class OwnDecoder:
    """A method on loaded parts."""

    parts: Builder
    method: Method
    batch_size: int
    """Rows decoded together."""

    def choice(self, rule: str, settings: Settings) -> Choice:
        """A rule with the method's drafter and K."""
        return Choice(rule, settings, self.method.block, self.method.drafter)

    def drafter(self) -> Drafter | None:
        """A fresh drafter of the method."""
        name = self.method.drafter
        if name == CORPUS or name in STORED:
            raise UserError(
                f"'{name}' reads data; the pipeline certifies it (docs/rules.md). Choose another."
            )
        return self.parts.drafter_of(self.choice(self.method.rule, {}))

    def scope(self) -> dict[str, Any]:
        """What decodes; the draft model is None where the drafter does not ask it."""
        parts = self.parts
        drafter = self.drafter()
        return decoding_scope(
            self.method,
            parts.target,
            parts.draft if asks_draft(self.method.drafter) else None,
            parts.tokenizer,
            parts.gate,
            self.batch_size,
            drafting=None if drafter is None else drafter.binding,
        )

    def outcomes(
        self,
        prompts: Mapping[str, Sequence[Prompt]],
        scorer: Scorer,
        scratch: Path,
        reader: LogProbability | None = None,
    ) -> Outcomes:
        """The method and strict decoding on these prompts, both with the method's drafter and K;
        decoded answers wait in the folder `scratch`, so that an interruption loses a chunk at most.
        """
        memory = PromptCache(MEMORY_MB)
        # An interrupted start goes on where the rounding is the same.
        machine = (str(self.parts.target.device), torch.__version__)
        depends = (self.scope(), *machine, Path(gistgate.__file__).parent)

        def decode_with(rule: str) -> Decode:
            def decode(settings: Settings, prompts: Sequence[Prompt], start: int) -> list[Answer]:
                decoder = self.parts.assemble(self.choice(rule, settings), self.drafter())
                seeds = range(start, start + len(prompts))
                return decode_prompts(
                    decoder, prompts, seeds, batch_size=self.batch_size, memory=memory
                )

            return cached(decode, scratch, rule, *depends)

        strict = decode_with("exact")

        def strict_ids(prompts: Sequence[Prompt], start: int) -> list[Ids]:
            return [answer.ids for answer in strict({}, prompts, start)]

        loose = decode_with(self.method.rule)
        return Outcomes(prompts, scorer, strict_ids, loose, reader=reader)
