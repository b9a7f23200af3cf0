"""What is certified about one value of a rule's knob, in one sentence."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

from gistgate.build.choose import choose
from gistgate.build.decoder import other_parts
from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import OperatingPoint, Proof
from gistgate.decoding.decoder import Decoder


def proof_of(decoder: Decoder) -> Proof | None:
    """The certificate that the decoder keeps, else the one beside its gate, which a gate of other weights lacks."""
    found: Proof | None = decoder.certificate or getattr(decoder.parts.gate, "proof", None)
    return found


def claim(wishes: Wishes, decoder: Decoder, rule: Any, value: float, uncovered: str | None = None) -> str:
    """What the certificate says about the rule of this decoder at that value of its knob.

    Args:
        wishes: what the user says.
        decoder: what they became.
        rule: the rule, and `value` that of its knob.
        uncovered: why the certificate does not cover the requests themselves; None where it does.
    """
    if wishes.segments:
        return "The certificate of segments lies in their folder; this page does not read it."
    proof = proof_of(decoder)
    if decoder.drafter is None or not decoder.block:
        return "Decoding is plain, so that nothing can be lost."
    if proof is None:
        return "Not certified: there is no certificate."
    settings = {item.name: getattr(rule, item.name) for item in fields(rule)} | {str(rule.knob): value}
    wish = replace(wishes, rule=rule.id, settings=settings, budget=None, certificate=None)
    has_draft, has_gate = wishes.draft is not None, decoder.parts.gate is not None
    choice = choose(wish, proof, has_gate=has_gate, has_draft=has_draft)
    doubts = (*choice.doubts, *other_parts(choice, proof, wishes, decoder.target, decoder.drafter))
    if uncovered is not None:
        doubts = (*doubts, uncovered)
    if doubts:
        return f"Not certified: {'; '.join(doubts)}."
    return promise(next(point for point in proof.certified if point.settings[str(rule.knob)] == value))


def promise(point: OperatingPoint) -> str:
    """The budget that a certified point keeps: its own bound was computed after the prompts had chosen the point."""
    return (
        f"Certified: loses at most {100 * point.budget:g} points with {100 * point.confidence:g} % confidence "
        f"(bound {100 * point.bound:.2f}), from {point.n} prompts."
    )


def own_claim(wishes: Wishes, decoder: Decoder, uncovered: str | None = None) -> str | None:
    """The claim about the setting that the decoder runs with; None for a rule without a knob."""
    rule: Any = decoder.rule
    return None if rule.knob is None else claim(wishes, decoder, rule, getattr(rule, rule.knob), uncovered)


def certificate_table(decoder: Decoder) -> dict[str, Any]:
    """The certificate for a page; empty without one."""
    proof = proof_of(decoder)
    if proof is None:
        return {}
    points = {f"budget {point.budget:g}": asdict(point) for point in proof.points}
    facts = {name: getattr(proof, name) for name in ("rule", "drafter", "block", "score", "source", "made")}
    return {**facts, **points}


def provenance_table(decoder: Decoder) -> dict[str, Any]:
    """Where the gate and its partners come from; empty without a gate."""
    config = getattr(decoder.parts.gate, "config", None)
    if config is None:
        return {}
    told = {name: asdict(getattr(config, name)) for name in ("target", "draft", "tokenizer") if getattr(config, name)}
    return {**told, **config.provenance}
