"""The ways to a cheaper draft, each added to those before it, as decoders of one pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedModel

from benchmarks.workload import Workload
from gistgate.build.choose import Choice
from gistgate.build.decoder import assemble
from gistgate.build.drafters import HYBRID, Sources, make_drafter
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.stopping import Stopping
from gistgate.forward.output import Subset
from gistgate.forward.quantised import quantise
from gistgate.request.statistics import Statistics
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import Operating
from pipeline.pairs.loading import load_model
from pipeline.pairs.source import MODEL, read_pair
from pipeline.speed.clock import Prompts, check_engine

WHOLE, QUANTISED, VOCABULARY, STOPPING, TEXTS = "whole", "quantised", "vocabulary", "stopping", "texts"
STEPS = (WHOLE, QUANTISED, VOCABULARY, STOPPING, TEXTS)
"""The draft as it is and K tokens; fewer bits; a part of the vocabulary; ends of drafts; texts beside the model."""
STRICT = "strict"


@dataclass(frozen=True)
class Ladder:
    """The steps of one comparison, with a draft model for each of the first three."""

    workload: Workload
    steps: Sequence[str]
    drafts: Mapping[str, PreTrainedModel]

    @classmethod
    def load(cls, workload: Workload, steps: Sequence[str], kind: str, subset: Subset | None) -> Ladder:
        """Load the pair's draft model once for each step that changes it.

        Args:
            workload: the run; its pair has a draft model.
            steps: those of STEPS that are taken, in their order.
            kind: what QUANTISED rounds weights to, one of `gistgate.forward.quantised.KINDS`.
            subset: what VOCABULARY leaves of the vocabulary.
        """
        drafts = {WHOLE: draft_with(workload, "none")}
        bits = bits_of(steps, kind)
        if QUANTISED in steps:
            drafts[QUANTISED] = draft_with(workload, bits)
        if VOCABULARY in steps and subset is not None:
            drafts[VOCABULARY] = draft_with(workload, bits, subset)
        return cls(workload, steps, drafts)

    def draft_at(self, step: str) -> str:
        """The last step up to this one that changed the draft model."""
        return [name for name in STEPS[: STEPS.index(step) + 1] if name in self.drafts][-1]

    def decoder(self, point: Operating, step: str, stopping: Stopping | None = None) -> Decoder:
        """A method at its setting with everything up to a step; `stopping` has costs, and counts from STOPPING on."""
        pair, drafter = self.workload.pair, HYBRID if step == TEXTS else MODEL
        if stopping is not None and STOPPING not in self.steps:
            stopping = replace(stopping, floor=0.0)
        draft = self.drafts[self.draft_at(step)]
        sources = Sources(pair.target, pair.tokenizer, draft, stopping=stopping if step in (STOPPING, TEXTS) else None)
        gate = load_gate(point.head, pair) if point.head else None
        choice = Choice(point.rule, point.settings, point.block, drafter)
        return assemble(pair.target, pair.tokenizer, choice, make_drafter(drafter, sources), gate)


def bits_of(steps: Sequence[str], kind: str) -> str:
    """The quantisation of every step behind QUANTISED."""
    return kind if QUANTISED in steps else "none"


def draft_with(workload: Workload, kind: str, subset: Subset | None = None) -> PreTrainedModel:
    """The pair's draft model, loaded afresh and changed."""
    source = read_pair(workload.params.pair).draft
    assert source is not None, "the command has asked whether there is a draft model"
    model = load_model(replace(source, quantise="none"))
    if subset is not None:
        model = subset.apply(model, workload.pair.tokenizer, workload.request["eos_ids"])
    return quantise(model, kind)


@dataclass
class Counted:
    """A decoder as something that is timed, which keeps what it counted last."""

    decoder: Decoder
    request: dict[str, Any]
    last: Statistics | None = None

    def __call__(self, prompts: Prompts) -> tuple[list[list[int]], int]:
        answers = self.decoder.generate(prompts, **self.request)
        check_engine(self.decoder)
        self.last = sum((answer.statistics for answer in answers), Statistics())
        return [answer.ids for answer in answers], self.last.forwards
