"""A folder of segment probes as a decoder: at what its certificate says, or as the user wants it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.choose import Choice, Policy, differing
from gistgate.build.wishes import Wishes
from gistgate.decoding.decoder import Decoder
from gistgate.errors import UserError
from gistgate.forward.context import num_ids
from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash
from gistgate.optional.segments.building import GATE, OPINIONS, SEGMENT_RULES, SETTINGS, segment_decoder
from gistgate.optional.segments.files import Probes, load_probes
from gistgate.optional.segments.rule import SegmentRule

DEFAULTS: dict[str, Any] = {"rule": SegmentRule.id, "opinion": "probe", "risk": None, "replacement": "token"}
"""What runs where neither certificate nor user says otherwise."""
OF_BLOCKS = ("block", "drafter", "stop_drafting")
"""Wishes about blocks of K tokens."""
REFUSE_ALL = {"threshold": 2.0}
"""The setting that refuses every segment: it runs where nothing is certified and nothing was said."""


@dataclass(frozen=True)
class Segments:
    """A loaded folder of probes."""

    probes: Probes
    gate: Gate | None
    """The token gate inside the folder; None without one."""


def load_segments(
    folder: str | Path, target: PreTrainedModel, draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Segments:
    """Probes and token gate of a folder, checked against their partners.

    Raises:
        UserError: a file is missing or damaged, or was made for other models.
    """
    place = Path(folder) / GATE
    gate = Gate.load(place, target=target, draft=draft, tokenizer=tokenizer) if place.is_dir() else None
    return Segments(load_probes(folder, target, draft), gate)


def take_segment_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of segments from keyword arguments and return them."""
    return {name: arguments.pop(name) for name in SETTINGS if name in arguments}


def choose_segments(probes: Probes, rule: str | None, settings: dict[str, Any]) -> Choice:
    """The certified choice where nothing is said, else what is said on top of it. Pure, as `choose` is for tokens.

    Raises:
        UserError: there is no such rule, opinion or setting.
    """
    certified = probes.certificate
    known = {**DEFAULTS, "rule": certified.get("rule", SegmentRule.id), **certified.get("settings", {})}
    wanted = {**known, **({} if rule is None else {"rule": rule}), **settings}
    doubts, strict_instead = differing(wanted, known), False
    if not certified:
        doubts, strict_instead = ("no setting of these probes is certified",), not (settings or rule)
        wanted |= REFUSE_ALL if strict_instead else {}
    for name, names in (("rule", SEGMENT_RULES), ("opinion", OPINIONS)):
        if wanted[name] not in names:
            raise UserError(f"There is no segment {name} '{wanted[name]}'. Known: {', '.join(names)}.")
    if unknown := [name for name in settings if name not in SETTINGS]:
        raise UserError(f"Segments have no setting '{unknown[0]}'. Known: {', '.join(SETTINGS)}.")
    rule_id = wanted.pop("rule")
    return Choice(rule_id, wanted, probes.limit, "segment", doubts, strict_instead)


def build_segments(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    gate: Gate | None,
    wishes: Wishes,
    policy: Policy = "warn",
    **parts: Any,
) -> Decoder:
    """The decoder of the probes in `wishes.segments`, with the folder's own token gate where no other is given.

    Raises:
        UserError: no draft model or tokenizer, a folder for other models, or settings that do not exist.
    """
    if draft is None:
        raise UserError("Segments are written by a draft model, and there is none. Name it as draft=<name or folder>.")
    if tokenizer is None:
        raise UserError("A tokenizer tells where segments end, and there is none. Pass tokenizer= as well.")
    check_wishes(wishes)
    own = wishes.segments
    if not isinstance(own, Segments):
        own = load_segments(own, target, draft, tokenizer)
    check_budget(wishes, own.probes.certificate)
    choice = choose_segments(own.probes, wishes.rule, wishes.settings)
    choice = refusing_all(with_gate_doubt(choice, gate, own.gate), gate)
    choice.voice(policy, stacklevel=4)
    return decoder_of(own.probes, choice, target, draft, tokenizer, gate or own.gate, **parts)


def check_wishes(wishes: Wishes) -> None:
    """Refuse wishes that segments cannot keep: the draft model writes each to its end.

    Raises:
        UserError: one of them is named.
    """
    if named := next((name for name in OF_BLOCKS if getattr(wishes, name) is not None), None):
        raise UserError(f"Segments have no {named}: the draft model writes each to its end. Leave it away.")


def check_budget(wishes: Wishes, certificate: dict[str, Any]) -> None:
    """Refuse a budget or a confidence that the certificate of the segments does not reach.

    Raises:
        UserError: it does not, or nothing is certified.
    """
    if wishes.budget is None and wishes.confidence is None:
        return
    budget, confidence = certificate.get("budget"), certificate.get("confidence")
    if budget is None or confidence is None:
        raise UserError("No setting of these probes is certified, so that no budget is kept. Leave the budget away.")
    if (wishes.budget is not None and wishes.budget < budget - 1e-9) or (wishes.confidence or 0.0) > confidence:
        raise UserError(
            f"These probes are certified for a budget of {budget:g} with confidence {confidence:g} alone. Name these, "
            "or calibrate the probes for what you want."
        )


def with_gate_doubt(choice: Choice, given: Gate | None, own: Gate | None) -> Choice:
    """The choice, with a doubt where another token gate speaks than the one that was certified.

    A certificate holds for the folder's own gate, which another folder may hold as well.
    """
    if given is None or choice.settings["risk"] is None or (own is not None and gate_hash(given) == gate_hash(own)):
        return choice
    return replace(choice, doubts=(*choice.doubts, "the token gate is not the folder's own"))


def refusing_all(choice: Choice, gate: Gate | None) -> Choice:
    """All segments refused in place of a choice whose risk is kept by a token gate that may not decide here."""
    if gate is None or gate.reservation is None or choice.settings["risk"] is None:
        return choice
    settings = {name: value for name, value in DEFAULTS.items() if name != "rule"} | REFUSE_ALL
    doubts = (gate.reservation,)
    return replace(choice, rule=SegmentRule.id, settings=settings, doubts=doubts, strict_instead=True)


def decoder_of(
    probes: Probes,
    choice: Choice,
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    gate: Gate | None,
    **parts: Any,
) -> Decoder:
    """The decoder of loaded probes.

    Raises:
        UserError: a risk without a token gate, or parts that `segment_decoder` refuses.
    """
    settings, risk = choice.settings, choice.settings["risk"]
    if risk is not None and gate is None:
        raise UserError("A risk is kept by a token gate, and none was given. Pass gate=<folder>, or leave risk away.")
    own = {item.name: settings[item.name] for item in fields(SegmentRule) if item.name in settings}
    return segment_decoder(
        target,
        draft,
        tokenizer,
        OPINIONS[settings["opinion"]](probes, target, tokenizer),
        SEGMENT_RULES[choice.rule](**own),
        style=probes.style,
        limit=probes.limit,
        replacement=settings["replacement"],
        token_gate=None if risk is None else gate,
        risk=risk or 0.0,
        **{"vocabulary": num_ids(tokenizer), **parts},
    )
