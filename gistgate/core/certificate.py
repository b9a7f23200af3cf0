"""What calibration proved about one rule on one pair of models, as the file `certificate.json`, often beside a gate.

A proof holds for exactly the combination that its scope names. Where something differs at use, one sentence says what,
and the combination counts as uncertified.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gistgate.core.files import check_sealed, checksum, fingerprint, named_files, read_json, write_json
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError, dataclass_from, fits

CERTIFICATE_FILE = "certificate.json"
FORMAT_VERSION = 2
"""Version of the file's layout that this code reads and writes."""
TASK = "task"
"""Score in whose unit the budgets of a gate are: the task's own metric."""


@dataclass(frozen=True)
class OperatingPoint:
    """What calibration found for one budget."""

    budget: float
    """Largest mean loss that was to be certified, in the unit of the score (0.03 is 3 points of accuracy)."""
    confidence: float
    """Probability with which the bound holds, over the draw of the prompts."""
    settings: dict[str, Any]
    """All settings of the rule: those of the loosest certified setting, or of the strictest one tested."""
    n: int
    """Calibration prompts that the setting was tested on."""
    losses: int
    """Prompts on which loose decoding scored lower than strict decoding."""
    gains: int
    """Prompts on which loose decoding scored higher."""
    loss: float
    """Mean of strict - loose score; negative where loose decoding scored better."""
    bound: float
    """One-sided upper bound on that mean."""
    bound_kind: str
    """Which bound it is."""
    harm: float
    """Mean of max(strict - loose, 0)."""
    harm_bound: float
    """Upper bound on the harm by Hoeffding-Bentkus; no budget limits it."""
    certified: bool
    """Whether the bound keeps the budget."""
    mean_accepted_length: float
    """Tokens per target forward on the calibration prompts, the target's own token included."""
    refusal: str | None = None
    """Why nothing is certified and what would help; None after a success."""


@dataclass(frozen=True)
class Certificate:
    """The calibrated settings of one rule, one for each budget, and the combination that they hold for."""

    rule: str
    """Rule id."""
    drafter: str
    """Drafter id."""
    block: int
    """K, drafted tokens per round."""
    knob: str | None
    """The setting that was calibrated; None for a rule without one."""
    score: str
    """What was compared: task, logprob or judge."""
    confidence: float
    """Probability with which each certificate holds."""
    headline_budget: float
    """The budget that is meant where nobody names one."""
    scope: dict[str, Any]
    """Hashes of models, tokenizer, gate, task and prompts, and everything else that decides what is decoded."""
    points: tuple[OperatingPoint, ...]
    """One for each budget, from small to large."""
    sequence: tuple[dict[str, Any], ...] = ()
    """The settings that were fixed beforehand, from strict to loose, with what was found for those that were tested."""
    source: str = ""
    """Where the prompts come from."""
    made: str = ""
    """Date in UTC; empty where equal inputs have to give equal bytes."""
    format_version: int = FORMAT_VERSION
    """Layout of the file."""

    @property
    def certified(self) -> tuple[OperatingPoint, ...]:
        """The points whose bound keeps their budget."""
        return tuple(point for point in self.points if point.certified)

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings of the rule that all points share: everything but the knob."""
        return {name: value for name, value in self.points[0].settings.items() if name != self.knob}

    def operating_point(self, budget: float | None = None) -> OperatingPoint:
        """The loosest certified point that keeps `budget` (default: the headline budget).

        Raises:
            UserError: nothing is certified for so small a budget.
        """
        budget = self.headline_budget if budget is None else budget
        within = [point for point in self.certified if point.budget <= budget + 1e-9]
        if not within:
            raise UserError(nothing_certified(budget, self.certified))
        return max(within, key=lambda point: (point.budget, point.mean_accepted_length))

    def save(self, folder: str | Path) -> Path:
        """Write `certificate.json` into a folder and return its path."""
        path = Path(folder) / CERTIFICATE_FILE
        value = asdict(self)
        write_json(path, {**value, "checksum": checksum(value)})
        return path

    def mismatch(
        self,
        gate: Any = None,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        **used: Any,
    ) -> str | None:
        """One sentence about what differs from the certified combination; None where nothing differs.

        Parts that are left out are not compared. `used` compares further entries of the scope, such as `block=8`.
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
    """The proof in a folder or a file; None for a folder without one.

    Raises:
        UserError: the file is damaged or of another version, or there is no such place.
    """
    path = Path(place)
    if path.is_dir():
        path = path / CERTIFICATE_FILE
        if not path.exists() and not path.is_symlink():
            return None
    value = read_json(path)
    sealed = value.pop("checksum", None) if isinstance(value, dict) else None
    version = value.get("format_version") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} is no certificate that this gistgate reads: its format version is {version}, not "
            f"{FORMAT_VERSION}. Calibrate again."
        )
    try:
        certificate = certificate_from(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path} is no certificate: {reason}. Restore it or calibrate again.") from error
    check_sealed(path, sealed, value)
    return certificate


def certificate_from(value: Mapping[str, Any]) -> Certificate:
    """A proof from its JSON object; KeyError, TypeError or ValueError says what does not fit."""
    points = tuple(dataclass_from(OperatingPoint, point) for point in value["points"])
    certificate: Certificate = dataclass_from(
        Certificate, {**value, "points": points, "sequence": tuple(value["sequence"])}
    )
    if not points or certificate.block < 0 or not 0 < certificate.confidence < 1:
        raise ValueError("it has no operating point, or its block or confidence is out of range")
    for point in points:
        check_point(point, certificate.knob)
    return certificate


def check_point(point: OperatingPoint, knob: str | None) -> None:
    """Refuse a point that contradicts itself.

    Raises:
        ValueError: what it says.
    """
    at = f"the point for the budget {point.budget:g}"
    if knob is not None and not fits(point.settings.get(knob), float):
        raise ValueError(f"{at} gives the knob '{knob}' no number")
    if not 0 < point.confidence < 1 or point.n < 1 or min(point.losses, point.gains) < 0:
        raise ValueError(f"{at} has counts or a confidence out of range")
    if point.certified and point.bound > point.budget + 1e-9:
        raise ValueError(f"{at} is called certified, but its bound is {point.bound:g}")


def nothing_certified(budget: float, certified: tuple[OperatingPoint, ...]) -> str:
    """The sentence for a budget that no certified point keeps."""
    known = ", ".join(f"{point.budget:g}" for point in certified) or "none"
    return (
        f"The gate has no setting certified for a budget of {budget:g} (certified: {known}). "
        "Ask for a larger budget, verify strictly, or calibrate with more prompts."
    )


def scope_mismatch(certified: Mapping[str, Any], found: Mapping[str, Any]) -> str | None:
    """One sentence about the entries in which two scopes differ; None where they agree. A missing entry is None."""
    differing = differing_keys(certified, found)
    if not differing:
        return None
    parts = ", ".join(
        "{} ({} certified, {} here)".format(key, *shown(certified.get(key), found.get(key))) for key in differing
    )
    return (
        f"The certificate does not hold here, because of another {parts}: calibrate this combination, or decode "
        "without the certificate."
    )


def differing_keys(certified: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """The sorted keys whose values differ; a fingerprint that one side lacks cannot differ."""
    return [
        key
        for key in sorted(certified.keys() | found.keys())
        if not agree(certified.get(key), found.get(key))
        and not (key == "fingerprint" and None in (certified.get(key), found.get(key)))
    ]


def agree(certified: Any, found: Any) -> bool:
    """Whether two entries are the same, nested dictionaries key by key."""
    if isinstance(certified, dict) and isinstance(found, dict):
        return not differing_keys(certified, found)
    return bool(certified == found)


def shown(certified: Any, found: Any) -> tuple[str, str]:
    """Two entries in a sentence, of dictionaries only what differs."""
    if isinstance(certified, dict) and isinstance(found, dict):
        keys = differing_keys(certified, found)
        first, second = (", ".join(f"{key} {short(one.get(key))}" for key in keys) for one in (certified, found))
        return first, second
    return short(certified), short(found)


def short(value: Any) -> str:
    """An entry that fits into a sentence; long hashes are cut."""
    text = "none" if value is None or value == [] else str(value)
    return text if len(text) <= 24 else f"{text[:10]}..."


# ---- Decode as a certificate says: whatever is asked for that it does not cover is refused in one sentence.


def load_certificate(place: str | Path) -> Certificate:
    """The proof in a file or a folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    certificate = read_certificate(place)
    if certificate is None:
        raise UserError(f"{place} holds no {CERTIFICATE_FILE}. Name another folder, or run `gistgate calibrate` first.")
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
    """Refuse parts that the certificate was not made with.

    `data` is the folder or file behind its drafter, `drafting` the drafter's `binding`, `settings` those of the rule,
    which may name files.

    Raises:
        UserError: what differs.
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
    """Fingerprint of the files that settings of a rule name.

    Raises:
        UserError: there are none, though the certificate was made with some.
    """
    found = named_files(settings)
    if not found:
        names = ", ".join(f"{name}={value}" for name, value in settings.items() if isinstance(value, str)) or "none"
        raise UserError(
            f"The certificate was made with a file that its rule reads, and no such file is here ({names}). Start in "
            "the folder that this path is relative to."
        )
    return fingerprint(*found)


def check_request(
    certificate: Certificate, *, temperature: float = 0.0, chat: bool = False, system: str | None = None
) -> None:
    """Refuse requests unlike the certified ones; a system text counts inside a chat template only.

    Raises:
        UserError: what differs.
    """
    prompting = {**certificate.scope.get("prompting", {}), "chat_template": chat, "system": system if chat else None}
    refuse(certificate.mismatch(temperature=temperature, prompting=prompting))


def certificate_in_use(decoder: Any) -> Certificate | None:
    """The certificate beside a decoder's gate, where the decoder is loose by its rule; None elsewhere."""
    certificate = getattr(decoder.parts.gate, "certificate", None)
    return (
        certificate
        if certificate is not None and decoder.rule.knob is not None and decoder.rule.id == certificate.rule
        else None
    )


def check_greedy(temperature: float) -> None:
    """Refuse sampling where segments decide, whose certificates are about greedy decoding.

    Raises:
        UserError: tokens are sampled.
    """
    if temperature:
        raise UserError(f"Segments were certified for greedy decoding, and the temperature is {temperature:g} here.")


def warn_uncovered(check: Callable[[], None]) -> str | None:
    """Run a check of requests, and warn of what it refuses: nobody named the certificate, so that decoding goes on.

    Returns what it refuses; None where it passes.
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
