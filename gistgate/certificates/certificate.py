"""What calibration proved about one rule on one pair, as the file `certificate.json` beside a gate.

A certificate holds for exactly what it names. Whatever differs when it is used is said in one sentence, and the
combination then counts as uncertified.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from gistgate.gates.config import OperatingPoint, build
from gistgate.identity import BINDING, ModelIdentity, identify_model, identify_tokenizer

CERTIFICATE_FILE = "certificate.json"
TASK = "task"
"""Score in whose unit the budgets of a gate are: the task's own metric."""


@dataclass(frozen=True)
class Certificate:
    """A setting, the loss it is proved to keep, and the combination that this holds for."""

    budget: float
    """Largest mean loss that was to be certified, in the unit of the score."""
    confidence: float
    """Probability with which the bound holds, over the draw of the prompts."""
    rule: str
    """Rule id."""
    drafter: str
    """Drafter id."""
    block: int
    """K, drafted tokens per round."""
    settings: dict[str, Any]
    """All settings of the rule, the knob included."""
    knob: str | None
    """The setting that was calibrated; None for a rule without one."""
    n: int
    """Prompts that the kept setting was tested on."""
    loss: float
    """Mean of strict - loose score on them; negative when loose decoding scored better."""
    bound: float
    """One-sided upper bound on that mean."""
    bound_kind: str
    """Which bound it is."""
    harm: float
    """Mean of max(strict - loose, 0)."""
    harm_bound: float
    """Upper bound on it by Hoeffding-Bentkus; no budget limits it."""
    discordant: int
    """Prompts on which the scores differ."""
    score: str
    """What was compared: task, logprob or judge."""
    mean_accepted_length: float
    """tau on the calibration prompts."""
    binding: dict[str, Any]
    """Hashes of models, tokenizer, gate, task and prompts, and everything else that decides what is decoded."""
    sequence: list[dict[str, Any]] = field(default_factory=list)
    """The settings that were fixed beforehand, strict to loose, with what was found for those that were tested."""
    source: str = ""
    """Where the prompts come from."""
    made: str = ""
    """Date in UTC."""

    def save(self, folder: str | Path) -> Path:
        """Write `certificate.json` into a folder."""
        path = Path(folder) / CERTIFICATE_FILE
        write_json(path, asdict(self))
        return path

    def is_about(self, rule: str, knob: str, drafter: str) -> bool:
        """Whether it bounds the task's own metric and leaves no setting open but that knob of that rule and drafter."""
        named = (self.rule, self.knob, self.drafter, self.score)
        return named == (rule, knob, drafter, TASK) and list(self.settings) == [knob]

    def operating_point(self) -> OperatingPoint:
        """The certificate as a setting of the gate that it lies beside."""
        return OperatingPoint(
            self.budget, self.confidence, self.settings[self.knob or ""], self.n, self.bound, self.block, True,
            self.mean_accepted_length,
        )  # fmt: skip

    def mismatch(
        self,
        gate: nn.Module | None = None,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        **used: Any,
    ) -> str | None:
        """What differs from the certified combination, in one sentence; None where nothing does.

        Parts that are left out are not compared. `used` compares further entries of the binding, such as `block=8`.
        """
        found: dict[str, Any] = dict(used)
        if gate is not None:
            found["gate"] = gate_hash(gate)
        for role, model in (("target", target), ("draft", draft)):
            if model is not None and self.binding.get(role) is not None:
                found[role] = model_hash(identify_model(model))
        if tokenizer is not None:
            found["tokenizer"] = identify_tokenizer(tokenizer).vocabulary
        differing = [name for name, value in found.items() if not agree(self.binding.get(name), value)]
        if not differing:
            return None
        parts = ", ".join(
            "{} ({} certified, {} here)".format(name, *shown(self.binding.get(name), found[name])) for name in differing
        )
        return (
            f"The certificate for a budget of {100 * self.budget:g} % does not hold here, because of another {parts}: "
            "calibrate this combination, or decode without the certificate."
        )


def read_certificate(place: str | Path) -> Certificate | None:
    """The certificate of a folder, or in a file; None for a folder without one.

    Raises:
        UserError: the file is damaged, or there is no such place.
    """
    path = Path(place)
    if path.is_dir():
        path = path / CERTIFICATE_FILE
        if not path.exists():
            return None
    try:
        certificate: Certificate = build(Certificate, read_json(path))
        return certificate
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no certificate: {error}. Restore it or calibrate again.") from error


def agree(certified: Any, found: Any) -> bool:
    """Whether two entries are the same; a fingerprint that one side lacks cannot differ."""
    if isinstance(certified, dict) and isinstance(found, dict):
        return not differing_keys(certified, found)
    return bool(certified == found)


def differing_keys(certified: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The keys whose values differ, sorted."""
    return [
        key
        for key in sorted(certified.keys() | found.keys())
        if certified.get(key) != found.get(key)
        and not (key == "fingerprint" and None in (certified.get(key), found.get(key)))
    ]


def shown(certified: Any, found: Any) -> tuple[str, str]:
    """Two entries in a sentence, of dictionaries what differs; long hashes are cut."""
    if isinstance(certified, dict) and isinstance(found, dict):
        keys = differing_keys(certified, found)
        first, second = (", ".join(f"{key} {short(one.get(key))}" for key in keys) for one in (certified, found))
        return first, second
    return short(certified), short(found)


def short(value: Any) -> str:
    """An entry that fits into a sentence."""
    text = "none" if value is None or value == [] else str(value)
    return text if len(text) <= 24 else f"{text[:10]}..."


def model_hash(identity: ModelIdentity) -> dict[str, Any]:
    """What has to agree of a model; its name and revision are for people, because folders move."""
    return {key: getattr(identity, key) for key in (*BINDING, "dtype")}


def gate_hash(gate: Any) -> str:
    """Hash of what a gate computes: weights, features, head and map, but neither its card nor its operating points."""
    digest = hashlib.sha256()
    described = (gate.config.head, list(gate.config.features.items()), gate.config.map)
    text = json.dumps(described, sort_keys=True, default=repr).encode()
    digest.update(hashlib.sha256(text).hexdigest()[:16].encode())
    for key, tensor in sorted(gate.state_dict().items()):
        digest.update(key.encode() + str(tensor.dtype).encode() + str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
