"""Contenders of `benchmarks.pair`: plain and strict decoding, and certified settings at their own K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transformers import PreTrainedModel

from gistgate.build.candidates import Workshop
from gistgate.build.choose import MODEL, NONE, STRICT, Choice
from gistgate.build.decoder import assemble
from gistgate.observing.tuning import Candidate
from pipeline.speed.clock import Contender, ours


@dataclass(frozen=True)
class Raced:
    """What every contender is made of; a pair for `pipeline.speed.clock`."""

    shop: Workshop
    request: dict[str, Any]
    """Arguments of `Decoder.generate`."""

    @property
    def target(self) -> PreTrainedModel:
        return self.shop.target.model

    @property
    def draft(self) -> Any:
        return self.shop.draft

    @property
    def tokenizer(self) -> Any:
        return self.shop.target.tokenizer

    def contender(self, name: str, choice: Choice, engine: str) -> Contender:
        """One of ours on one engine."""
        gate: Any = None if choice.rule == STRICT else self.shop.gate
        drafter = self.shop.drafter(choice.drafter)
        decoder = assemble(self.target, self.tokenizer, choice, drafter, gate, engine=engine)
        return Contender(f"{name}-{engine}", ours(decoder, self.request), choice.block, builds=engine == "compiled")

    def strict(self, engine: str, block: int) -> Contender:
        """Strict decoding with the draft model."""
        return self.contender("strict", Choice(STRICT, {}, block, MODEL), engine)


def on(engine: str, raced: Raced, block: int, certified: Sequence[Candidate]) -> list[Contender]:
    """Ours on one engine: plain, strict at this K, and every certified setting at its own."""
    return [
        raced.contender("plain", Choice(STRICT, {}, 0, NONE), engine),
        raced.strict(engine, block),
        *(raced.contender(one.name, choice_of(one), engine) for one in certified),
    ]


def choice_of(candidate: Candidate) -> Choice:
    """The setting of a certified candidate."""
    proof, point = candidate.proof, candidate.point
    assert proof is not None and point is not None
    return Choice(proof.rule, dict(point.settings), proof.block, proof.drafter)


def said(candidate: Candidate) -> dict[str, Any]:
    """What a result says about a certified setting."""
    proof, point = candidate.proof, candidate.point
    assert proof is not None and point is not None
    return {**asdict(point), "certified_on": proof.scope.get("engine"), "task": proof.scope.get("task")}
