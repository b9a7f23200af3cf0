"""A gate: features in, calibrated probability that the meaning is kept out; and the folder it lives in."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.core.block import Block
from gistgate.core.certificate import TASK, Certificate, OperatingPoint, read_certificate
from gistgate.core.features import extract, layers_needed, needs_q
from gistgate.core.files import (
    check_sealed,
    checksum,
    load_tensors,
    read_json,
    save_tensors,
    write_json,
    write_text,
)
from gistgate.core.identity import (
    ModelIdentity,
    TokenizerIdentity,
    check_model,
    check_shape,
    check_tokenizer,
    gate_hash,
    has_other_weights,
    identify_model,
    lightening,
)
from gistgate.core.utils import Registry, UserError, dataclass_from

# ---- What a gate folder's config.json holds.


FORMAT_VERSION = 2
"""Version of the folder's layout that this code reads and writes."""


@dataclass(frozen=True)
class GateConfig:
    """Everything about a gate except its weights. Equal trainings give equal bytes: no dates, no machine."""

    head: dict[str, Any]
    """{"type": id of gistgate.core.gate.HEADS, ...its sizes}."""
    features: dict[str, int]
    """Feature id -> width, in the order in which the head reads them."""
    target: ModelIdentity
    """The model whose states the gate reads."""
    draft: ModelIdentity | None
    """The model whose drafts it judged; None for a drafter without a model."""
    tokenizer: TokenizerIdentity
    """The tokenizer of both."""
    map: dict[str, Any] = field(default_factory=lambda: {"type": "platt", "num_knots": 0})
    """{"type": id of gistgate.core.gate.MAPS, "num_knots": its size}."""
    labels: dict[str, Any] = field(default_factory=dict)
    """How the training labels came about."""
    prompting: dict[str, Any] = field(default_factory=dict)
    """Few-shot examples, chat template and system text the gate was trained under."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Parameters, library versions and hashes of the data."""
    problems: str = ""
    """Hashes of the problems that it was trained on, with spaces between: no certificate may be judged on these."""
    format_version: int = FORMAT_VERSION
    """Layout of the folder."""

    def as_json(self) -> dict[str, Any]:
        """What config.json holds. `features` becomes a list, because JSON objects have no order."""
        value = asdict(self)
        value["features"] = [{"id": name, "size": size} for name, size in self.features.items()]
        return value

    @classmethod
    def from_json(cls, value: Any, where: str) -> GateConfig:
        """Read what `as_json` wrote; `where` names the file in messages.

        Raises:
            UserError: another format version, or a key that is missing, unknown or of another kind.
        """
        version = value.get("format_version") if isinstance(value, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"{where} has format version {version}, this gistgate reads {FORMAT_VERSION}. "
                "Install the version that wrote it, or train and calibrate the gate again: what is certified stands in "
                "certificate.json."
            )
        try:
            draft = value.get("draft")
            config: GateConfig = dataclass_from(
                cls,
                {
                    **value,
                    "features": widths(value["features"]),
                    "head": with_type(value["head"]),
                    "map": with_type(value["map"]),
                    "target": dataclass_from(ModelIdentity, value["target"]),
                    "draft": None if draft is None else dataclass_from(ModelIdentity, draft),
                    "tokenizer": dataclass_from(TokenizerIdentity, value["tokenizer"]),
                },
            )
            return config
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{where} is no gate configuration: {reason}. Restore it or train the gate again."
            ) from error


def widths(listed: Any) -> dict[str, int]:
    """The features of config.json as id -> width; ValueError where an id stands twice or a width is below 1."""
    found: dict[str, int] = {}
    for item in listed:
        if item["id"] in found or type(item["size"]) is not int or item["size"] < 1:
            raise ValueError(f"the feature '{item['id']}' stands twice or has the width {item['size']!r}")
        found[item["id"]] = item["size"]
    return found


def with_type(value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a head's or map's description, whose sizes are small numbers; KeyError when it does not say its type.

    Raises:
        ValueError: a size is no number.
    """
    for name, size in dict(value).items():
        if name != "type" and (isinstance(size, bool) or not isinstance(size, int | float)):
            raise ValueError(f"the size '{name}' is {size!r}, but it has to be a number")
    if not isinstance(value["type"], str):
        raise ValueError(f"the type is {value['type']!r}, but it has to be a text")
    return dict(value)


# ---- Gate heads: a handful of tensors that turn features into one logit of "the meaning is kept".


class Head(Protocol):
    """What every head has beside being a module: features `[..., F]` in, logits `[...]` out."""

    first: nn.Linear
    """The layer that reads the features; standardisation is folded into it."""


class Linear(nn.Module):
    """w . x + b: a logistic regression, whoever trained it."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.first(x).squeeze(-1)
        return logits


class Mlp(nn.Module):
    """One hidden layer, so that what was read (h_tok) can be weighed against what was expected (h_pred)."""

    def __init__(self, input_size: int, hidden_size: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(input_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.dropout(nn.functional.silu(self.first(x)))).squeeze(-1)
        return logits


HEADS: Registry[type[nn.Module]] = Registry("gate head", {"linear": Linear, "mlp": Mlp})
"""Id -> class of the head. A new head is one class and one line here."""


def fold_standardisation(first: nn.Linear, mean_F: Tensor, scale_F: Tensor) -> None:
    """Let a layer trained on (x - mean) / scale read x itself: weight w / scale, bias b - sum(w * mean / scale)."""
    if mean_F.shape != (first.in_features,) or scale_F.shape != mean_F.shape:
        raise ValueError(f"Means {tuple(mean_F.shape)} and scales {tuple(scale_F.shape)} do not fit {first}.")
    with torch.no_grad():
        weight = first.weight.double() / scale_F.double()
        bias = first.bias.double() - weight @ mean_F.double()
        first.weight.copy_(weight)
        first.bias.copy_(bias)


def build_head(kind: type[nn.Module], sizes: dict[str, float]) -> nn.Module:
    """A head of that type with these sizes.

    Raises:
        UserError: the type has no such size.
    """
    try:
        return kind(**sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"A {kind.__name__.lower()} head cannot have the sizes {sizes} ({error}).") from error


# ---- Maps from a head's logit to a calibrated probability, fitted on problems that no head has seen.


class Platt(nn.Module):
    """sigmoid(a * logit + b), with a >= 0 (Platt 1999)."""

    a: Tensor
    b: Tensor

    def __init__(self, a: float = 1.0, b: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor(float(a)))
        self.register_buffer("b", torch.tensor(float(b)))

    def forward(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(self.a * logits + self.b)


class Isotonic(nn.Module):
    """A non-decreasing polyline through (knots, values), constant outside (Zadrozny and Elkan 2002)."""

    knots: Tensor
    values: Tensor

    def __init__(self, knots: Sequence[float] = (0.0,), values: Sequence[float] = (0.5,)) -> None:
        super().__init__()
        self.register_buffer("knots", torch.tensor(knots, dtype=torch.float32))
        self.register_buffer("values", torch.tensor(values, dtype=torch.float32))

    def forward(self, logits: Tensor) -> Tensor:
        last = self.knots.numel() - 1
        right = torch.searchsorted(self.knots, logits.contiguous()).clamp(max=last)
        left = (right - 1).clamp(min=0)
        x0, x1, y0, y1 = self.knots[left], self.knots[right], self.values[left], self.values[right]
        share = ((logits - x0) / (x1 - x0).clamp_min(torch.finfo(torch.float32).tiny)).clamp(0, 1)
        return y0 + share * (y1 - y0)


MAPS: Registry[type[nn.Module]] = Registry("probability map", {"platt": Platt, "isotonic": Isotonic})
"""Probability maps by id."""


MOST_KNOTS = 1 << 16
"""Knots of the largest map that is built: far more than calibration makes."""


def build_map(kind: type[nn.Module], num_knots: int) -> nn.Module:
    """An empty map of that type, to be filled from a state dictionary; `num_knots` is 0 for maps without knots.

    Raises:
        UserError: the number of knots is out of range.
    """
    if not 0 <= num_knots <= MOST_KNOTS:
        raise UserError(
            f"A probability map has {num_knots} knots, but 0 to {MOST_KNOTS} are possible. Restore its file."
        )
    if kind is Isotonic:
        return Isotonic([0.0] * max(num_knots, 1), [0.5] * max(num_knots, 1))
    return kind()


# ---- A gate that meets other weights of the architecture that it was trained for, such as a quantised copy's original.


USUAL = {"--rule": "autojudge", "--drafter": "model"}
"""What `gistgate calibrate` takes for a gate where nothing is named."""
STANDS_FOR = {
    "TASK": "the task that judges",
    "TARGET": "a folder or file with the target",
    "DRAFT": "a folder or file with the draft",
    "VOCABULARY": "the file of the draft's vocabulary",
    "POLICY": "the file of fit-draft that ended the drafts",
}
"""Words in the place of what only the user knows."""
UNFITTED = {"joint": False, "points": [[0.0, 0.0], [1.0, 1.0]]}
"""What a policy binds besides its number where that is all of it: the draft's probability is taken as it is."""


def strange_roles(
    config: GateConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None
) -> dict[str, PreTrainedModel]:
    """The partners, by role, whose weights are known to differ from those that the gate was trained with.

    Raises:
        UserError: a partner has another architecture or size.
    """
    strange = {}
    for role, expected, model in (("target", config.target, target), ("draft", config.draft, draft)):
        if expected is None or model is None:
            continue
        found = identify_model(model)
        check_shape(role, expected, found, rounded=False)  # rounded weights are other weights
        if has_other_weights(expected, found):
            strange[role] = model
    return strange


def until_certified(
    folder: Path,
    config: GateConfig,
    certificate: Certificate | None,
    target: PreTrainedModel | None,
    draft: PreTrainedModel | None,
    roles: Sequence[str],
) -> str:
    """The clause that says which weights differ and which command certifies the gate on them.

    Args:
        folder: the gate's.
        config: the gate's.
        proof: the proof beside the gate, which is about other weights; it still names rule, drafter and K.
        target, draft: the models that are served.
        roles: those of them whose weights differ.
    """
    options = {
        "--task": task_of(config),
        "--gate": str(folder),
        **of_models(config, target, draft),
        **({} if certificate is None else of_proof(certificate)),
    }
    consent = ["--allow-code"] if config.labels.get("code") else []
    command = shlex.join(["gistgate", "calibrate", *(text for pair in options.items() for text in pair), *consent])
    rounded = rounding(config, draft)
    legend = ", ".join(f"{word}: {meaning}" for word, meaning in STANDS_FOR.items() if word in options.values())
    return (
        f"the gate was trained with other weights of the same architecture ({' and '.join(roles)}), so every token is "
        f"verified strictly until `{command}` has certified it here"
        + (f" ({legend})" if legend else "")
        + (f"; or load the draft {rounded}, as in training" if rounded else "")
    )


def rounding(config: GateConfig, draft: PreTrainedModel | None) -> str | None:
    """How the draft has to be loaded to be rounded as in training; None where it is, and where nobody knows."""
    if draft is None or config.draft is None or config.draft.quantisation == getattr(draft, "quantised", None):
        return None
    return lightening("quantisation", config.draft.quantisation)


def task_of(config: GateConfig) -> str:
    """The task whose labels taught the gate; a word in its place where several did, or where nobody knows."""
    task = str(config.labels.get("task", "TASK"))
    return "TASK" if "," in task else task


def of_models(config: GateConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None) -> dict[str, str]:
    """The options that load these models, the draft as light as it is."""
    models = {"--target": target, "--draft": draft}
    options = {name: place_of(model, name) for name, model in models.items() if model is not None}
    trained = None if config.draft is None or draft is None else config.draft.quantisation
    if (kind := getattr(draft, "quantised", None)) or trained:
        options["--quantise-draft"] = str(kind or "none")
    bound = config.draft if draft is None else None
    if getattr(draft, "subset", None) or (bound is not None and bound.draft_vocabulary):
        options["--draft-vocabulary"] = getattr(draft, "subset_file", None) or "VOCABULARY"
    return options


def place_of(model: PreTrainedModel, option: str) -> str:
    """Hub id, folder or GGUF file of a model; a word in its place where nobody knows."""
    name = getattr(model, "gguf_file", None) or model.config.name_or_path
    is_bare = Path(name).is_dir() and not (Path(name) / "config.json").is_file()  # of a GGUF file of unknown name
    return option.lstrip("-").upper() if not name or is_bare else str(name)


def of_proof(certificate: Certificate) -> dict[str, str]:
    """The options that calibrate the same way of decoding again, without those that a gate brings along."""
    drafting = certificate.scope.get("drafting")
    ends = {"--stop-drafting": ends_of(drafting)} if drafting else {}
    options = {"--rule": certificate.rule, "--drafter": certificate.drafter, **ends, "--block": str(certificate.block)}
    return {name: value for name, value in options.items() if USUAL.get(name) != value}


def ends_of(drafting: Any) -> str:
    """A policy as the option takes it: its one number, or a word in place of its file, whose name no proof keeps."""
    stopping = drafting.get("stopping") if isinstance(drafting, dict) else None
    if isinstance(stopping, dict) and stopping.items() >= UNFITTED.items():
        return str(stopping.get("floor"))
    return "POLICY"


CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"


class Gate(nn.Module):
    """A trained head with its probability map. Call it with a Block; it computes in float32 where the logits are."""

    def __init__(self, config: GateConfig) -> None:
        super().__init__()
        self.config = config
        self.certificate: Certificate | None = None
        """What certificate.json beside the gate proves; None without the file, and where it is another gate's."""
        self.strict_reason: str | None = None
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
        certificate = self.certificate
        if certificate is None:
            raise UserError(
                "The gate has no setting certified, because no certificate.json lies beside it. Calibrate the gate."
            )
        about = {
            "score": (TASK, certificate.score),
            "drafter": (drafter, certificate.drafter),
            "rule": (rule, certificate.rule),
        }
        for name, (wanted, certified) in about.items():
            if wanted not in (None, certified):
                raise UserError(
                    f"The gate has no setting certified for the {name} '{wanted}': its certificate is about "
                    f"'{certified}'. Calibrate the gate for '{wanted}'."
                )
        if confidence is not None and certificate.confidence < confidence:
            raise UserError(
                f"The gate has no setting certified with confidence {confidence:g}, only with "
                f"{certificate.confidence:g}. "
                "Calibrate it again."
            )
        return certificate.operating_point(budget)

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
        other_weights: bool = False,
    ) -> Gate:
        """Read a gate folder and check it against the models that are given; those left out are not checked.

        A proof beside the gate that was made for other weights or models is not taken over; a warning says why. With
        `elsewhere` the models may have other weights of the same architecture. Unless the proof is about these
        weights, `reservation` then says so, and the caller has to decode strictly.

        Raises:
            UserError: a file is missing or damaged, or the gate was trained for another model or tokenizer.
        """
        folder = Path(folder)
        place = folder / CONFIG_FILE
        described = read_json(place)
        sealed = described.pop("checksum", None) if isinstance(described, dict) else None
        config = GateConfig.from_json(described, str(place))
        gate = cls._filled(config, load_tensors(folder / WEIGHTS_FILE), folder / WEIGHTS_FILE)
        check_sealed(place, sealed, described, gate_hash(gate))
        gate.folder = folder
        strange = strange_roles(config, target, draft) if other_weights else {}
        gate.check(None if "target" in strange else target, None if "draft" in strange else draft, tokenizer)
        certificate = read_certificate(folder)
        broken = None if certificate is None else certificate.mismatch(gate, target, draft, tokenizer)
        if broken is None:
            gate.certificate = certificate
        if strange and gate.certificate is None:
            gate.strict_reason = until_certified(folder, config, certificate, target, draft, list(strange))
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
