"""Whether a certificate covers what decodes (`covers`) and what it is asked (`Coverage.meet`), with
one sentence for each kind of difference. Callers choose to refuse, to warn or to decode strictly.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.core.identity import LIGHTER
from gistgate.core.rule import Rule
from gistgate.core.utils import UserError
from gistgate.coverage.ask import UNKNOWN, Ask
from gistgate.coverage.certificate import Certificate
from gistgate.coverage.setup import LIBRARY, Setup, is_server, known_fields
from gistgate.rules import complete

SENTENCES = {
    "target": "the target is another one ({certified} certified, {here} here)",
    "draft": "the draft model is another one ({certified} certified, {here} here)",
    "tokenizer": "the tokenizer has another vocabulary ({certified} certified, {here} here)",
    "encoding": "the tokenizer divides texts in another way ({certified} certified, {here} here)",
    "template": "the chat template is another one ({certified} certified, {here} here)",
    "ends": "answers end at the tokens {here}, but {certified} were certified",
    "gate": "the gate is another one ({certified} certified, {here} here)",
    "rule": "the rule '{certified}' was certified, not '{here}'",
    "setting": "{name} is {here}, but {certified} was certified",
    "knob": "{name} {here} is not among the certified values ({certified})",
    "rule_data": "the rule reads other files than the certified ones",
    "drafter": "drafter is {here}, but {certified} was certified",
    "drafter_data": "the drafter reads other texts than the certified ones",
    "drafting": "drafts end by another policy than the certified ones",
    "block": "block is {here}, but {certified} was certified",
    "engine": "the engine is {here}, but {certified} was certified",
    "guards": "the guards are {here}, but {certified} were certified",
    "temperature": "the temperature is {here}, but {certified} was certified",
    "chat": "the use of the chat template is {here}, but {certified} was certified",
    "system": "the system text is {here}, but {certified} was certified",
    "num_fewshot": "the solved examples are {here}, but {certified} were certified",
    "arguments": "the arguments of the chat template are {here}, but {certified} were certified",
    "stops": "answers end at the texts {here}, but {certified} were certified",
}
"""The clause for each kind of difference."""
CHOICE = ("rule", "settings")  # fields of a setup that are compared by the rule's own settings


@dataclass(frozen=True)
class Difference:
    """One thing in which a decoder or a request is not the certified one."""

    kind: str  # key of SENTENCES
    certified: Any
    here: Any
    name: str = ""  # of a setting

    @property
    def sentence(self) -> str:
        """The clause that names the thing with both values; of models only what differs."""
        certified = self.certified
        here = self.here
        if isinstance(certified, Mapping) and isinstance(here, Mapping):
            names = differing_entries(certified, here)
            certified = listed(certified, names)
            here = listed(here, names)
        return SENTENCES[self.kind].format(
            name=self.name, certified=shortened(certified), here=shortened(here)
        )


def covers(certificate: Certificate, setup: Setup) -> list[Difference]:
    """What is not as certified; empty where the certificate covers all of `setup`.

    What one side does not know is not compared. Another rule is the only difference that is told,
    since nothing about it was certified.
    """
    if setup.rule not in (UNKNOWN, certificate.rule):
        return [Difference("rule", certificate.rule, setup.rule)]
    differences = []
    if setup.settings is not UNKNOWN:
        differences += differing_settings(certificate, setup.settings)
    return [*differences, *differing_fields(certificate.setup, setup)]


def differing_fields(certified: Setup | Ask, here: Setup | Ask) -> list[Difference]:
    """The differences of two setups or two asks, the rule's settings left aside."""
    expected = known_fields(certified)
    differences = []
    for name, value in known_fields(here).items():
        if name in CHOICE or name not in expected:
            continue
        if name in ("target", "draft"):
            differs = bool(differing_entries(expected[name], value))
        elif value == LIBRARY:
            differs = is_server(expected[name])
        else:
            differs = value != expected[name]
        if differs:
            differences.append(Difference(name, expected[name], value))
    return differences


def differing_settings(certificate: Certificate, settings: Mapping[str, Any]) -> list[Difference]:
    """The differences of a rule's settings; those that nobody names are at their defaults."""
    certified = complete(certificate.rule, certificate.fixed)
    differences = []
    for name, value in complete(certificate.rule, settings).items():
        if name == certificate.knob:
            values = [point.settings[name] for point in certificate.certified]
            if value not in values:
                texts = ", ".join(f"{number:g}" for number in values) or "none"
                differences.append(Difference("knob", texts, f"{value:g}", name))
        elif value != certified[name]:
            differences.append(Difference("setting", certified[name], value, name))
    return differences


def differing_entries(certified: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """The sorted names of entries that differ.

    Of a model, of which perhaps the fingerprint alone is known, entries that are not known here are
    not compared, apart from how a draft was made lighter; nor is a fingerprint that one side lacks.
    """
    is_model = "fingerprint" in here
    names = []
    for name in sorted({*here, *(LIGHTER if is_model else certified)}):
        values = (certified.get(name), here.get(name))
        if values[0] != values[1] and not (name == "fingerprint" and None in values):
            names.append(name)
    return names


def listed(entries: Mapping[str, Any], names: Sequence[str]) -> str:
    """Some entries as text: name and value."""
    return ", ".join(f"{name} {shortened(entries.get(name))}" for name in names)


def shortened(value: Any) -> str:
    """A value as text; of a long word, such as a hash, the beginning."""
    if value is None or value in ([], {}):
        return "none"
    text = str(value)
    return f"{text[:10]}..." if len(text) > 24 and " " not in text else text


def joined(differences: Sequence[Difference]) -> str:
    """The clauses of several differences."""
    return "; ".join(difference.sentence for difference in differences)


HOLDS_NOT = "The certificate does not hold here: "


def refusal(clauses: str) -> str:
    """The sentence about a certificate that does not hold, for `clauses` of differences."""
    return f"{HOLDS_NOT}{clauses}. Calibrate this combination, or decode without the certificate."


def refuse(differences: Sequence[Difference]) -> None:
    """Raise a UserError that names the differences, where there are any."""
    if differences:
        raise UserError(refusal(joined(differences)))


NOTHING_KNOWN = Setup()


@dataclass(frozen=True)
class Coverage:
    """The certificate that a decoder runs under, and what its requests are compared with."""

    certificate: Certificate | None = None
    is_named: bool = False  # by a user or by `gistgate tune`: what it does not cover is refused
    certified: Ask | None = None  # None where no certificate is about this decoder
    setup: Setup = NOTHING_KNOWN  # what decodes

    @classmethod
    def beside(cls, gate: Any, rule: Rule, setup: Setup = NOTHING_KNOWN) -> "Coverage":
        """The certificate beside a gate; it is about requests where `rule` is the certified one."""
        certificate = getattr(gate, "certificate", None)
        if certificate is None or rule.knob is None or rule.id != certificate.rule:
            return cls(certificate, setup=setup)
        return cls(certificate, certified=certificate.ask, setup=setup)

    def meet(self, ask: Ask) -> str | None:
        """Compare requests with the certified ones: refuse them under a named certificate, else
        warn and return the sentence.
        """
        if self.certified is None:
            return None
        differences = differing_fields(self.certified, ask)
        if self.is_named:
            refuse(differences)
        if not differences:
            return None
        sentence = joined(differences)
        warnings.warn(f"No certificate covers these requests: {sentence}.", stacklevel=3)
        return sentence

    def stops(self, named: Sequence[str] | None) -> list[str]:
        """The texts that end answers: those that somebody names, else the certified ones."""
        if named is None and self.certificate is not None:
            return list(self.certificate.scope.get("stops", ()))
        return list(named or ())
