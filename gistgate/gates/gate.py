"""A gate: features in, calibrated probability that the meaning is kept out; and the folder it lives in."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.block import Block
from gistgate.certificates.certificate import TASK, OperatingPoint, Proof, read_proof
from gistgate.errors import UserError
from gistgate.files import check_sealed, checksum, load_tensors, read_json, save_tensors, write_json, write_text
from gistgate.gates.calibration import MAPS, build_map
from gistgate.gates.config import GateConfig
from gistgate.gates.elsewhere import strange_roles, until_certified
from gistgate.gates.features import extract, layers_needed, needs_q
from gistgate.gates.heads import HEADS, build_head
from gistgate.identity import check_model, check_tokenizer, gate_hash
from gistgate.plain import inside

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"


class Gate(nn.Module):
    """A trained head with its probability map. Call it with a Block; it computes in float32 where the logits are."""

    def __init__(self, config: GateConfig) -> None:
        super().__init__()
        self.config = config
        self.proof: Proof | None = None
        """What certificate.json beside the gate proves; None without the file, and where it is another gate's."""
        self.reservation: str | None = None
        """Why the gate may not decide anything yet: it was trained on other weights, and nothing is certified here."""
        self.folder: Path | None = None
        """Where it was read from, with what lies beside it."""
        self.features = tuple(config.features)
        self.input_size = sum(config.features.values())
        self.layers = layers_needed(self.features)
        """Hidden layers of the target that the decoder has to keep for this gate."""
        self.wants_q = needs_q(self.features)
        """Whether it reads draft probabilities."""
        sizes = {name: value for name, value in config.head.items() if name != "type"}
        head = HEADS[config.head["type"]]
        self.head = build_head(head, {"input_size": self.input_size, **sizes})
        self.map = build_map(MAPS[config.map["type"]], int(config.map.get("num_knots", 0)))
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
            widths = ", ".join(f"{name} {part.shape[-1]}" for name, part in zip(self.features, parts, strict=True))
            raise UserError(
                f"The gate reads {self.input_size} features, but the block gives {x_BKF.shape[-1]} ({widths}). "
                f"Use the target it was trained for: '{self.config.target.name}'."
            )
        return x_BKF

    def probability(self, x: Tensor) -> Tensor:
        """P(meaning kept) for features `x [..., F]`."""
        if next(self.parameters()).device != x.device:  # the first call after loading moves the gate to the model
            self.to(x.device)
        probability: Tensor = self.map(self.head(x))
        return probability

    def operating_point(
        self,
        budget: float | None = None,
        drafter: str | None = None,
        rule: str | None = None,
        confidence: float | None = None,
    ) -> OperatingPoint:
        """The loosest certified setting that keeps `budget` (0.03 is 3 points of accuracy).

        Args:
            budget: largest loss, as a share; default: the headline budget of the proof.
            drafter, rule: ids that the proof has to be about; default: those that were calibrated.
            confidence: the least that is enough; default: that of the proof.

        Raises:
            UserError: nothing is certified for so small a budget, or the proof is about something else.
        """
        proof = self.proof
        if proof is None:
            raise UserError(
                "The gate has no setting certified, because no certificate.json lies beside it. Calibrate the gate."
            )
        about = {"score": (TASK, proof.score), "drafter": (drafter, proof.drafter), "rule": (rule, proof.rule)}
        for name, (wanted, certified) in about.items():
            if wanted not in (None, certified):
                raise UserError(
                    f"The gate has no setting certified for the {name} '{wanted}': its certificate is about "
                    f"'{certified}'. Calibrate the gate for '{wanted}'."
                )
        if confidence is not None and proof.confidence < confidence:
            raise UserError(
                f"The gate has no setting certified with confidence {confidence:g}, only with {proof.confidence:g}. "
                "Calibrate it again."
            )
        return proof.operating_point(budget)

    def save(self, folder: str | Path, card: str | None = None) -> None:
        """Write config.json and model.safetensors, and `card` as README.md; other files of the folder stay."""
        folder = Path(folder)
        save_tensors(folder / WEIGHTS_FILE, dict(self.state_dict()))
        described = self.config.as_json()
        write_json(folder / CONFIG_FILE, {**described, "checksum": checksum(described, gate_hash(self))})
        if card is not None:
            write_text(folder / CARD_FILE, card)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        elsewhere: bool = False,
    ) -> Gate:
        """Read a gate folder and check it against the models that are given; those left out are not checked.

        A proof beside the gate that was made for other weights or models is not taken over; a warning says why. With
        `elsewhere` the models may have other weights of the same architecture. Unless the proof is about these
        weights, `reservation` then says so, and the caller has to decode strictly.

        Raises:
            UserError: a file is missing or damaged, or the gate was trained for another model or tokenizer.
        """
        folder, place = Path(folder), inside(folder, CONFIG_FILE)
        described = read_json(place)
        sealed = described.pop("checksum", None) if isinstance(described, dict) else None
        config = GateConfig.from_json(described, str(place))
        gate = cls._filled(config, load_tensors(inside(folder, WEIGHTS_FILE)), folder / WEIGHTS_FILE)
        check_sealed(place, sealed, described, gate_hash(gate))
        gate.folder = folder
        strange = strange_roles(config, target, draft) if elsewhere else {}
        gate.check(None if "target" in strange else target, None if "draft" in strange else draft, tokenizer)
        proof = read_proof(folder)
        broken = None if proof is None else proof.mismatch(gate, target, draft, tokenizer)
        if broken is None:
            gate.proof = proof
        if strange and gate.proof is None:
            gate.reservation = until_certified(folder, config, proof, target, draft, list(strange))
        elif broken is not None:
            warnings.warn(broken, stacklevel=2)
        return gate

    @classmethod
    def _filled(cls, config: GateConfig, tensors: dict[str, Tensor], where: Path) -> Gate:
        """A gate with weights from a file, whose names, shapes, dtypes and values are checked.

        The shapes come from a gate without memory, so that huge sizes in a configuration cost nothing.
        """
        with torch.device("meta"):
            blank = cls(config)
        wanted = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in blank.state_dict().items()}
        found = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
        if wanted != found:
            raise UserError(
                f"{where} does not fit its config.json (expected {described_as(wanted)}, found {described_as(found)}). "
                "Restore both files."
            )
        for name, tensor in tensors.items():
            if not tensor.isfinite().all():
                raise UserError(
                    f"{where}: the tensor '{name}' is not finite. Restore the file or train the gate again."
                )
        gate = cls(config)
        gate.load_state_dict(tensors)
        return gate

    def check(
        self,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
    ) -> None:
        """Refuse partners that the gate was not trained for; warn when the target runs in another dtype.

        Raises:
            UserError: which property differs, what was expected and found, and what to do.
        """
        if target is not None:
            check_model("target", self.config.target, target)
            dtype = str(target.dtype).removeprefix("torch.")
            if dtype != self.config.target.dtype:
                warnings.warn(
                    f"The gate was trained on states in {self.config.target.dtype}, the target runs in {dtype}: "
                    "its certificates do not cover that.",
                    stacklevel=2,
                )
        if draft is not None and self.config.draft is not None:
            check_model("draft", self.config.draft, draft)
        if tokenizer is not None:
            check_tokenizer(self.config.tokenizer, tokenizer)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self.config)["features"].items())


def described_as(tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> str:
    """Shapes and dtypes of tensors in a sentence."""
    return ", ".join(f"{name} {list(shape)} {dtype}" for name, (shape, dtype) in tensors.items()) or "no tensor"
