"""A gate: features in, calibrated probability that the meaning is kept out; and the folder it lives
in.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.core.block import Block
from gistgate.core.features import extract, layers_needed, needs_q
from gistgate.core.files import (
    check_sealed,
    load_tensors,
    read_sealed,
    save_tensors,
    write_sealed,
    write_text,
)
from gistgate.core.heads import HEADS, MAPS, Isotonic
from gistgate.core.identity import (
    ModelIdentity,
    TokenizerIdentity,
    check_identity,
    check_tokenizer,
    gate_hash,
    identify_model,
    lightening,
)
from gistgate.core.utils import UserError, dataclass_from, first_line, refusing
from gistgate.coverage.certificate import TASK, Certificate, OperatingPoint, read_certificate
from gistgate.coverage.covers import Difference, covers, joined, refusal
from gistgate.coverage.setup import Setup

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
FORMAT_VERSION = 2  # of the folder's layout


@dataclass(frozen=True)
class GateConfig:
    """Everything about a gate except its weights. Equal trainings give equal bytes: no dates, no
    machine.
    """

    head: dict[str, Any]  # {"type": id of HEADS, ...its sizes}
    features: dict[str, int]  # feature id -> width, in the order in which the head reads them
    target: ModelIdentity  # the model whose states the gate reads
    # The model whose drafts it judged; None for a drafter without a model.
    draft: ModelIdentity | None
    tokenizer: TokenizerIdentity  # the tokenizer of both
    # {"type": id of MAPS, ...its sizes}
    map: dict[str, Any] = field(default_factory=lambda: {"type": "platt", "num_knots": 0})
    labels: dict[str, Any] = field(default_factory=dict)  # how the training labels came about
    # Solved examples, chat template and system text of training.
    prompting: dict[str, Any] = field(default_factory=dict)
    # Parameters, library versions and hashes of the data.
    provenance: dict[str, Any] = field(default_factory=dict)
    # Hashes of the training problems, separated by spaces: no certificate is judged on these.
    problems: str = ""
    format_version: int = FORMAT_VERSION

    def as_json(self) -> dict[str, Any]:
        """What config.json holds. `features` becomes a list, because JSON objects have no order."""
        value = asdict(self)
        value["features"] = [{"id": name, "size": size} for name, size in self.features.items()]
        return value

    @classmethod
    def from_json(cls, value: Any, where: str) -> GateConfig:
        """Read what `as_json` wrote; `where` names the file in messages."""
        with refusing(f"{where} is no gate configuration", "Restore it or train again."):
            parts = {
                "features": {item["id"]: item["size"] for item in value["features"]},
                "target": dataclass_from(ModelIdentity, value["target"]),
                "draft": value.get("draft") and dataclass_from(ModelIdentity, value["draft"]),
                "tokenizer": dataclass_from(TokenizerIdentity, value["tokenizer"]),
            }
            return dataclass_from(cls, {**value, **parts})


class Gate(nn.Module):
    """A trained head with its probability map. Call it with a Block; it computes in float32 where
    the logits are.
    """

    def __init__(self, config: GateConfig) -> None:
        super().__init__()
        self.config = config
        # Of certificate.json beside the gate, unless that is of other models or another gate.
        self.certificate: Certificate | None = None
        # Why the gate may not decide yet: it was trained and certified on other weights only.
        self.strict_reason: str | None = None
        self.folder: Path | None = None  # where it was read from, with what lies beside it
        self.features = tuple(config.features)
        self.input_size = sum(config.features.values())
        # Hidden layers of the target that the decoder has to keep for the gate.
        self.layers = layers_needed(self.features)
        self.wants_q = needs_q(self.features)  # whether it reads draft probabilities
        sizes = {name: value for name, value in config.head.items() if name != "type"}
        self.head = HEADS[config.head["type"]](input_size=self.input_size, **sizes)
        kind = MAPS[config.map["type"]]
        knots = max(int(config.map.get("num_knots", 0)), 1)
        self.map = Isotonic([0.0] * knots, [0.5] * knots) if kind is Isotonic else kind()
        self.eval().requires_grad_(False)

    def forward(self, block: Block) -> Tensor:
        """P(meaning kept) of every draft token [B, K], float32."""
        return self.probability(self.gather(block))

    def gather(self, block: Block) -> Tensor:
        """All features side by side [B, K, F], float32, on the device of the logits."""
        device = block.logits.device
        parts = [part.to(device, torch.float32) for part in extract(block, self.features).values()]
        return torch.cat(parts, dim=-1)

    def probability(self, x: Tensor) -> Tensor:
        """P(meaning kept) for features `x [..., F]`."""
        if (
            next(self.parameters()).device != x.device
        ):  # the first call after loading moves the gate to the model
            self.to(x.device)
        probability: Tensor = self.map(self.head(x))
        return probability

    def operating_point(self, budget: float | None = None) -> OperatingPoint:
        """The loosest certified setting that keeps `budget` (0.03 is 3 points; default: the
        headline budget); UserError where there is none.
        """
        certificate = self.certificate
        if certificate is None:
            raise UserError(
                "The gate has no setting certified, because no certificate.json lies beside it."
                " Calibrate the gate."
            )
        if certificate.score != TASK:
            raise UserError(
                f"The gate's certificate bounds the score '{certificate.score}', not the task's"
                " own metric. Calibrate the gate for that."
            )
        return certificate.operating_point(budget)

    def save(self, folder: str | Path, card: str | None = None) -> None:
        """Write config.json and model.safetensors, and `card` as README.md; other files of the
        folder stay.
        """
        folder = Path(folder)
        save_tensors(folder / WEIGHTS_FILE, dict(self.state_dict()))
        write_sealed(folder / CONFIG_FILE, self.config.as_json(), gate_hash(self))
        if card is not None:
            write_text(folder / CARD_FILE, card)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        other_weights: bool = False,
    ) -> Gate:
        """Read a gate folder and check it against the models that are given; those left out are not
        checked.

        A certificate for others is not taken over; a warning says why. With `other_weights` the
        models may have other weights of the same architecture; without a certificate for these
        `strict_reason` says so, to decode strictly.
        """
        folder = Path(folder)
        place = folder / CONFIG_FILE
        remedy = "Train and calibrate again."
        described, sealed = read_sealed(place, "gate", remedy, FORMAT_VERSION)
        gate = cls(GateConfig.from_json(described, str(place)))
        weights = folder / WEIGHTS_FILE
        tensors = load_tensors(weights)
        try:
            gate.load_state_dict(tensors)
        except RuntimeError as error:
            raise UserError(
                f"{weights} does not fit its config.json ({first_line(error)}). Restore both."
            ) from error
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise UserError(
                    f"{weights}: the tensor '{name}' is not finite. Restore the file or train"
                    " again."
                )
        check_sealed(place, sealed, described, gate_hash(gate))
        gate.folder = folder
        other_roles = gate.check(target, draft, tokenizer, other_weights)
        certificate = read_certificate(folder)
        differences = gate.take(certificate, target, draft, tokenizer)
        if other_roles and gate.certificate is None:
            parts = {"target": target, "draft": draft}
            command = calibrate_command(folder, gate.config, certificate, parts)
            gate.strict_reason = until_certified(command, gate.config, draft, other_roles)
        elif differences:
            warnings.warn(refusal(joined(differences)), stacklevel=2)
        return gate

    def take(
        self,
        certificate: Certificate | None,
        target: PreTrainedModel | None,
        draft: PreTrainedModel | None,
        tokenizer: Any,
    ) -> list[Difference]:
        """Take a certificate over where it covers the gate with these partners; what differs
        elsewhere.
        """
        self.certificate = None
        if certificate is None:
            return []
        differences = covers(certificate, Setup.of(target, draft, tokenizer, self))
        if not differences:
            self.certificate = certificate
        return differences

    def check(
        self,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        other_weights: bool = False,
    ) -> list[str]:
        """Refuse partners that the gate was not trained for; the roles whose weights differ if
        `other_weights` may.
        """
        other_roles = []
        for role, model in (("target", target), ("draft", draft)):
            expected = getattr(self.config, role)
            if expected is None or model is None:
                continue
            identity = identify_model(model)
            if check_identity(role, expected, identity, other_weights=other_weights):
                other_roles.append(role)
            elif role == "target" and identity.dtype != expected.dtype:
                warnings.warn(
                    f"The gate was trained on states in {expected.dtype}, the target runs in"
                    f" {identity.dtype}: no certificate holds.",
                    stacklevel=2,
                )
        if tokenizer is not None:
            check_tokenizer(self.config.tokenizer, tokenizer)
        return other_roles


def calibrate_command(
    folder: Path,
    config: GateConfig,
    certificate: Certificate | None,
    models: Mapping[str, PreTrainedModel | None],
) -> str:
    """The command that certifies a gate with `models`, by their roles."""
    task = str(config.labels.get("task", "TASK"))
    # A gate that learned from several tasks is certified for each of them.
    options = {"--task": "TASK" if "," in task else task, "--gate": str(folder)}
    for role, model in models.items():
        if model is not None:
            place = getattr(model, "gguf_file", None) or model.config.name_or_path
            options[f"--{role}"] = str(place or role.upper())
    draft = models["draft"]
    trained = config.draft.quantisation if config.draft else None
    rounded = getattr(draft, "quantised", None)
    if draft is not None and (rounded or trained):
        options["--quantise-draft"] = str(rounded or "none")
    if certificate is not None:
        options["--rule"] = certificate.rule
        options["--drafter"] = certificate.drafter
        options["--block"] = str(certificate.block)
    words = ["gistgate", "calibrate"]
    for name, value in options.items():
        words += [name, value]
    if config.labels.get("code"):
        words.append("--allow-code")
    return shlex.join(words)


def until_certified(
    command: str, config: GateConfig, draft: PreTrainedModel | None, roles: Sequence[str]
) -> str:
    """The clause that says the weights of which `roles` differ and which command certifies the gate
    on them.
    """
    clause = (
        "the gate was trained with other weights of the same architecture"
        f" ({' and '.join(roles)}), so every token is verified strictly until `{command}` has"
        " certified it here"
    )
    if draft is None or config.draft is None:
        return clause
    trained = config.draft.quantisation
    if trained == getattr(draft, "quantised", None):
        return clause
    option = lightening("draft", "quantisation", trained)
    return f"{clause}; or load the draft {option}, as in training"
