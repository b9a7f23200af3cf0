"""Put a decoder together from what a command line can say: names, folders and numbers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.drafters import CORPUS, NONE, STORED, Sources, make_drafter
from gistgate.certificates.certificate import OperatingPoint
from gistgate.certificates.holds import check_options, check_parts, load_proof
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.gates.gate import Gate
from gistgate.observing.race import AUTO
from gistgate.observing.shadow import make_guard
from gistgate.optional.segments.building import served_decoder
from gistgate.optional.segments.serving import SEGMENT_RULES, take_segment_settings
from gistgate.rules import PRESETS, RULES, make_rule, nearest

BLOCK = 8
"""K where nothing else is said, in tokens."""


def take_settings(rule: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of `rule` from `arguments` and return them.

    Raises:
        UserError: there is no such rule.
    """
    if rule in SEGMENT_RULES:
        return take_segment_settings(arguments)
    rule_id = PRESETS[rule][0] if rule in PRESETS else rule
    if rule_id not in RULES:
        raise UserError(f"There is no rule '{rule}'. {nearest(rule, [*RULES, *PRESETS])}")
    names = [field.name for field in fields(RULES[rule_id])]
    return {name: arguments.pop(name) for name in names if name in arguments}


def load_draft(name: str, revision: str, target: PreTrainedModel) -> PreTrainedModel:
    """The draft model, in the target's dtype and on its device.

    Raises:
        UserError: it cannot be loaded.
    """
    try:
        draft = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype=target.dtype)
    except (OSError, ValueError) as error:
        raise UserError(f"The draft '{name}' could not be loaded ({error}). Check the name or the folder.") from error
    return draft.to(target.device).eval()


def build_decoder(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    draft: str | None = None,
    draft_revision: str = "main",
    drafter: str | None = None,
    datastore: str | None = None,
    corpus: str | None = None,
    gate: str | None = None,
    rule: str | None = None,
    block: int | None = None,
    budget: float | None = None,
    settings: dict[str, Any] | None = None,
    certificate: str | None = None,
    segments: str | None = None,
    guards: Sequence[str] = (),
    engine: str = "eager",
    speculate_up_to: int | str | None = None,
) -> Decoder:
    """A decoder around a loaded target.

    Args:
        target: the loaded model that is served.
        tokenizer: its tokenizer.
        draft: name or folder of the draft model.
        draft_revision: its revision on the hub.
        drafter: an id of `gistgate.build.drafters.KNOWN`; default: "model" with a draft, else "none".
        datastore: folder of a datastore, for the drafters that read one.
        corpus: text file with one training text per line, for the drafter "corpus".
        gate: folder of a trained gate.
        rule: rule id; default: "autojudge" with a gate, else "exact".
        block: K, drafted tokens per round; default: that of the gate's operating point, else 8. A warning says
            where K or the drafter is not the one that the point was certified with.
        budget: certified loss at which a gate runs when `settings` name no risk, as a share of prompts; default: the
            headline budget of its proof.
        settings: settings of the rule.
        certificate: a certificate.json or its folder; its rule, drafter, K and settings are used, and nothing else.
        segments: folder of segment probes; then `rule` and `settings` are theirs, `gate` speaks inside refused
            segments, and K, `drafter` and `budget` are the folder's.
        guards: ids of guards; "domain" is read from the gate's folder.
        engine: "eager" or "compiled".
        speculate_up_to: rows above which a batch is decoded plainly, or "auto": then the caller measures them with
            `gistgate.observing.race.settle_batches` when it has prompts.

    Raises:
        UserError: names that do not exist, parts that do not fit together, or options that a certificate contradicts.
    """
    settings = dict(settings or {})
    proof = load_proof(certificate) if certificate else None
    if proof is not None:
        certified = proof.operating_point(budget)
        named = {"rule": rule, "drafter": drafter, "block": block}
        check_options(proof, certified, settings=settings, segments=segments, **named)
        rule, drafter, block, settings = proof.rule, proof.drafter, proof.block, dict(certified.settings)
    shared: dict[str, Any] = {
        "vocabulary": len(tokenizer), "guards": [make_guard(name, gate) for name in guards], "engine": engine,
        "speculate_up_to": batch_limit(speculate_up_to),
    }  # fmt: skip
    draft_model = load_draft(draft, draft_revision, target) if draft else None
    loaded = Gate.load(gate, target=target, draft=draft_model, tokenizer=tokenizer) if gate else None
    if segments:
        return served_decoder(segments, target, draft_model, tokenizer, loaded, rule, settings, **shared)
    rule, drafter = rule or default_rule(gate), drafter or ("model" if draft else NONE)
    if proof is not None:
        data = {CORPUS: corpus}.get(drafter, datastore if drafter in STORED else None)
        check_parts(proof, loaded, target, draft_model, tokenizer, engine=engine, guards=guards, data=data)
    if loaded is not None and rule == "autojudge" and "risk" not in settings:
        point = loaded.operating_point(budget, rule=rule)
        settings = {**point.settings, **settings}
        block = loaded.proof.block if block is None and loaded.proof is not None else block
        doubt(loaded, point, block or 0, drafter)
    sources = Sources(target, tokenizer, draft_model, datastore, corpus)
    made, made_rule = make_drafter(drafter, sources), make_rule(rule, **settings)
    block = BLOCK if block is None else block
    return Decoder(target, made, made_rule, block, gate=loaded, tokenizer=tokenizer, **shared)


def default_rule(gate: str | None) -> str:
    """What a gate is for, and what remains without one."""
    return "autojudge" if gate else "exact"


def doubt(gate: Gate, point: OperatingPoint, block: int, drafter: str) -> None:
    """Warn where K or the drafter is not the certified one of an operating point; without drafts nothing is lost."""
    assert gate.proof is not None
    pairs = (("block", block, gate.proof.block), ("drafter", drafter, gate.proof.drafter))
    differing = [f"{name} is {now}, but {then} was certified" for name, now, then in pairs if now != then]
    if differing and block and drafter != NONE:
        warnings.warn(f"The budget of {100 * point.budget:g} % is not certified: {'; '.join(differing)}.", stacklevel=3)


def batch_limit(asked: int | str | None) -> int | None:
    """Rows up to which batches are speculated for; None where nothing or "auto" is said.

    Raises:
        UserError: neither a number nor "auto".
    """
    if asked is None or asked == AUTO:
        return None
    if not str(asked).isdecimal():
        raise UserError(f"speculate_up_to is '{asked}'. Give a number of rows (0 never speculates) or '{AUTO}'.")
    return int(asked)
