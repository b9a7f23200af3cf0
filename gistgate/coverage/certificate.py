"""What calibration proved about one rule on exactly the combination that a scope names:
`certificate.json`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.core.files import check_sealed, fingerprint, named_files, read_sealed, write_sealed
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError, dataclass_from, refusing

CERTIFICATE_FILE = "certificate.json"
OTHERS = (  # folder beside it, where calibration keeps a gate's certificates of other tasks
    "certificates"
)
FORMAT_VERSION = 2  # of the file's layout
TASK = "task"  # score in whose unit the budgets of a gate are: the task's own metric


@dataclass(frozen=True)
class OperatingPoint:
    """What calibration found for one budget."""

    # largest mean loss that was to be certified, in the unit of the score (0.03 is 3 points of
    # accuracy)
    budget: float
    confidence: float  # probability with which the bound holds, over the draw of the prompts
    settings: dict[
        str, Any
    ]  # all of the rule: of the loosest certified setting, or of the strictest one tested
    n: int  # calibration prompts that the setting was tested on
    losses: int  # prompts on which loose decoding scored lower than strict decoding
    gains: int  # prompts on which loose decoding scored higher
    loss: float  # mean of strict - loose score; negative where loose decoding scored better
    bound: float  # one-sided upper bound on that mean
    bound_kind: str  # which bound it is
    harm: float  # mean of max(strict - loose, 0)
    harm_bound: float  # upper bound on the harm by Hoeffding-Bentkus; no budget limits it
    certified: bool  # whether the bound keeps the budget
    # tokens per target forward on the calibration prompts, the target's own token included
    mean_accepted_length: float
    growth: float | None = (
        None  # by what share answers were longer than the strict ones, on average
    )
    growth_bound: float | None = (
        None  # upper bound on that share, at the same confidence; None: no lengths were known
    )
    growth_limit: float | None = (
        None  # the largest growth that was to be certified beside the loss; None: any
    )
    refusal: str | None = None  # why nothing is certified and what would help; None after a success


@dataclass(frozen=True)
class Certificate:
    """The calibrated settings of one rule, one for each budget, and the combination that they hold
    for.
    """

    rule: str  # rule id
    drafter: str  # drafter id
    block: int  # K, drafted tokens per round
    knob: str | None  # the setting that was calibrated; None for a rule without one
    score: str  # what was compared: task, logprob or judge
    confidence: float  # probability with which each certificate holds
    headline_budget: float  # the budget that is meant where nobody names one
    scope: dict[
        str, Any
    ]  # hashes of models, tokenizer, gate, task and prompts, and all else that decides the texts
    points: tuple[OperatingPoint, ...]  # one for each budget, from small to large
    sequence: tuple[
        dict[str, Any], ...
    ] = ()  # the settings fixed beforehand, from strict to loose, with their results
    source: str = ""  # where the prompts come from
    made: str = ""  # date in UTC; empty where equal inputs have to give equal bytes
    format_version: int = FORMAT_VERSION  # layout of the file

    @property
    def certified(self) -> tuple[OperatingPoint, ...]:
        """The points whose bound keeps their budget."""
        return tuple(point for point in self.points if point.certified)

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings of the rule that all points share: everything but the knob."""
        return {name: value for name, value in self.points[0].settings.items() if name != self.knob}

    def operating_point(self, budget: float | None = None) -> OperatingPoint:
        """The loosest certified point that keeps `budget` (default: the headline budget)."""
        budget = self.headline_budget if budget is None else budget
        within = [point for point in self.certified if point.budget <= budget + 1e-9]
        if not within:
            known = ", ".join(f"{point.budget:g}" for point in self.certified) or "none"
            raise UserError(
                f"The gate has no setting certified for a budget of {budget:g} (certified:"
                f" {known}). Ask for a larger budget, verify strictly, or calibrate with more"
                " prompts."
            )
        return max(within, key=lambda point: (point.budget, point.mean_accepted_length))

    def save(self, folder: str | Path) -> Path:
        """Write `certificate.json` into a folder and return its path."""
        path = Path(folder) / CERTIFICATE_FILE
        write_sealed(path, asdict(self))
        return path

    def mismatch(
        self,
        gate: Any = None,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        **used: Any,
    ) -> str | None:
        """One sentence about what differs from the certified combination; None where nothing
        differs.

        Parts that are left out are not compared. `used` compares further entries of the scope, such
        as `block=8`.
        """
        found: dict[str, Any] = dict(used)
        if gate is not None:
            found["gate"] = gate_hash(gate)
        for role, model in (("target", target), ("draft", draft)):
            if model is not None and self.scope.get(role) is not None:
                found[role] = model_scope(identify_model(model))
        if tokenizer is not None:
            found |= tokenizer_scope(tokenizer, self.scope)
            if target is not None and "ends" in self.scope:
                found["ends"] = eos_ids(target, tokenizer)
        return scope_mismatch({name: self.scope.get(name) for name in found}, found)


def read_certificate(place: str | Path) -> Certificate | None:
    """The certificate in a folder or a file; None for a folder without one."""
    path = Path(place)
    if path.is_dir() and not (path := path / CERTIFICATE_FILE).exists():
        return None
    value, sealed = read_sealed(path, "certificate", "Calibrate again.", FORMAT_VERSION)
    with refusing(f"{path} is no certificate", "Restore it or calibrate again."):
        certificate = certificate_from(value)
    check_sealed(path, sealed, value)
    return certificate


def certificate_from(value: Mapping[str, Any]) -> Certificate:
    """A certificate from its JSON object; KeyError, TypeError or ValueError says what does not
    fit.
    """
    points = tuple(dataclass_from(OperatingPoint, point) for point in value["points"])
    if not points:
        raise ValueError("it has no operating point")
    return dataclass_from(
        Certificate, {**value, "points": points, "sequence": tuple(value["sequence"])}
    )


def scope_mismatch(certified: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """One sentence about the entries in which two scopes differ; None where they agree. A missing
    entry is None.
    """
    keys = differing_keys(certified, found)
    if not keys:
        return None
    both = [(key, *in_a_sentence(certified.get(key), found.get(key))) for key in keys]
    parts = ", ".join(f"{key} ({one} certified, {other} here)" for key, one, other in both)
    return (
        f"The certificate does not hold here, because of another {parts}: calibrate this"
        " combination, or decode without the certificate."
    )


def differing_keys(certified: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The sorted keys whose values differ; a fingerprint that one side lacks cannot differ."""
    differing = []
    for key in sorted(certified.keys() | found.keys()):
        one = certified.get(key)
        other = found.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            differs = bool(differing_keys(one, other))
        else:
            differs = one != other and not (key == "fingerprint" and None in (one, other))
        if differs:
            differing.append(key)
    return differing


def in_a_sentence(one: Any, other: Any) -> tuple[str, str]:
    """Two entries, of dictionaries only what differs."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return short(one), short(other)
    keys = differing_keys(one, other)
    first, second = (
        ", ".join(f"{key} {short(part.get(key))}" for key in keys) for part in (one, other)
    )
    return first, second


def short(value: Any) -> str:
    text = "none" if value is None or value == [] else str(value)
    return text if len(text) <= 24 else f"{text[:10]}..."


def load_certificate(place: str | Path) -> Certificate:
    """The certificate in a file or a folder."""
    certificate = read_certificate(place)
    if certificate is None:
        raise UserError(
            f"{place} holds no {CERTIFICATE_FILE}. Name another folder, or run `gistgate calibrate`"
            " first."
        )
    return certificate


def check_parts(
    certificate: Certificate,
    gate: torch.nn.Module | None,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: Any,
    *,
    engine: str,
    guards: Sequence[str],
    data: Path | None,
    drafting: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Refuse parts that the certificate was not made with; `data` is the drafter's file, `drafting`
    its `binding`.
    """
    used: dict[str, Any] = {"guards": list(guards), "drafting": drafting or None}
    if target.dtype != torch.float32:
        used["engine"] = engine
    if "rule_data" in certificate.scope:
        used["rule_data"] = files_behind(settings or {})
    if data is not None:
        used["drafter_data"] = fingerprint(data)
    refuse(certificate.mismatch(gate, target, draft, tokenizer, **used))


def files_behind(settings: dict[str, Any]) -> str:
    """Fingerprint of the files that settings of a rule name."""
    found = named_files(settings)
    if not found:
        names = (
            ", ".join(
                f"{name}={value}" for name, value in settings.items() if isinstance(value, str)
            )
            or "none"
        )
        raise UserError(
            f"The file that the certified rule reads is not here ({names}). Start where its path"
            " begins."
        )
    return fingerprint(*found)


def check_request(
    certificate: Certificate,
    *,
    temperature: float = 0.0,
    chat: bool | None = False,
    system: str | None = None,
    num_fewshot: Any = None,
    arguments: Mapping[str, Any] | None = None,
    stops: Sequence[str] | None = None,
) -> None:
    """Refuse requests unlike the certified ones, `arguments` of the template included; None is
    unknown or none.
    """
    scope = certificate.scope
    certified = {
        **scope.get("prompting", {}),
        **({"num_fewshot": scope["examples"]} if "examples" in scope else {}),
    }
    of_template = {
        f"argument {name}": value for name, value in certified.pop("arguments", {}).items()
    }
    asked = {**certified, **({} if chat is None else {"chat_template": chat, "system": system})}
    asked |= (
        {"num_fewshot": num_fewshot}
        if None not in (num_fewshot, certified.get("num_fewshot"))
        else {}
    )
    asked |= of_template if chat is None else {}
    asked |= {f"argument {name}": value for name, value in (arguments or {}).items() if chat}
    known = {"temperature": scope.get("temperature"), "prompting": {**certified, **of_template}}
    found: dict[str, Any] = {"temperature": temperature, "prompting": asked}
    if stops is not None and "stops" in scope:
        known["stops"] = scope["stops"]
        found["stops"] = list(stops)
    refuse(scope_mismatch(known, found))


def stops_of(stops: Sequence[str], tokenizer: Any) -> list[str]:
    """The texts that end answers, without that of the end token, which ends them by its id."""
    return sorted({*stops} - {"", getattr(tokenizer, "eos_token", None)})


def ends_of(decoder: Any, named: Sequence[str] | None) -> list[str]:
    """The texts that end answers: those that somebody names, else those of a certificate, named or
    beside the gate.
    """
    certificate = decoder.certificate or getattr(decoder.parts.gate, "certificate", None)
    return list(
        certificate.scope.get("stops", ()) if named is None and certificate else named or ()
    )


def certificate_in_use(decoder: Any) -> Certificate | None:
    """The certificate beside a decoder's gate, where the decoder is loose by its rule; None
    elsewhere.
    """
    certificate: Certificate | None = getattr(decoder.parts.gate, "certificate", None)
    return (
        certificate
        if certificate and decoder.rule.knob and decoder.rule.id == certificate.rule
        else None
    )


def check_use(decoder: Any, **asked: Any) -> None:
    """Refuse requests that a named certificate does not cover; warn of those that one beside a gate
    does not.
    """
    if decoder.certificate is not None:
        check_request(decoder.certificate, **asked)
    elif (beside := certificate_in_use(decoder)) is not None:
        warn_uncovered(lambda: check_request(beside, **asked))


def check_greedy(temperature: float) -> None:
    """Refuse sampling where segments decide, whose certificates are about greedy decoding."""
    if temperature:
        raise UserError(
            f"Segments were certified for greedy decoding, and the temperature is {temperature:g}"
            " here."
        )


def warn_uncovered(check: Callable[[], None]) -> str | None:
    """Run a check of requests; warn of what it refuses and return it: nobody named the certificate,
    so work goes on.
    """
    try:
        check()
    except UserError as error:
        warnings.warn(f"No certificate covers these requests. {error}", stacklevel=2)
        return str(error)
    return None


def refuse(broken: str | None) -> None:
    """Raise what `mismatch` found."""
    if broken:
        raise UserError(broken)
