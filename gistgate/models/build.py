"""The one place where a decoder is built from what a user says: names, folders and numbers."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.certificate import CERTIFICATE_FILE, TASK, Certificate, OperatingPoint, read_certificate
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.files import fingerprint, named_files, read_json
from gistgate.core.gate import Gate
from gistgate.core.reader import num_ids
from gistgate.core.utils import UserError, nearest
from gistgate.drafters import DRAFTERS
from gistgate.drafters.adaptive import Costs, ModelOrTextDrafter
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping, stopping_from
from gistgate.models.loading import load_draft
from gistgate.models.options import DecodeOptions, take_options
from gistgate.rules import RULES, complete, make_rule, meant

if TYPE_CHECKING:
    from gistgate.retrieval.corpus import SuffixArray

# ---- Which rule, setting, K and drafter run: one pure function, whose answers are the table in docs/choosing.md.


BLOCK = 8
"""K where neither user nor certificate names one, in tokens."""
STRICT, GATED = "exact", "autojudge"
"""The rule that loses nothing, and the rule that a gate is trained for."""
MODEL, NONE = "model", "none"
"""The drafter that needs a draft model, and plain decoding."""
Policy = Literal["warn", "refuse"]
"""What a caller does about doubts. Both warn about what the user asked for; `refuse` stops where strict decoding would
silently replace the loose decoding that the user expects."""


@dataclass(frozen=True)
class Choice:
    """What decoding runs with."""

    rule: str
    """Rule id."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the rule."""
    block: int = BLOCK
    """K, drafted tokens per round."""
    drafter: str = NONE
    """Drafter id."""
    doubts: tuple[str, ...] = ()
    """Why no certificate covers the loss; empty where one does and where nothing can be lost."""
    fell_back: bool = False
    """Whether strict decoding replaces a loose setting because none is certified."""

    def warn(self, policy: Policy = "warn", stacklevel: int = 3) -> None:
        """Warn of the doubts, or refuse to go on.

        Raises:
            UserError: the policy is to refuse, and strict decoding would replace a loose setting.
        """
        if not self.doubts:
            return
        text = f"No certificate covers this: {'; '.join(self.doubts)}."
        if policy == "refuse" and self.fell_back:
            raise UserError(f"{text} Name a setting, or name rule={STRICT} for strict decoding.")
        warnings.warn(text, stacklevel=stacklevel)


def choose(
    options: DecodeOptions, certificate: Certificate | None = None, *, has_gate: bool = False, has_draft: bool = False
) -> Choice:
    """Rule, settings, K and drafter from what is certified and what the user says.

    Args:
        wishes: what the user says.
        proof: the certificate that the user names, else the one beside the gate, else None.
        has_gate: whether a gate is loaded.
        has_draft: whether a draft model is loaded.

    Raises:
        UserError: unknown names, wishes that contradict each other, or wishes that contradict a named certificate.
    """
    if options.budget is not None and not has_gate and certificate is None:
        raise UserError("A budget is kept by a certificate, and none was given. Name a gate or a certificate as well.")
    if options.certificate is not None and certificate is not None:
        return as_certified(options, certificate)
    rule, settings = rule_and_settings(options, certificate, has_gate)
    block = options.block if options.block is not None else (certificate.block if certificate else BLOCK)
    drafter = options.drafter or (certificate.drafter if certificate else MODEL if has_draft else NONE)
    is_plain = not block or drafter == NONE
    if RULES[rule].knob is None:
        is_fallback = has_gate and options.rule is None and not is_plain
        doubts = ("the gate has no certificate, so every token is verified strictly",) if is_fallback else ()
        return Choice(rule, settings, block, drafter, doubts, fell_back=is_fallback)
    if certificate is None or rule != certificate.rule:
        found = Choice(rule, settings, block, drafter, (uncertified_rule(rule, certificate),))
    elif certificate.knob in settings:
        found = at_knob(options, certificate, settings, block, drafter)
    else:
        found = at_budget(options, certificate, settings, block, drafter)
    return Choice(found.rule, found.settings, block, drafter) if is_plain else found


def rule_and_settings(
    options: DecodeOptions, certificate: Certificate | None, has_gate: bool
) -> tuple[str, dict[str, Any]]:
    """The rule's id and the settings that are named, those of a preset included.

    Raises:
        UserError: there is no such rule or setting, or a setting is out of range.
    """
    name = options.rule or default_rule(certificate, has_gate and bool(options.settings))
    rule, preset = meant(name)
    certified = (
        certificate.fixed if certificate is not None and name == certificate.rule else {}
    )  # a rule may need a file, as csd does
    make_rule(name, **{**certified, **options.settings})
    return rule, {**preset, **options.settings}


def default_rule(certificate: Certificate | None, is_gated: bool) -> str:
    """The rule where the user names none: the certified one, else that of a gate, else the strict one."""
    return certificate.rule if certificate else GATED if is_gated else STRICT


def take_settings(rule: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove the settings of `rule` from keyword arguments and return them.

    Raises:
        UserError: there is no such rule.
    """
    return {name: arguments.pop(name) for name in complete(meant(rule)[0], {}) if name in arguments}


def uncertified_rule(rule: str, certificate: Certificate | None) -> str:
    """The doubt about a loose rule that no certificate names."""
    if certificate is None:
        return f"the rule '{rule}' has no certificate"
    return f"the rule '{certificate.rule}' was certified, not '{rule}'"


def at_knob(
    options: DecodeOptions, certificate: Certificate, settings: dict[str, Any], block: int, drafter: str
) -> Choice:
    """The value of the knob that the user names.

    Raises:
        UserError: a budget is named as well.
    """
    knob = str(certificate.knob)
    if options.budget is not None:
        raise UserError(f"{knob}= and budget= both say how loose decoding is. Leave one of them away.")
    certified = [point.settings[knob] for point in eligible(options, certificate)]
    doubts = []
    if settings[knob] not in certified:
        known = ", ".join(f"{value:g}" for value in certified) or "none"
        doubts = [f"{knob} {settings[knob]:g} is not among the certified values ({known})"]
    settings = {**certificate.fixed, **settings}
    return Choice(
        certificate.rule, settings, block, drafter, (*doubts, *differences(certificate, settings, block, drafter))
    )


def at_budget(
    options: DecodeOptions, certificate: Certificate, settings: dict[str, Any], block: int, drafter: str
) -> Choice:
    """The setting that is certified for the budget, or strict decoding where there is none."""
    point = certified_point(options, certificate)
    if point is None:
        why = f"{refusal(options, certificate)}, so every token is verified strictly"
        return Choice(STRICT, {}, block, drafter, (why,), fell_back=True)
    settings = {**point.settings, **settings}
    return Choice(certificate.rule, settings, block, drafter, differences(certificate, settings, block, drafter))


def certified_point(options: DecodeOptions, certificate: Certificate) -> OperatingPoint | None:
    """The loosest point that keeps the budget; None where there is none."""
    budget = budget_of(options, certificate)
    within = [point for point in eligible(options, certificate) if point.budget <= budget + 1e-9]
    return max(within, key=lambda point: (point.budget, point.mean_accepted_length), default=None)


def eligible(options: DecodeOptions, certificate: Certificate) -> list[OperatingPoint]:
    """The certified points that are sure enough, and whose loss is in the unit of budgets or named by the user."""
    if certificate.score != TASK and options.certificate is None:
        return []
    return [point for point in certificate.certified if point.confidence >= (options.confidence or 0.0)]


def budget_of(options: DecodeOptions, certificate: Certificate) -> float:
    """The budget that is named, else the headline budget of the certificate."""
    return certificate.headline_budget if options.budget is None else options.budget


def refusal(options: DecodeOptions, certificate: Certificate) -> str:
    """Why no setting is certified."""
    if certificate.score != TASK and options.certificate is None:
        return f"the certificate beside the gate bounds the score '{certificate.score}', not the task's own metric"
    known = ", ".join(f"{point.budget:g}" for point in eligible(options, certificate)) or "none"
    sure = "" if options.confidence is None else f" at confidence {options.confidence:g}"
    return (
        f"there is no setting certified for a budget of {budget_of(options, certificate):g}{sure} (certified: {known})"
    )


def differences(certificate: Certificate, settings: dict[str, Any], block: int, drafter: str) -> tuple[str, ...]:
    """What differs from the certified combination besides the knob, as sentences; unnamed settings are at defaults."""
    wanted = {
        "block": certificate.block,
        "drafter": certificate.drafter,
        **complete(certificate.rule, certificate.fixed),
    }
    found = {"block": block, "drafter": drafter, **complete(certificate.rule, settings)}
    return differing({name: value for name, value in found.items() if name != certificate.knob}, wanted)


def differing(found: dict[str, Any], certified: dict[str, Any]) -> tuple[str, ...]:
    """One sentence for each entry of `found` that is not the certified one."""
    return tuple(
        f"{name} is {value}, but {certified.get(name)} was certified"
        for name, value in found.items()
        if value != certified.get(name)
    )


def as_certified(options: DecodeOptions, certificate: Certificate) -> Choice:
    """What a named certificate says. A user who names a certificate wants it to hold, so nothing may contradict it.

    Raises:
        UserError: a wish contradicts the certificate, or it certifies nothing for the budget.
    """
    point = certified_point(options, certificate)
    if point is None:
        raise UserError(
            f"The certificate cannot be kept: {refusal(options, certificate)}. Decode without the certificate."
        )
    asked = {"rule": options.rule, "drafter": options.drafter, "block": options.block, "segments": options.segments}
    rule = complete(certificate.rule, point.settings)
    certified = {"rule": certificate.rule, "drafter": certificate.drafter, "block": certificate.block, **rule}
    named = {**{name: value for name, value in asked.items() if value is not None}, **options.settings}
    for name, value in named.items():
        if value != certified.get(name):
            known = "none" if certified.get(name) is None else certified[name]
            raise UserError(
                f"The certificate says {name} {known}, and {name} {value} is asked for beside it. Leave that option "
                "away, or decode without the certificate."
            )
    return Choice(certificate.rule, dict(point.settings), certificate.block, certificate.drafter)


# ---- Drafters by id, made from the models, folders and files that they need.


CORPUS = "corpus"
HYBRID = "hybrid"
STOPPING = ("model", "tree", HYBRID)
"""Drafters whose drafts may end before K tokens."""
STORED = ("sen", "sen-lexical", "sen-tree", "sen-tree-lexical")
"""Drafters that read a datastore; the lexical ones ask for no states."""
KNOWN = (*DRAFTERS, *STORED, CORPUS, NONE)
"""Every id, plain decoding included."""


@dataclass(frozen=True)
class Sources:
    """What a drafter may be made of."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None
    """Reads the corpus."""
    draft: PreTrainedModel | None = None
    datastore: str | Path | None = None
    """Folder of a datastore of this target."""
    corpus: str | Path | None = None
    """Text file, one training text per line."""
    stopping: Any = None
    """When drafts end: a `Stopping`, its file, or a confidence; None: at K tokens."""

    def behind(self, drafter: str) -> Path | None:
        """The folder or file that a drafter knows texts from; None for a drafter that knows nothing but the request."""
        data = {CORPUS: self.corpus}.get(drafter, self.datastore if drafter in STORED else None)
        return None if data is None else Path(data)


def make_drafter(drafter: str, sources: Sources) -> Drafter | None:
    """A drafter by id; "none" is plain decoding.

    Raises:
        UserError: there is no such drafter, or something that it is made of is missing.
    """
    if drafter not in KNOWN:
        raise UserError(f"There is no drafter '{drafter}'. {nearest(drafter, list(KNOWN))}")
    stopping = stopping_of(drafter, sources)
    if drafter == NONE:
        return None
    if drafter in STORED:
        return stored(drafter, sources)
    if drafter == CORPUS:
        from gistgate.retrieval.corpus import CorpusDrafter

        return CorpusDrafter(read_corpus(sources))
    if drafter == HYBRID:
        return hybrid(draft_of(drafter, sources), stopping)
    kind: Any = DRAFTERS[drafter]
    if not issubclass(kind, ModelDrafter):
        made: Drafter = kind()
    elif stopping is None:
        made = kind(draft_of(drafter, sources))
    else:
        made = kind(draft_of(drafter, sources), stopping=stopping)
    return made


def asks_draft(drafter: str) -> bool:
    """Whether a drafter drafts with the draft model, alone or among others: certificates then bind that model."""
    return drafter == HYBRID or (drafter in DRAFTERS and issubclass(DRAFTERS[drafter], ModelDrafter))


def draft_of(drafter: str, sources: Sources) -> PreTrainedModel:
    """The draft model.

    Raises:
        UserError: there is none.
    """
    if sources.draft is None:
        raise UserError(
            f"The drafter '{drafter}' needs a draft model, and there is none. Name one (--draft, draft= or "
            "draft_model=), or take the drafter 'lookup'."
        )
    return sources.draft


def stopping_of(drafter: str, sources: Sources) -> Stopping | None:
    """When drafts end; None: at K tokens.

    Raises:
        UserError: this drafter's drafts cannot end earlier, or the policy cannot be read.
    """
    said = sources.stopping
    if said is None:
        return None
    if drafter not in STOPPING:
        raise UserError(
            f"The drafter '{drafter}' does not ask when its drafts stop paying. Leave stop_drafting away, or take one "
            f"of: {', '.join(STOPPING)}."
        )
    return said if isinstance(said, Stopping) else stopping_from(said)


def hybrid(draft: PreTrainedModel, stopping: Stopping | None) -> ModelOrTextDrafter:
    """Repetitions in the text and the draft model, weighed by the costs that the policy was made with.

    Raises:
        UserError: there is no policy with measured costs.
    """
    try:
        costs, block = costs_of({} if stopping is None else stopping.measured)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            "The drafter 'hybrid' weighs texts against the draft model by measured costs. Measure them with `gistgate "
            "fit-draft`, and name the file as stop_drafting."
        ) from error
    return ModelOrTextDrafter(ModelDrafter(draft, stopping), costs, block)


def costs_of(measured: dict[str, Any]) -> tuple[Costs, int]:
    """The costs that a policy was made with, and its K; older files say v at K alone.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: they are missing or damaged.
    """
    block, verify = int(measured["block"]), measured["verify"]
    if isinstance(verify, int | float):
        verify = {block: verify}
    by_block = {int(num): float(price) for num, price in verify.items()}
    if not by_block or min(by_block.values()) <= 0:
        raise ValueError("the costs of verification are no positive numbers")
    return Costs(1.0, float(measured["cost"]), by_block), block


def stored(drafter: str, sources: Sources) -> Drafter:
    """A drafter that reads a datastore.

    Raises:
        UserError: there is no datastore, or it belongs to another target.
    """
    from gistgate.retrieval.sense import SenseDrafter, SenseTree
    from gistgate.retrieval.store import Datastore

    if sources.datastore is None:
        raise UserError(f"The drafter '{drafter}' reads a datastore. Name its folder as datastore=<folder>.")
    kind = SenseTree if drafter.startswith("sen-tree") else SenseDrafter
    return kind(Datastore.load(sources.datastore, sources.target), semantic=not drafter.endswith("-lexical"))


def read_corpus(sources: Sources) -> SuffixArray:
    """The texts of the corpus, without the tokens that a tokenizer puts around a text.

    Raises:
        UserError: there is no file, or no text in it.
    """
    from gistgate.core.files import read_text
    from gistgate.retrieval.corpus import SuffixArray

    if sources.corpus is None or sources.tokenizer is None:
        raise UserError(
            "The drafter 'corpus' looks up training texts. Name a file with one text per line as corpus=<file>."
        )
    texts = [line.removesuffix("\r") for line in read_text(sources.corpus).split("\n") if line.strip()]
    if not texts:
        raise UserError(f"{sources.corpus} holds no text. Put one training text into every line.")
    return SuffixArray.build(sources.tokenizer(texts, add_special_tokens=False).input_ids)


# ---- What `gistgate tune` found fastest on a machine, kept in a gate's folder.


TUNED = "tuned"
"""Folder in the gate's folder."""
MEASURED = "speed.json"
"""Its file with what was measured."""
DECIDES = ("certificate", "rule", "settings", "block", "drafter", "budget", "confidence", "segments")
"""Wishes that say themselves what runs; with any of them the preference is left aside."""


class TunedChoice(str):
    """The folder of a certificate that nobody named: where it does not hold it is left aside instead of refused."""


def tuned_choice(options: DecodeOptions) -> DecodeOptions:
    """The wishes with the preferred certificate, where there is one and the user leaves the choice open."""
    if not isinstance(options.gate, str | Path) or any(getattr(options, name) not in (None, {}) for name in DECIDES):
        return options
    place = Path(options.gate) / TUNED
    if not (place / CERTIFICATE_FILE).is_file():
        return options
    try:
        measured = read_json(place / MEASURED)
    except UserError:  # missing or cut
        measured = None
    if not isinstance(measured, dict) or measured.get("certificate") != chosen_among(options.gate):
        warnings.warn(
            f"{place} is damaged, or was chosen when the gate had another certificate, and is left aside. Run "
            "`gistgate tune` again.",
            stacklevel=3,
        )
        return options
    return replace(options, certificate=TunedChoice(place))


def settled(
    options: DecodeOptions, gate: Gate | None, target: PreTrainedModel, draft: PreTrainedModel | None
) -> DecodeOptions:
    """The wishes without a preferred certificate of other weights, where these weights hold the gate back."""
    if not isinstance(options.certificate, TunedChoice) or gate is None or gate.strict_reason is None:
        return options
    certificate = read_certificate(options.certificate)
    is_of_others = certificate is None or certificate.mismatch(target=target, draft=draft)
    return replace(options, certificate=None) if is_of_others else options


def chosen_among(gate: str | Path) -> str | None:
    """What tells the gate's own certificate from others; None where it has none."""
    file = Path(gate) / CERTIFICATE_FILE
    return fingerprint(file) if file.is_file() else None


def forget(gate: str | Path) -> None:
    """Remove the choice of an earlier measurement.

    Raises:
        UserError: it cannot be removed, and would go on to decide.
    """
    place = Path(gate) / TUNED
    shutil.rmtree(place, ignore_errors=True)
    if place.exists():
        raise UserError(
            f"{place} holds the choice of an earlier measurement and cannot be removed. Remove it by hand, or check "
            "the permissions."
        )


def build_decoder(
    target: PreTrainedModel, tokenizer: Any, options: DecodeOptions | None = None, policy: Policy = "warn"
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
    options = tuned_choice(options or DecodeOptions())
    shared: dict[str, Any] = {"engine": options.engine, "speculate_up_to": options.most_rows}
    draft = None if options.draft is None else load_draft(options.draft, target, tokenizer, **options.lighter)
    gate = load_gate(options.gate, target, draft, tokenizer)
    if options.guards:
        shared["guards"] = guards_of(options, gate, target)
    options = settled(options, gate, target, draft)
    loaded = Loaded(target, tokenizer, draft, gate)
    try:
        return chosen(loaded, options, policy, **shared)
    except UserError as error:
        if not isinstance(options.certificate, TunedChoice):
            raise
        decoder = chosen(loaded, replace(options, certificate=None), policy, **shared)
        reason = str(error).partition(":")[0]
        warnings.warn(
            f"What `gistgate tune` chose is left aside: it does not go with these options ({reason}). Tune again with "
            "them to have a choice.",
            stacklevel=2,
        )
        return decoder


def guards_of(options: DecodeOptions, gate: Gate | None, target: PreTrainedModel) -> list[Any]:
    """The guards that are named, checked against their partners.

    Raises:
        UserError: there is no such guard, or it was fitted with another gate or on other weights.
    """
    from gistgate.core.guards import check_guards, make_guards

    guards = make_guards(options.guards, options.gate)
    check_guards(guards, gate, target)
    return list(guards)


@dataclass(frozen=True)
class Loaded:
    """The parts of a decoder that take time to load."""

    target: PreTrainedModel
    tokenizer: Any
    draft: PreTrainedModel | None
    gate: Gate | None


def chosen(loaded: Loaded, options: DecodeOptions, policy: Policy, **shared: Any) -> Decoder:
    """The decoder of these parts; `shared` go to `Decoder`.

    Raises:
        UserError: wishes do not fit together or contradict a certificate, or the certificate is of other parts.
    """
    target, tokenizer, draft, gate = loaded.target, loaded.tokenizer, loaded.draft, loaded.gate
    certificate = named_certificate(options)
    if options.segments and certificate is None:
        from gistgate.segments.build import build_segments

        return build_segments(target, draft, tokenizer, gate, options, policy, **shared)
    known = certificate or (gate.certificate if gate else None)
    choice = choose(options, known, has_gate=gate is not None, has_draft=draft is not None)
    sources = Sources(target, tokenizer, draft, options.datastore, options.corpus, options.stop_drafting)
    check_used(options, choice.drafter, sources)
    drafter = make_drafter(choice.drafter, sources)
    if (told := fitted_elsewhere(drafter, choice.rule)) is not None:
        warnings.warn(told, stacklevel=2)
    if certificate is not None:
        from gistgate.core.certificate import check_parts

        used: dict[str, Any] = {"engine": options.engine, "guards": options.guards, "drafting": binding_of(drafter)}
        used |= {"data": sources.behind(choice.drafter), "settings": choice.settings}
        check_parts(certificate, gate, target, draft, tokenizer, **used)
    elif known is not None:
        choice = replace(choice, doubts=(*choice.doubts, *other_parts(choice, known, options, target, drafter)))
    if certificate is None and gate is not None and gate.strict_reason is not None:
        choice = held_back(choice, gate.strict_reason)
    choice.warn(policy)
    decoder = assemble(target, tokenizer, choice, drafter, gate, **shared)
    decoder.certificate = certificate
    return decoder


def check_used(options: DecodeOptions, drafter: str, sources: Sources) -> None:
    """Refuse wishes about drafts that this drafter would ignore.

    Raises:
        UserError: texts that nothing reads, or a lighter draft model where there is none.
    """
    read = {"corpus": drafter == CORPUS, "datastore": drafter in STORED}
    unread = [name for name, is_read in read.items() if getattr(options, name) is not None and not is_read]
    if unread:
        raise UserError(
            f"The drafter '{drafter}' reads no {unread[0]}. Name a drafter that does (--drafter), or leave the "
            f"{unread[0]} away."
        )
    if options.quantise_draft in (None, "none") and not options.draft_vocabulary:
        return
    if sources.draft is None:
        raise UserError("There is no draft model to make lighter. Name it as draft=<name or folder> (--draft).")
    if not asks_draft(drafter) and not isinstance(options.certificate, TunedChoice):  # nobody named a preferred drafter
        raise UserError(
            f"The drafter '{drafter}' asks no draft model, so that a lighter one changes nothing. Name a drafter that "
            "does (--drafter), or leave --draft and its options away."
        )


def held_back(choice: Choice, strict_reason: str) -> Choice:
    """Strict decoding in place of a choice that would ask a gate which has this reservation."""
    if not choice.fell_back and "gate" not in RULES[choice.rule].needs:
        return choice
    return Choice(STRICT, {}, choice.block, choice.drafter, (strict_reason,), fell_back=True)


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
    choice: Choice, certificate: Certificate, options: DecodeOptions, target: PreTrainedModel, drafter: Drafter | None
) -> tuple[str, ...]:
    """Why a proof about other parts does not cover a choice of its rule; empty where it does or nothing can be lost.

    Doubts about rule, settings, K and drafter are not repeated: `choose` has them.
    """
    if choice.drafter == NONE or not choice.block or choice.rule != certificate.rule:
        return ()
    scope, doubts = certificate.scope, []
    is_exact = target.dtype == torch.float32  # there both engines give the same ids
    if not is_exact and options.engine != scope.get("engine", options.engine):
        doubts.append(f"the engine is {options.engine}, but {scope['engine']} was certified")
    if choice.drafter == certificate.drafter:
        data = Sources(target, datastore=options.datastore, corpus=options.corpus).behind(choice.drafter)
        if (scope.get("drafting") or {}) != binding_of(drafter):
            doubts.append("drafts end by another policy than the certified ones")
        if data is not None and fingerprint(data) != scope.get("drafter_data"):
            doubts.append("the drafter reads other texts than the certified ones")
    if "rule_data" in scope and fingerprint(*named_files(choice.settings)) != scope["rule_data"]:
        doubts.append("the rule reads other files than the certified ones")
    return tuple(doubts)


def named_certificate(options: DecodeOptions) -> Certificate | None:
    """The certificate that the user names; None without one.

    Raises:
        UserError: the file is missing or damaged.
    """
    if options.certificate is None:
        return None
    from gistgate.core.certificate import load_certificate

    return load_certificate(options.certificate)


def load_gate(gate: Any, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: Any) -> Gate | None:
    """The gate, checked against its partners; one that is loaded already was checked by whoever loaded it.

    Raises:
        UserError: the gate cannot be read, or it was trained for another architecture.
    """
    if gate is None or isinstance(gate, Gate):
        return gate
    return Gate.load(gate, target=target, draft=draft, tokenizer=tokenizer, other_weights=True)


def options_from(
    arguments: dict[str, Any], load: Callable[[DecodeOptions], DecodeOptions] | None = None
) -> DecodeOptions:
    """Remove wishes and settings of the rule from keyword arguments, such as `rule="fly", theta=0.9`, and return them.

    `load` may put loaded parts in place of names before the certificate beside a gate is looked at.

    Raises:
        UserError: there is no such rule, or a certificate cannot be read.
    """
    options = DecodeOptions(**take_options(dict(arguments)))
    options = options if load is None else load(options)
    if options.segments:
        from gistgate.segments.build import take_segment_settings

        settings = take_segment_settings(arguments)
    else:
        settings = take_settings(rule_of(options), arguments)  # first: a rule may have a setting called `budget`
    return DecodeOptions(settings=settings, **{name: getattr(options, name) for name in take_options(arguments)})


def rule_of(options: DecodeOptions) -> str:
    """The rule whose settings may stand beside these wishes.

    Raises:
        UserError: a certificate cannot be read.
    """
    if options.rule is not None:
        return options.rule
    certificate = named_certificate(options)
    if certificate is None and options.gate is not None:
        certificate = options.gate.certificate if isinstance(options.gate, Gate) else read_certificate(options.gate)
    return certificate.rule if certificate else (GATED if options.gate is not None else STRICT)
