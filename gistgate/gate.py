"""A gate: features in, calibrated probability that the meaning is kept out; and the folder it lives
in.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Sequence
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
    draft: (
        ModelIdentity | None
    )  # the model whose drafts it judged; None for a drafter without a model
    tokenizer: TokenizerIdentity  # the tokenizer of both
    map: dict[str, Any] = field(
        default_factory=lambda: {"type": "platt", "num_knots": 0}
    )  # {"type": id of MAPS, ...}
    labels: dict[str, Any] = field(default_factory=dict)  # how the training labels came about
    prompting: dict[str, Any] = field(
        default_factory=dict
    )  # few-shot examples, chat template, system text of training
    provenance: dict[str, Any] = field(
        default_factory=dict
    )  # parameters, library versions and hashes of the data
    # hashes of the training problems, with spaces between: no certificate may be judged on these
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
        self.certificate: Certificate | None = (
            None  # of certificate.json beside the gate, unless it is another gate's
        )
        self.strict_reason: str | None = (
            None  # why it may not decide yet: trained and certified on other weights only
        )
        self.folder: Path | None = None  # where it was read from, with what lies beside it
        self.features = tuple(config.features)
        self.input_size = sum(config.features.values())
        self.layers = layers_needed(
            self.features
        )  # hidden layers of the target that the decoder has to keep for it
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
        x_BKF = torch.cat(parts, dim=-1)
        if x_BKF.shape[-1] != self.input_size:
            widths = ", ".join(
                f"{name} {part.shape[-1]}" for name, part in zip(self.features, parts, strict=True)
            )
            raise UserError(
                f"The gate reads {self.input_size} features, but the block gives {x_BKF.shape[-1]}"
                f" ({widths}). Use the target it was trained for: '{self.config.target.name}'."
            )
        return x_BKF

    def probability(self, x: Tensor) -> Tensor:
        """P(meaning kept) for features `x [..., F]`."""
        if (
            next(self.parameters()).device != x.device
        ):  # the first call after loading moves the gate to the model
            self.to(x.device)
        probability: Tensor = self.map(self.head(x))
        return probability

    def operating_point(
        self, budget: float | None = None, drafter: str | None = None, rule: str | None = None
    ) -> OperatingPoint:
        """The loosest certified setting that keeps `budget` (0.03 is 3 points; default: the
        headline budget).

        The certificate has to be about `drafter` and `rule`, if given.
        """
        certificate = self.certificate
        problem = "The gate has no setting certified"
        if certificate is None:
            raise UserError(
                f"{problem}, because no certificate.json lies beside it. Calibrate the gate."
            )
        for name, wanted in {"score": TASK, "drafter": drafter, "rule": rule}.items():
            if wanted not in (None, about := getattr(certificate, name)):
                raise UserError(
                    f"{problem} for the {name} '{wanted}': its certificate is about '{about}'."
                    " Calibrate it for that."
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
        described, sealed = read_sealed(
            folder / CONFIG_FILE, "gate", "Train and calibrate again.", FORMAT_VERSION
        )
        gate = cls(config := GateConfig.from_json(described, str(folder / CONFIG_FILE)))
        weights = folder / WEIGHTS_FILE
        tensors = load_tensors(folder / WEIGHTS_FILE)
        try:
            gate.load_state_dict(tensors)
        except RuntimeError as error:
            raise UserError(
                f"{weights} does not fit its config.json ({first_line(error)}). Restore both."
            ) from error
        if bad := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
            raise UserError(
                f"{weights}: the tensor '{bad[0]}' is not finite. Restore the file or train again."
            )
        check_sealed(folder / CONFIG_FILE, sealed, described, gate_hash(gate))
        gate.folder = folder
        strange = gate.check(target, draft, tokenizer, other_weights)
        certificate = read_certificate(folder)
        broken = (
            None if certificate is None else certificate.mismatch(gate, target, draft, tokenizer)
        )
        if broken is None:
            gate.certificate = certificate
        if strange and gate.certificate is None:
            gate.strict_reason = until_certified(
                folder, config, certificate, target, draft, strange
            )
        elif broken is not None:
            warnings.warn(broken, stacklevel=2)
        return gate

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
        strange = []
        for role, expected, model in (
            ("target", self.config.target, target),
            ("draft", self.config.draft, draft),
        ):
            if expected is None or model is None:
                continue
            found = identify_model(model)
            if check_identity(role, expected, found, other_weights=other_weights):
                strange.append(role)
            elif role == "target" and found.dtype != expected.dtype:
                said = (
                    f"The gate was trained on states in {expected.dtype}, the target runs in"
                    f" {found.dtype}"
                )
                warnings.warn(f"{said}: no certificate holds.", stacklevel=2)
        if tokenizer is not None:
            check_tokenizer(self.config.tokenizer, tokenizer)
        return strange


def until_certified(
    folder: Path,
    config: GateConfig,
    certificate: Certificate | None,
    target: PreTrainedModel | None,
    draft: PreTrainedModel | None,
    roles: Sequence[str],
) -> str:
    """The clause that says the weights of which `roles` differ and which command certifies the gate
    on them.
    """
    task = str(
        config.labels.get("task", "TASK")
    )  # a gate that learned from several is certified for each of them
    options = {"--task": "TASK" if "," in task else task, "--gate": str(folder)}
    for role, model in {"target": target, "draft": draft}.items():
        if model is not None:
            options[f"--{role}"] = str(
                getattr(model, "gguf_file", None) or model.config.name_or_path or role.upper()
            )
    rounded = getattr(draft, "quantised", None)
    trained = None if config.draft is None else config.draft.quantisation
    if draft is not None and (rounded or trained):
        options["--quantise-draft"] = str(rounded or "none")
    if certificate is not None:
        options |= {
            "--rule": certificate.rule,
            "--drafter": certificate.drafter,
            "--block": str(certificate.block),
        }
    consent = ["--allow-code"] if config.labels.get("code") else []
    command = shlex.join(
        ["gistgate", "calibrate", *(text for pair in options.items() for text in pair), *consent]
    )
    clause = (
        f"the gate was trained with other weights of the same architecture ({' and '.join(roles)}),"
        f" so every token is verified strictly until `{command}` has certified it here"
    )
    if draft is None or config.draft is None or trained == rounded:
        return clause
    return f"{clause}; or load the draft {lightening('quantisation', trained)}, as in training"
