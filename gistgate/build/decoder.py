"""The one place where a decoder is built from what a user says: names, folders and numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.build.choose import GATED, NONE, STRICT, Choice, Policy, choose, take_settings
from gistgate.build.drafters import CORPUS, STORED, Sources, asks_draft, make_drafter
from gistgate.build.models import load_draft
from gistgate.build.preference import Preferred, preferred, settled
from gistgate.build.wishes import Wishes, take_wishes
from gistgate.certificates.certificate import Proof, read_proof
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.files import fingerprint, named_files
from gistgate.forward.context import num_ids
from gistgate.gates.gate import Gate
from gistgate.rules import RULES, make_rule


def build_decoder(
    target: PreTrainedModel, tokenizer: Any, wishes: Wishes | None = None, policy: Policy = "warn"
) -> Decoder:
    """A decoder around a loaded target. docs/choosing.md says which rule and setting it runs with.

    Args:
        target: the loaded model that is served.
        tokenizer: its tokenizer; None where nobody looks for stop strings.
        wishes: what the user says.
        policy: what happens to doubts about the certificate.

    Raises:
        UserError: names that do not exist, parts that do not fit together, or wishes that contradict a certificate.
    """
    wishes = preferred(wishes or Wishes())
    shared: dict[str, Any] = {"engine": wishes.engine, "speculate_up_to": wishes.most_rows}
    draft = None if wishes.draft is None else load_draft(wishes.draft, target, tokenizer, **wishes.lighter)
    gate = load_gate(wishes.gate, target, draft, tokenizer)
    if wishes.guards:
        shared["guards"] = guards_of(wishes, gate, target)
    wishes = settled(wishes, gate, target, draft)
    loaded = Loaded(target, tokenizer, draft, gate)
    try:
        return chosen(loaded, wishes, policy, **shared)
    except UserError as error:
        if not isinstance(wishes.certificate, Preferred):
            raise
        decoder = chosen(loaded, replace(wishes, certificate=None), policy, **shared)
        reason = str(error).partition(":")[0]
        warnings.warn(
            f"What `gistgate tune` chose is left aside: it does not go with these options ({reason}). Tune again with "
            "them to have a choice.",
            stacklevel=2,
        )
        return decoder


def guards_of(wishes: Wishes, gate: Gate | None, target: PreTrainedModel) -> list[Any]:
    """The guards that are named, checked against their partners.

    Raises:
        UserError: there is no such guard, or it was fitted with another gate or on other weights.
    """
    from gistgate.build.guards import check_guards, make_guards

    guards = make_guards(wishes.guards, wishes.gate)
    check_guards(guards, gate, target)
    return list(guards)


@dataclass(frozen=True)
class Loaded:
    """The parts of a decoder that take time to load."""

    target: PreTrainedModel
    tokenizer: Any
    draft: PreTrainedModel | None
    gate: Gate | None


def chosen(loaded: Loaded, wishes: Wishes, policy: Policy, **shared: Any) -> Decoder:
    """The decoder of these parts; `shared` go to `Decoder`.

    Raises:
        UserError: wishes do not fit together or contradict a certificate, or the certificate is of other parts.
    """
    target, tokenizer, draft, gate = loaded.target, loaded.tokenizer, loaded.draft, loaded.gate
    proof = named_proof(wishes)
    if wishes.segments and proof is None:
        from gistgate.build.segments import build_segments

        return build_segments(target, draft, tokenizer, gate, wishes, policy, **shared)
    known = proof or (gate.proof if gate else None)
    choice = choose(wishes, known, has_gate=gate is not None, has_draft=draft is not None)
    sources = Sources(target, tokenizer, draft, wishes.datastore, wishes.corpus, wishes.stop_drafting)
    check_used(wishes, choice.drafter, sources)
    drafter = make_drafter(choice.drafter, sources)
    if (told := fitted_elsewhere(drafter, choice.rule)) is not None:
        warnings.warn(told, stacklevel=2)
    if proof is not None:
        from gistgate.certificates.holds import check_parts

        used: dict[str, Any] = {"engine": wishes.engine, "guards": wishes.guards, "drafting": binding_of(drafter)}
        used |= {"data": sources.behind(choice.drafter), "settings": choice.settings}
        check_parts(proof, gate, target, draft, tokenizer, **used)
    elif known is not None:
        choice = replace(choice, doubts=(*choice.doubts, *other_parts(choice, known, wishes, target, drafter)))
    if proof is None and gate is not None and gate.reservation is not None:
        choice = held_back(choice, gate.reservation)
    choice.voice(policy)
    decoder = assemble(target, tokenizer, choice, drafter, gate, **shared)
    decoder.certificate = proof
    return decoder


def check_used(wishes: Wishes, drafter: str, sources: Sources) -> None:
    """Refuse wishes about drafts that this drafter would ignore.

    Raises:
        UserError: texts that nothing reads, or a lighter draft model where there is none.
    """
    read = {"corpus": drafter == CORPUS, "datastore": drafter in STORED}
    unread = [name for name, is_read in read.items() if getattr(wishes, name) is not None and not is_read]
    if unread:
        raise UserError(
            f"The drafter '{drafter}' reads no {unread[0]}. Name a drafter that does (--drafter), or leave the "
            f"{unread[0]} away."
        )
    if wishes.quantise_draft in (None, "none") and not wishes.draft_vocabulary:
        return
    if sources.draft is None:
        raise UserError("There is no draft model to make lighter. Name it as draft=<name or folder> (--draft).")
    if not asks_draft(drafter) and not isinstance(wishes.certificate, Preferred):  # nobody named a preferred drafter
        raise UserError(
            f"The drafter '{drafter}' asks no draft model, so that a lighter one changes nothing. Name a drafter that "
            "does (--drafter), or leave --draft and its options away."
        )


def held_back(choice: Choice, reservation: str) -> Choice:
    """Strict decoding in place of a choice that would ask a gate which has this reservation."""
    if not choice.strict_instead and "gate" not in RULES[choice.rule].needs:
        return choice
    return Choice(STRICT, {}, choice.block, choice.drafter, (reservation,), strict_instead=True)


def assemble(
    target: PreTrainedModel, tokenizer: Any, choice: Choice, drafter: Drafter | None, gate: Any = None, **parts: Any
) -> Decoder:
    """The decoder of a choice whose parts are made; `parts` go to `Decoder`.

    Raises:
        UserError: there is no such rule or setting, or parts do not fit together.
    """
    rule = make_rule(choice.rule, **choice.settings)
    counted = None if tokenizer is None else num_ids(tokenizer)
    return Decoder(
        target, drafter, rule, choice.block, gate=gate, tokenizer=tokenizer, **{"vocabulary": counted, **parts}
    )


def binding_of(drafter: Drafter | None) -> dict[str, Any]:
    """What decides the proposals of a drafter besides texts and models."""
    return {} if drafter is None else drafter.binding


def fitted_elsewhere(drafter: Drafter | None, rule: str) -> str | None:
    """What to tell of a policy for the end of drafts that was fitted to another rule; None where it fits."""
    stopping = None if drafter is None else drafter.stopping
    fitted = None if stopping is None else stopping.measured.get("rule")
    if fitted in (None, rule):
        return None
    return (
        f"The ends of drafts were fitted to the rule '{fitted}', and '{rule}' keeps another share of a draft. Nothing "
        "is lost but speed; fit them again with `gistgate fit-draft --rule`."
    )


def other_parts(
    choice: Choice, proof: Proof, wishes: Wishes, target: PreTrainedModel, drafter: Drafter | None
) -> tuple[str, ...]:
    """Why a proof about other parts does not cover a choice of its rule; empty where it does or nothing can be lost.

    Doubts about rule, settings, K and drafter are not repeated: `choose` has them.
    """
    if choice.drafter == NONE or not choice.block or choice.rule != proof.rule:
        return ()
    scope, doubts = proof.scope, []
    is_exact = target.dtype == torch.float32  # there both engines give the same ids
    if not is_exact and wishes.engine != scope.get("engine", wishes.engine):
        doubts.append(f"the engine is {wishes.engine}, but {scope['engine']} was certified")
    if choice.drafter == proof.drafter:
        data = Sources(target, datastore=wishes.datastore, corpus=wishes.corpus).behind(choice.drafter)
        if (scope.get("drafting") or {}) != binding_of(drafter):
            doubts.append("drafts end by another policy than the certified ones")
        if data is not None and fingerprint(data) != scope.get("drafter_data"):
            doubts.append("the drafter reads other texts than the certified ones")
    if "rule_data" in scope and fingerprint(*named_files(choice.settings)) != scope["rule_data"]:
        doubts.append("the rule reads other files than the certified ones")
    return tuple(doubts)


def named_proof(wishes: Wishes) -> Proof | None:
    """The certificate that the user names; None without one.

    Raises:
        UserError: the file is missing or damaged.
    """
    if wishes.certificate is None:
        return None
    from gistgate.certificates.holds import load_proof

    return load_proof(wishes.certificate)


def load_gate(gate: Any, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: Any) -> Gate | None:
    """The gate, checked against its partners; one that is loaded already was checked by whoever loaded it.

    Raises:
        UserError: the gate cannot be read, or it was trained for another architecture.
    """
    if gate is None or isinstance(gate, Gate):
        return gate
    return Gate.load(gate, target=target, draft=draft, tokenizer=tokenizer, elsewhere=True)


def wishes_from(arguments: dict[str, Any], load: Callable[[Wishes], Wishes] | None = None) -> Wishes:
    """Remove wishes and settings of the rule from keyword arguments, such as `rule="fly", theta=0.9`, and return them.

    `load` may put loaded parts in place of names before the certificate beside a gate is looked at.

    Raises:
        UserError: there is no such rule, or a certificate cannot be read.
    """
    wishes = Wishes(**take_wishes(dict(arguments)))
    wishes = wishes if load is None else load(wishes)
    if wishes.segments:
        from gistgate.build.segments import take_segment_settings

        settings = take_segment_settings(arguments)
    else:
        settings = take_settings(rule_of(wishes), arguments)  # first: a rule may have a setting called `budget`
    return Wishes(settings=settings, **{name: getattr(wishes, name) for name in take_wishes(arguments)})


def rule_of(wishes: Wishes) -> str:
    """The rule whose settings may stand beside these wishes.

    Raises:
        UserError: a certificate cannot be read.
    """
    if wishes.rule is not None:
        return wishes.rule
    proof = named_proof(wishes)
    if proof is None and wishes.gate is not None:
        proof = wishes.gate.proof if isinstance(wishes.gate, Gate) else read_proof(wishes.gate)
    return proof.rule if proof else (GATED if wishes.gate is not None else STRICT)
