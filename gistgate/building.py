"""Put a decoder together from what a command line can say: names, folders and numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from gistgate.decoding.decoder import Decoder
from gistgate.drafters import DRAFTERS
from gistgate.drafters.base import Drafter
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.gates.certificate import read_certificate
from gistgate.gates.gate import Gate
from gistgate.rules import PRESETS, RULES, make_rule, nearest
from gistgate.segments.building import served_decoder
from gistgate.segments.serving import SEGMENT_RULES, take_segment_settings

BLOCK = 8
"""K where nothing else is said, in tokens."""
BUDGET = 0.03
"""Loss against strict at which a gate runs where nothing else is said, as a share of prompts."""


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
        raise UserError(f"The draft '{name}' could not be loaded ({error}). Check draft= in --model_args.") from error
    return draft.to(target.device).eval()


def build_decoder(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    draft: str | None = None,
    draft_revision: str = "main",
    drafter: str | None = None,
    gate: str | None = None,
    rule: str | None = None,
    block: int | None = None,
    budget: float = BUDGET,
    settings: dict[str, Any] | None = None,
    certificate: str | None = None,
    segments: str | None = None,
) -> Decoder:
    """A decoder around a loaded target.

    Args:
        target: the loaded model that is served.
        tokenizer: its tokenizer.
        draft: name or folder of the draft model.
        draft_revision: its revision on the hub.
        drafter: "model", "lookup" or "none"; default: "model" with a draft, else "none".
        gate: folder of a trained gate.
        rule: rule id; default: "autojudge" with a gate, else "exact".
        block: K, drafted tokens per round; default: that of the gate's operating point, else 8.
        budget: certified loss at which a gate runs when `settings` name no risk, as a share of prompts.
        settings: settings of the rule.
        certificate: a certificate.json or its folder; its rule, drafter, K and settings are used, and nothing else.
        segments: folder of segment probes; then `rule` and `settings` are theirs, `gate` speaks inside refused
            segments, and K, `drafter` and `budget` are the folder's.

    Raises:
        UserError: names that do not exist, or parts that do not fit together.
    """
    proof = read_certificate(certificate) if certificate else None
    if proof is not None:
        rule, drafter, block, settings = proof.rule, proof.drafter, proof.block, proof.settings
    draft_model = load_draft(draft, draft_revision, target) if draft else None
    loaded = Gate.load(gate, target=target, draft=draft_model, tokenizer=tokenizer) if gate else None
    if segments:
        return served_decoder(
            segments, target, draft_model, tokenizer, loaded, rule, settings or {}, vocabulary=len(tokenizer)
        )
    rule, settings = rule or default_rule(gate), dict(settings or {})
    if proof is not None and (broken := proof.mismatch(loaded, target, draft_model, tokenizer)):
        raise UserError(broken)
    if loaded is not None and rule == "autojudge" and "risk" not in settings:
        point = loaded.operating_point(budget)
        settings["risk"] = point.knob
        block = block or point.block
    return Decoder(
        target,
        make_drafter(drafter or ("model" if draft else "none"), draft_model),
        make_rule(rule, **settings),
        BLOCK if block is None else block,
        gate=loaded,
        tokenizer=tokenizer,
        vocabulary=len(tokenizer),
    )


def default_rule(gate: str | None) -> str:
    """What a gate is for, and what remains without one."""
    return "autojudge" if gate else "exact"


def make_drafter(drafter: str, draft: PreTrainedModel | None) -> Drafter | None:
    """A drafter by id; "none" is plain decoding.

    Raises:
        UserError: there is no such drafter, or it needs a draft model.
    """
    if drafter == "none":
        return None
    if drafter not in DRAFTERS:
        raise UserError(f"There is no drafter '{drafter}'. {nearest(drafter, [*DRAFTERS, 'none'])}")
    made: Drafter
    if not issubclass(DRAFTERS[drafter], ModelDrafter):
        made = DRAFTERS[drafter]()
        return made
    if draft is None:
        raise UserError(f"The drafter '{drafter}' needs a draft model. Add draft=<name or folder> to --model_args.")
    made = DRAFTERS[drafter](draft)
    return made
