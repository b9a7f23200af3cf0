"""From what a user says (names, folders, numbers) to drafters and decoders."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.files import fingerprint, named_files, read_json, read_text
from gistgate.core.reader import num_ids
from gistgate.core.utils import UserError, nearest
from gistgate.coverage.certificate import (
    CERTIFICATE_FILE,
    Certificate,
    check_parts,
    load_certificate,
    read_certificate,
)
from gistgate.coverage.choose import GATED, NONE, STRICT, Choice, Policy, choose
from gistgate.drafters import DRAFTERS
from gistgate.drafters.model import ModelDrafter
from gistgate.gate import Gate
from gistgate.models.loading import load_draft
from gistgate.models.options import NAMES, DecodeOptions
from gistgate.rules import RULES, complete, make_rule, meant

CORPUS = "corpus"
HYBRID = "hybrid"
STOPPING = ("model", "tree", HYBRID)  # drafters whose drafts may end before K tokens
STORED = (
    "sen",
    "sen-lexical",
    "sen-tree",
    "sen-tree-lexical",
)  # read a datastore; the lexical ones ask for no states
KNOWN = (*DRAFTERS, *STORED, CORPUS, NONE)  # every id, plain decoding included


@dataclass(frozen=True)
class Sources:
    """What a drafter may be made of."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None  # reads the corpus
    draft: PreTrainedModel | None = None
    datastore: str | Path | None = None  # folder of a datastore of this target
    corpus: str | Path | None = None  # text file, one training text per line
    stopping: Any = (
        None  # when drafts end: a `Stopping`, its file, or a confidence; None: at K tokens
    )

    def behind(self, drafter: str) -> Path | None:
        """The folder or file that a drafter knows texts from; None for a drafter that knows nothing
        but the request.
        """
        data = self.corpus if drafter == CORPUS else self.datastore if drafter in STORED else None
        return None if data is None else Path(data)


def make_drafter(drafter: str, sources: Sources) -> Drafter | None:
    """A drafter by id; "none" is plain decoding."""
    if drafter not in KNOWN:
        raise UserError(f"There is no drafter '{drafter}'. {nearest(drafter, list(KNOWN))}")
    stopping = sources.stopping
    if stopping is not None and drafter not in STOPPING:
        raise UserError(
            f"'{drafter}' never ends drafts early. Leave stop_drafting away or take"
            f" {', '.join(STOPPING)}."
        )
    if isinstance(stopping, str | Path | float | int):
        from gistgate.drafters.stopping import stopping_from

        stopping = stopping_from(stopping)
    if drafter == NONE:
        return None
    if drafter in STORED:
        from gistgate.retrieval.sense import SenseDrafter, SenseTree
        from gistgate.retrieval.store import Datastore

        if sources.datastore is None:
            raise UserError(
                f"The drafter '{drafter}' reads a datastore. Name its folder as datastore=<folder>."
            )
        kind = SenseTree if drafter.startswith("sen-tree") else SenseDrafter
        store = Datastore.load(sources.datastore, sources.target)
        return kind(store, semantic=not drafter.endswith("-lexical"))
    if drafter == CORPUS:
        from gistgate.retrieval.corpus import CorpusDrafter, SuffixArray

        if sources.corpus is None or sources.tokenizer is None:
            raise UserError(
                "The drafter 'corpus' looks up texts. Name a file with one text per line as"
                " corpus=<file>."
            )
        texts = [
            line.removesuffix("\r")
            for line in read_text(sources.corpus).split("\n")
            if line.strip()
        ]
        if not texts:
            raise UserError(
                f"{sources.corpus} holds no text. Put one training text into every line."
            )
        # Without the tokens that a tokenizer puts around a text.
        return CorpusDrafter(
            SuffixArray.build(sources.tokenizer(texts, add_special_tokens=False).input_ids)
        )
    parts: tuple[Any, ...] = ()
    if asks_draft(drafter):
        if sources.draft is None:
            raise UserError(
                f"The drafter '{drafter}' needs a draft model. Name one (--draft), or take"
                " 'lookup'."
            )
        if drafter == HYBRID:
            return hybrid(sources.draft, stopping)
        parts = (sources.draft,)
    made: Drafter = DRAFTERS[drafter](
        *parts, **({} if stopping is None else {"stopping": stopping})
    )
    return made


def asks_draft(drafter: str) -> bool:
    """Whether a drafter drafts with the draft model, alone or among others: certificates then bind
    that model.
    """
    return drafter == HYBRID or (
        drafter in DRAFTERS and issubclass(DRAFTERS[drafter], ModelDrafter)
    )


def hybrid(draft: PreTrainedModel, stopping: Any) -> Drafter:
    """Repetitions in the text and the draft model, weighed by the costs that the policy was made
    with.
    """
    from gistgate.drafters.adaptive import Costs, ModelOrTextDrafter

    measured = {} if stopping is None else stopping.measured
    if not {"block", "cost", "verify"} <= measured.keys():
        raise UserError(
            "The drafter 'hybrid' needs measured costs, those of `gistgate fit-draft`, as"
            " stop_drafting."
        )
    block = int(measured["block"])
    verify = measured["verify"]
    by_block = (
        verify if isinstance(verify, dict) else {block: verify}
    )  # older files have the cost at K alone
    costs = Costs(
        1.0, float(measured["cost"]), {int(num): float(cost) for num, cost in by_block.items()}
    )
    return ModelOrTextDrafter(ModelDrafter(draft, stopping), costs, block)


TUNED = "tuned"
MEASURED = "speed.json"
"""The folder, in that of a gate, of what `gistgate tune` found fastest on a machine; its file with
the measurement.
"""
DECIDES = (
    "certificate",
    "rule",
    "settings",
    "block",
    "drafter",
    "budget",
    "confidence",
    "segments",
)
"""Options that say themselves what runs; with any of them the tuned choice is left aside."""


class TunedChoice(str):
    """The folder of a certificate that nobody named: where it does not hold it is left aside
    instead of refused.
    """


def tuned_choice(options: DecodeOptions) -> DecodeOptions:
    """The options with the tuned certificate, where there is one and the user leaves the choice
    open.
    """
    if not isinstance(options.gate, str | Path) or any(
        getattr(options, name) not in (None, {}) for name in DECIDES
    ):
        return options
    place = Path(options.gate) / TUNED
    if not (place / CERTIFICATE_FILE).is_file():
        return options
    try:
        measured = read_json(place / MEASURED)["certificate"]
    except (KeyError, TypeError, UserError):  # missing or cut
        measured = ""
    if measured != chosen_among(options.gate):
        warnings.warn(
            f"{place} is damaged, or was chosen when the gate had another certificate, and is left"
            " aside. Run `gistgate tune` again.",
            stacklevel=3,
        )
        return options
    return replace(options, certificate=TunedChoice(place))


def chosen_among(gate: str | Path) -> str | None:
    """What tells the gate's own certificate from others; None where it has none."""
    file = Path(gate) / CERTIFICATE_FILE
    return fingerprint(file) if file.is_file() else None


def build_decoder(
    target: PreTrainedModel,
    tokenizer: Any,
    options: DecodeOptions | None = None,
    policy: Policy = "warn",
) -> Decoder:
    """A decoder around a loaded target. docs/troubleshooting.md says which rule and setting it runs
    with.

    `tokenizer` is the target's, None where nobody looks for stop strings; `policy` says what
    happens to doubts about the certificate. Names that do not exist and parts or options that
    contradict each other are a UserError.
    """
    options = tuned_choice(options or DecodeOptions())
    draft = (
        None
        if options.draft is None
        else load_draft(options.draft, target, tokenizer, **options.lighter)
    )
    gate = load_gate(options.gate, target, draft, tokenizer)
    shared: dict[str, Any] = {"engine": options.engine, "speculate_up_to": options.most_rows}
    if options.guards:
        from gistgate.core.guards import check_guards, make_guards

        shared["guards"] = make_guards(options.guards, options.gate, tokenizer)
        check_guards(shared["guards"], gate, target)
    parts = (target, tokenizer, draft, gate)
    if (
        isinstance(options.certificate, TunedChoice)
        and gate is not None
        and gate.strict_reason is not None
    ):
        tuned = read_certificate(
            options.certificate
        )  # one of other weights is of no use where they hold the gate back
        if tuned is None or tuned.mismatch(target=target, draft=draft):
            options = replace(options, certificate=None)
    try:
        return decoder_of(*parts, options, policy, **shared)
    except UserError as error:
        if not isinstance(options.certificate, TunedChoice):
            raise
        warnings.warn(
            "What `gistgate tune` chose is left aside: it does not go with these options "
            f"({str(error).partition(':')[0]}). Tune again with them to have a choice.",
            stacklevel=2,
        )
    return decoder_of(*parts, replace(options, certificate=None), policy, **shared)


def load_gate(
    gate: Any, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: Any
) -> Gate | None:
    """The gate, checked against its partners; one that is loaded already was checked by whoever
    loaded it.
    """
    if gate is None or isinstance(gate, Gate):
        return gate
    return Gate.load(gate, target=target, draft=draft, tokenizer=tokenizer, other_weights=True)


def decoder_of(
    target: PreTrainedModel,
    tokenizer: Any,
    draft: PreTrainedModel | None,
    gate: Gate | None,
    options: DecodeOptions,
    policy: Policy,
    **shared: Any,
) -> Decoder:
    """The decoder of loaded parts; `shared` go to `Decoder`."""
    certificate = named_certificate(options)
    if options.segments and certificate is None:
        from gistgate.segments.build import build_segments

        return build_segments(target, draft, tokenizer, gate, options, policy, **shared)
    known = certificate or (gate.certificate if gate else None)
    choice = choose(options, known, has_gate=gate is not None, has_draft=draft is not None)
    sources = Sources(
        target, tokenizer, draft, options.datastore, options.corpus, options.stop_drafting
    )
    check_used(options, choice.drafter, sources)
    drafter = make_drafter(choice.drafter, sources)
    fitted = (
        drafter.stopping.measured.get("rule")
        if drafter is not None and drafter.stopping is not None
        else None
    )
    if fitted not in (None, choice.rule):
        warnings.warn(
            f"The ends of drafts were fitted to the rule '{fitted}', and '{choice.rule}' keeps"
            " another share of a draft. Nothing is lost but speed; fit them again with `gistgate"
            " fit-draft --rule`.",
            stacklevel=2,
        )
    if certificate is not None:
        used: dict[str, Any] = {
            "engine": options.engine,
            "guards": options.guards,
            "drafting": binding_of(drafter),
        }
        used |= {"data": sources.behind(choice.drafter), "settings": choice.settings}
        check_parts(certificate, gate, target, draft, tokenizer, **used)
    elif known is not None:
        choice = replace(
            choice, doubts=(*choice.doubts, *other_parts(choice, known, options, target, drafter))
        )
    asks_gate = choice.fell_back or "gate" in RULES[choice.rule].needs
    if certificate is None and gate is not None and gate.strict_reason is not None and asks_gate:
        choice = Choice(
            STRICT, {}, choice.block, choice.drafter, (gate.strict_reason,), fell_back=True
        )
    choice.warn(policy)
    decoder = assemble(target, tokenizer, choice, drafter, gate, **shared)
    decoder.certificate = certificate
    return decoder


def check_used(options: DecodeOptions, drafter: str, sources: Sources) -> None:
    """Refuse options about drafts that this drafter would ignore: texts, and a lighter draft
    model.
    """
    for name, is_read in (("corpus", drafter == CORPUS), ("datastore", drafter in STORED)):
        if getattr(options, name) is not None and not is_read:
            raise UserError(
                f"The drafter '{drafter}' reads no {name}. Name one that does, or leave it away."
            )
    if options.quantise_draft in (None, "none") and not options.draft_vocabulary:
        return
    if sources.draft is None:
        raise UserError(
            "There is no draft model to make lighter. Name it as draft=<name or folder> (--draft)."
        )
    if not asks_draft(drafter) and not isinstance(
        options.certificate, TunedChoice
    ):  # nobody named a tuned drafter
        raise UserError(
            f"The drafter '{drafter}' asks no draft model. Name one that does, or leave --draft"
            " away."
        )


def assemble(
    target: PreTrainedModel,
    tokenizer: Any,
    choice: Choice,
    drafter: Drafter | None,
    gate: Any = None,
    **parts: Any,
) -> Decoder:
    """The decoder of a choice whose parts are made; `parts` go to `Decoder`."""
    rule = make_rule(choice.rule, **choice.settings)
    parts = {"vocabulary": None if tokenizer is None else num_ids(tokenizer), **parts}
    return Decoder(target, drafter, rule, choice.block, gate=gate, tokenizer=tokenizer, **parts)


def binding_of(drafter: Drafter | None) -> dict[str, Any]:
    """What decides the proposals of a drafter besides texts and models."""
    return {} if drafter is None else drafter.binding


def other_parts(
    choice: Choice,
    certificate: Certificate,
    options: DecodeOptions,
    target: PreTrainedModel,
    drafter: Drafter | None,
) -> tuple[str, ...]:
    """Why a certificate of other parts does not cover a choice, besides the doubts that `choose`
    has.
    """
    if choice.drafter == NONE or not choice.block or choice.rule != certificate.rule:
        return ()
    scope = certificate.scope
    doubts = []
    is_exact = target.dtype == torch.float32  # there both engines give the same ids
    if not is_exact and options.engine != scope.get("engine", options.engine):
        doubts.append(f"the engine is {options.engine}, but {scope['engine']} was certified")
    if choice.drafter == certificate.drafter:
        data = Sources(target, datastore=options.datastore, corpus=options.corpus).behind(
            choice.drafter
        )
        if (scope.get("drafting") or {}) != binding_of(drafter):
            doubts.append("drafts end by another policy than the certified ones")
        if data is not None and fingerprint(data) != scope.get("drafter_data"):
            doubts.append("the drafter reads other texts than the certified ones")
    if "rule_data" in scope and fingerprint(*named_files(choice.settings)) != scope["rule_data"]:
        doubts.append("the rule reads other files than the certified ones")
    return tuple(doubts)


def named_certificate(options: DecodeOptions) -> Certificate | None:
    """The certificate that the user names; None without one."""
    return None if options.certificate is None else load_certificate(options.certificate)


def options_from(
    arguments: dict[str, Any], load: Callable[..., DecodeOptions] = lambda said: said
) -> DecodeOptions:
    """Take options and settings of the rule out of keyword arguments; `load` may put loaded parts
    in place of names.
    """
    options = load(DecodeOptions(**{name: arguments[name] for name in NAMES if name in arguments}))
    if options.segments:
        from gistgate.segments.build import SETTINGS

        settings = {name: arguments.pop(name) for name in SETTINGS if name in arguments}
    else:
        certificate = named_certificate(options)
        gate = options.gate
        if certificate is None and gate is not None and options.rule is None:
            certificate = gate.certificate if isinstance(gate, Gate) else read_certificate(gate)
        usual = certificate.rule if certificate else GATED if gate is not None else STRICT
        names = complete(meant(options.rule or usual)[0], {})
        settings = {name: arguments.pop(name) for name in names if name in arguments}
    # Settings go first: a rule may have one called `budget`.
    taken = [name for name in NAMES if arguments.pop(name, None) is not None]
    return DecodeOptions(settings=settings, **{name: getattr(options, name) for name in taken})
