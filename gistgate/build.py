"""From what a user says (names, folders, numbers) to a decoder, and to the certificate that it runs
under.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.compiled import ENGINES
from gistgate.core.architecture import num_ids
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.files import fingerprint
from gistgate.core.utils import UserError
from gistgate.coverage.ask import UNKNOWN, Ask
from gistgate.coverage.certificate import Certificate, load_certificate, read_certificate
from gistgate.coverage.choose import GATED, STRICT, Choice, Policy, choose
from gistgate.coverage.covers import HOLDS_NOT, Coverage, covers, refusal
from gistgate.coverage.setup import Setup, files_behind
from gistgate.gate import Gate
from gistgate.models.loading import load_draft
from gistgate.models.options import NAMES, DecodeOptions
from gistgate.models.sources import CORPUS, STORED, Sources, asks_draft, make_drafter
from gistgate.models.tuned import tuned_certificate
from gistgate.rules import RULES, complete, make_rule, meant


@dataclass(frozen=True)
class Built:
    """A decoder, and the certificate that it runs under."""

    decoder: Decoder
    coverage: Coverage


def build(
    target: PreTrainedModel,
    tokenizer: Any,
    options: DecodeOptions | None = None,
    policy: Policy = "warn",
    tuned: Certificate | None = None,
) -> Built:
    """A decoder around a loaded target. docs/troubleshooting.md says which rule and setting it runs
    with.

    Args:
        target: any decoder-only transformers model with attention caches.
        tokenizer: the target's; None where nobody looks for stop strings.
        options: the parts and settings that the user names.
        policy: what happens to doubts about the certificate.
        tuned: what `gistgate tune` chose; by default it is looked for beside the gate.

    Raises UserError for names that do not exist, and parts or options that contradict each other.
    """
    return Builder(target, tokenizer, options or DecodeOptions()).build(policy, tuned)


class Builder:
    """The parts that a user names, each loaded when it is first asked for, and decoders of them."""

    def __init__(self, target: PreTrainedModel, tokenizer: Any, options: DecodeOptions) -> None:
        _ = ENGINES[options.engine]  # a wrong name is refused before anything is loaded
        self.target = target
        self.tokenizer = tokenizer
        self.options = options

    def loaded(self) -> "Builder":
        """The same builder with draft and gate loaded, so that wrong names are refused first."""
        _ = (self.draft, self.gate)
        return self

    def build(self, policy: Policy = "warn", tuned: Certificate | None = None) -> Built:
        """The decoder of a named certificate, of segments, of what `gistgate tune` chose, or of the
        options and the certificate beside the gate.
        """
        options = self.options
        if options.certificate is not None:
            return self.certified(load_certificate(options.certificate))
        if options.segments:
            return self.of_segments(policy)
        tuned = tuned or tuned_certificate(options)
        if tuned is not None:
            try:
                return self.certified(tuned, is_tuned=True)
            except UserError as error:
                clause = str(error).removeprefix(HOLDS_NOT).partition(". ")[0]
                warnings.warn(
                    "What `gistgate tune` chose is left aside: it does not go with these options"
                    f" ({clause}). Tune again with them to have a choice.",
                    stacklevel=3,
                )
        return self.beside(policy)

    def of_segments(self, policy: Policy) -> Built:
        """The decoder that judges whole segments, which were certified for greedy decoding."""
        from gistgate.segments.build import build_segments

        parts = (self.target, self.draft, self.tokenizer, self.gate)
        decoder = build_segments(*parts, self.options, policy, **self.shared)
        return Built(decoder, Coverage(certified=Ask(temperature=0.0)))

    @cached_property
    def draft(self) -> PreTrainedModel | None:
        """The draft model, as light as the options say."""
        options = self.options
        if options.draft is None:
            if options.draft_gguf is not None:
                raise UserError(
                    f"--draft-gguf {options.draft_gguf} is of a draft, and no draft is named. Name"
                    " it (--draft)."
                )
            return None
        return load_draft(options.draft, self.target, self.tokenizer, **options.lighter)

    @cached_property
    def gate(self) -> Gate | None:
        """The gate, checked against its partners; one that is loaded already was checked by whoever
        loaded it.
        """
        gate = self.options.gate
        if gate is None or isinstance(gate, Gate):
            return gate
        return Gate.load(gate, self.target, self.draft, self.tokenizer, other_weights=True)

    @cached_property
    def sources(self) -> Sources:
        """What drafters are made of."""
        options = self.options
        texts = (options.datastore, options.corpus)
        return Sources(self.target, self.tokenizer, self.draft, *texts, options.stop_drafting)

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Arguments of `Decoder` that no choice decides."""
        options = self.options
        arguments: dict[str, Any] = {
            "engine": options.engine,
            "speculate_up_to": options.speculate_up_to,
        }
        if options.guards:
            from gistgate.core.guards import check_guards, make_guards

            guards = make_guards(options.guards, options.gate, self.tokenizer)
            check_guards(guards, self.gate, self.target)
            arguments["guards"] = guards
        return arguments

    def certified(self, certificate: Certificate, is_tuned: bool = False) -> Built:
        """The decoder that a named certificate describes; UserError where it covers not all of
        it.
        """
        if self.options.segments:
            raise UserError(
                "The certificate is about a rule for tokens, and segments are asked for. Leave one"
                " of both away."
            )
        shared = self.shared
        wish = self.options.wish
        choice = choose(replace(wish, names_certificate=True), certificate)
        if choice.fell_back:
            raise UserError(
                f"The certificate has {certificate.refusal(wish.budget, wish.confidence)}. Ask for"
                " a certified budget, or decode without the certificate."
            )
        drafter = self.drafter_of(choice, is_tuned)
        setup = self.setup(certificate, choice, drafter)
        models = Setup.of(self.target, self.draft, self.tokenizer, self.gate)
        doubts = list(choice.doubts)
        for part in (models, setup):
            doubts += [difference.sentence for difference in covers(certificate, part)]
        if doubts:
            raise UserError(refusal("; ".join(doubts)))
        decoder = self.assemble(choice, drafter, **shared)
        coverage = Coverage(certificate, True, certificate.ask, choice.within(setup))
        return Built(decoder, coverage)

    def beside(self, policy: Policy) -> Built:
        """The decoder of the options and of the certificate beside the gate, where there is one."""
        shared = self.shared
        gate = self.gate
        certificate = None if gate is None else gate.certificate
        choice = choose(
            self.options.wish,
            certificate,
            has_gate=gate is not None,
            has_draft=self.draft is not None,
        )
        drafter = self.drafter_of(choice)
        setup = Setup()
        if certificate is not None:
            setup = self.setup(certificate, choice, drafter)
            if choice.rule == certificate.rule and not choice.is_plain:
                differences = covers(certificate, setup)
                choice = choice.doubted(*(difference.sentence for difference in differences))
        asks_gate = choice.fell_back or "gate" in RULES[choice.rule].needs
        if gate is not None and gate.strict_reason is not None and asks_gate:
            choice = choice.strict(gate.strict_reason)
        choice.warn(policy, stacklevel=4)
        decoder = self.assemble(choice, drafter, **shared)
        return Built(decoder, Coverage.beside(gate, decoder.rule, choice.within(setup)))

    def setup(self, certificate: Certificate, choice: Choice, drafter: Drafter | None) -> Setup:
        """What decodes a choice besides models, gate and the choice itself."""
        drafting: Any = UNKNOWN
        drafter_data: Any = UNKNOWN
        if choice.drafter == certificate.drafter:
            drafting = (drafter.binding or None) if drafter else None
            data = self.sources.behind(choice.drafter)
            if data is not None:
                drafter_data = fingerprint(data)
        is_bound = certificate.setup.rule_data is not UNKNOWN
        # In float32 both engines give the same ids.
        is_exact = self.target.dtype == torch.float32
        return Setup(
            drafting=drafting,
            drafter_data=drafter_data,
            rule_data=files_behind(choice.settings) if is_bound else UNKNOWN,
            engine=UNKNOWN if is_exact else self.options.engine,
            guards=list(self.options.guards),
        )

    def drafter_of(self, choice: Choice, is_tuned: bool = False) -> Drafter | None:
        """The drafter of a choice; warns where its drafts end by the policy of another rule."""
        check_used(self.options, choice.drafter, self.sources, is_tuned)
        drafter = make_drafter(choice.drafter, self.sources)
        stopping = None if drafter is None else drafter.stopping
        fitted = None if stopping is None else stopping.measured.get("rule")
        if fitted not in (None, choice.rule):
            warnings.warn(
                f"The ends of drafts were fitted to the rule '{fitted}', and '{choice.rule}' keeps"
                " another share of a draft. Nothing is lost but speed; fit them again with"
                " `gistgate fit-draft --rule`.",
                stacklevel=2,
            )
        return drafter

    def assemble(self, choice: Choice, drafter: Drafter | None, **parts: Any) -> Decoder:
        """The decoder of a choice; a strict one asks no gate."""
        return assemble(self.target, self.tokenizer, choice, drafter, self.gate, **parts)


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
    parts.setdefault("vocabulary", None if tokenizer is None else num_ids(tokenizer))
    return Decoder(target, drafter, rule, choice.block, gate=gate, tokenizer=tokenizer, **parts)


def check_used(
    options: DecodeOptions, drafter: str, sources: Sources, is_tuned: bool = False
) -> None:
    """Refuse options about drafts that this drafter would ignore: texts, and a lighter draft model
    (but where nobody named the drafter, as it was tuned).
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
    if not asks_draft(drafter) and not is_tuned:
        raise UserError(
            f"The drafter '{drafter}' asks no draft model. Name one that does, or leave --draft"
            " away."
        )


def options_from(arguments: dict[str, Any]) -> DecodeOptions:
    """Take options and settings of the rule out of keyword arguments."""
    options = DecodeOptions(**{name: arguments[name] for name in NAMES if name in arguments})
    # Settings go first: a rule may have one called `budget`.
    settings = {}
    for name in setting_names(options):
        if name in arguments:
            settings[name] = arguments.pop(name)
    named = [name for name in NAMES if arguments.pop(name, None) is not None]
    return DecodeOptions(settings=settings, **{name: getattr(options, name) for name in named})


def setting_names(options: DecodeOptions) -> list[str]:
    """The settings of the rule, or of segments, that runs by these options."""
    if options.segments:
        from gistgate.segments.build import SETTINGS

        return list(SETTINGS)
    gate = options.gate
    certificate = None
    if options.certificate is not None:
        certificate = load_certificate(options.certificate)
    elif gate is not None and options.rule is None:
        certificate = gate.certificate if isinstance(gate, Gate) else read_certificate(gate)
    usual = STRICT if gate is None else GATED
    if certificate is not None:
        usual = certificate.rule
    return list(complete(meant(options.rule or usual)[0], {}))
