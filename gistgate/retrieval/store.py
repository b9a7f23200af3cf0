"""A datastore folder: config.json, the projection, and the keys with the tokens that followed them.

Axis letters: N keys, P width of a key, T stored tokens with an end mark behind every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from gistgate.core.files import (
    check_sealed,
    checksum,
    fingerprint,
    read_json,
    save_tensors,
    write_atomic,
    write_json,
)
from gistgate.core.identity import BINDING, ModelIdentity, TokenizerIdentity, identify_model
from gistgate.core.utils import UserError, cause_of, dataclass_from
from gistgate.retrieval.suffix_array import END

FORMAT_VERSION = 1
"""Version of the folder's layout that this code reads and writes."""


@dataclass(frozen=True)
class DatastoreConfig:
    """Everything about a datastore except its tensors. Equal builds give equal bytes: no dates, no machine."""

    target: ModelIdentity  # the model whose states the keys are
    tokenizer: TokenizerIdentity  # the tokenizer of the stored tokens
    layer: str  # which state: "post", "pre" or "layer:i"
    num_keys: int  # N, stored states
    key_size: int  # P, width of a key
    files: dict[str, int] = field(default_factory=dict)
    """Bytes of every other file of the folder, by name: a truncated one is refused before it is read."""
    provenance: dict[str, Any] = field(default_factory=dict)  # which prompts the states come from, and how many
    format_version: int = FORMAT_VERSION  # layout of the folder

    def as_json(self) -> dict[str, Any]:
        """What config.json holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> DatastoreConfig:
        """Read what `as_json` wrote; `where` names the file in messages."""
        version = value.get("format_version") if isinstance(value, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"{where} has format version {version}, this gistgate reads {FORMAT_VERSION}. Build the datastore "
                "again, or install the version that wrote it."
            )
        try:
            parts = {"target": dataclass_from(ModelIdentity, value["target"])}
            parts["tokenizer"] = dataclass_from(TokenizerIdentity, value["tokenizer"])
            config: DatastoreConfig = dataclass_from(cls, {**value, **parts})
        except (KeyError, TypeError, ValueError) as error:
            cause = cause_of(error)
            raise UserError(f"{where} is no datastore configuration: {cause}. Build the datastore again.") from error
        return config


@dataclass(frozen=True)
class Projection:
    """key = unit(h W + b)."""

    weight: Tensor  # W [D, P]: components divided by the standard deviation of each dimension
    bias: Tensor  # b [P]: what the means come to

    @classmethod
    def compose(cls, mean_D: Tensor, deviation_D: Tensor, components_PD: Tensor, centre_D: Tensor) -> Projection:
        """One matrix for ((h - mean) / deviation - centre) components^T; a constant dimension counts for nothing."""
        inverse_D = torch.where(deviation_D > 0, 1 / deviation_D.clamp_min(1e-12), 0.0)
        weight_DP = (components_PD * inverse_D).T.contiguous()
        return cls(weight_DP.float(), (-mean_D @ weight_DP - centre_D @ components_PD.T).float())

    @property
    def size(self) -> int:
        """P."""
        return self.weight.shape[1]

    def __call__(self, states: Tensor) -> Tensor:
        """Keys [..., P], float32, of states [..., D]."""
        if states.shape[-1] != self.weight.shape[0]:
            raise UserError(
                f"The datastore's keys come from states of width {self.weight.shape[0]}, these have "
                f"{states.shape[-1]}. Build the datastore with this target."
            )
        return F.normalize(states.float() @ self.weight + self.bias, dim=-1)

    def to(self, device: torch.device | str) -> Projection:
        """The same projection on a device."""
        return Projection(self.weight.to(device), self.bias.to(device))


INDEX_FILE = "index.faiss"
PROJECTION_FILE = "projection.safetensors"


@dataclass(frozen=True)
class Datastore:
    """Keys of target states; the i-th state predicted the token at `places[i]`."""

    config: DatastoreConfig
    projection: Projection
    keys: Tensor  # unit vectors [N, P], float16, mapped from the file
    tokens: np.ndarray  # the answers one after another, each with its end mark [T], int32
    places: np.ndarray  # where the token stands that each state predicted [N], int64
    index_file: Path | None = None  # A FAISS index of the same keys, where the folder has one

    @classmethod
    def build(
        cls, config: DatastoreConfig, projection: Projection, keys: Tensor, answers: Sequence[Sequence[int]]
    ) -> Datastore:
        """A store in memory; the keys [N, P] stand in the order of the answers' tokens, one for each token."""
        tokens_T = np.array([token for answer in answers if answer for token in (*answer, END)], dtype=np.int32)
        places_N = np.flatnonzero(tokens_T != END)
        if len(keys) != len(places_N):
            raise UserError(f"There are {len(keys)} keys for {len(places_N)} tokens. Give one state for every token.")
        config = replace(config, num_keys=len(keys), key_size=projection.size)
        return cls(config, projection, keys.half(), tokens_T, places_N)

    def save(self, folder: str | Path, write_index: Callable[[Path], object] | None = None) -> None:
        """Write the folder, whole or not at all; `write_index` puts an index of the keys into the file it is given."""

        def write(part: Path) -> None:
            part.mkdir()
            projection = {"weight": self.projection.weight, "bias": self.projection.bias}
            save_tensors(part / PROJECTION_FILE, projection)
            save_tensors(part / "keys.safetensors", {"keys": self.keys, "tokens": torch.from_numpy(self.tokens)})
            if write_index is not None:
                write_index(part / INDEX_FILE)
            sizes = {path.name: path.stat().st_size for path in sorted(part.iterdir())}
            described = replace(self.config, files=sizes).as_json()
            sealed = checksum(described, fingerprint(part / PROJECTION_FILE))
            write_json(part / "config.json", {**described, "checksum": sealed})

        write_atomic(folder, write)

    @classmethod
    def load(cls, folder: str | Path, target: PreTrainedModel, layer: str | None = None) -> Datastore:
        """Open a folder; the keys are mapped, not read."""
        folder = Path(folder)
        place = folder / "config.json"
        described = read_json(place)
        sealed = described.pop("checksum", None) if isinstance(described, dict) else None
        config = DatastoreConfig.from_json(described, str(place))
        check_target(config, target)
        if layer is not None and layer != config.layer:
            raise UserError(
                f"{folder} holds states of '{config.layer}', not of '{layer}'. Build a datastore of that layer."
            )
        tensors: dict[str, Tensor] = {}
        for name, size in config.files.items():
            path = folder / name
            if name == INDEX_FILE:
                check_size(path, size)
            else:
                tensors |= mapped(path, size)
        check_tensors(folder, config, tensors)
        check_sealed(place, sealed, described, fingerprint(folder / PROJECTION_FILE))
        projection = Projection(tensors["weight"], tensors["bias"])
        keys, tokens_T = tensors["keys"], tensors["tokens"].numpy()
        places_N = np.flatnonzero(tokens_T != END)
        if len(places_N) != len(keys):
            raise UserError(f"{folder} is damaged (its keys are not those of its tokens). Build the datastore again.")
        return cls(
            config, projection, keys, tokens_T, places_N, folder / INDEX_FILE if INDEX_FILE in config.files else None
        )

    @property
    def answers(self) -> list[list[int]]:
        """The stored answers, in order."""
        ends = np.flatnonzero(self.tokens == END)
        return [part.tolist() for part in np.split(self.tokens[self.tokens != END], ends - np.arange(len(ends)))[:-1]]

    def first(self, num: int) -> Datastore:
        """A store of the first `num` answers alone."""
        answers = self.answers[:num]
        keys = self.keys[: sum(map(len, answers))]
        return Datastore.build(self.config, self.projection, keys, answers)


def check_tensors(folder: Path, config: DatastoreConfig, tensors: dict[str, Tensor]) -> None:
    """Refuse tensors of other names, shapes or dtypes, tokens that the target does not have, and a projection that is
    not finite. The keys are not read: they decide what is proposed, and the target verifies every proposal.
    """
    width = config.target.hidden_size
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "weight": ((width, config.key_size), torch.float32),
        "bias": ((config.key_size,), torch.float32),
        "keys": ((config.num_keys, config.key_size), torch.float16),
        "tokens": ((-1,), torch.int32),
    }
    for name, (shape, dtype) in wanted.items():
        if name not in tensors:
            raise UserError(f"{folder} has no tensor '{name}'. Build the datastore again.")
        found = tensors[name]
        if found.dtype != dtype or (found.ndim != 1 if name == "tokens" else tuple(found.shape) != shape):
            raise UserError(
                f"{folder}: the tensor '{name}' is {list(found.shape)} of {found.dtype}, which is not what its "
                "config.json says. Build the datastore again."
            )
    if not all(bool(tensors[name].isfinite().all()) for name in ("weight", "bias")):
        raise UserError(f"{folder} is damaged (its projection is not finite). Build the datastore again.")
    tokens = tensors["tokens"]
    if len(tokens) and not END <= int(tokens.min()) <= int(tokens.max()) < config.target.vocabulary_size:
        raise UserError(f"{folder} is damaged (it holds tokens that the target has not). Build the datastore again.")


def mapped(path: Path, size: int) -> dict[str, Tensor]:
    """The tensors of a file of `size` bytes."""
    check_size(path, size)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}). Build the datastore again.") from error


def check_size(path: Path, size: int) -> None:
    """Refuse a file that is missing or truncated."""
    if not path.exists():
        raise UserError(f"{path} is missing. Build the datastore again.")
    if path.stat().st_size != size:
        raise UserError(f"{path} has {path.stat().st_size} bytes instead of {size}. Build the datastore again.")


def check_target(config: DatastoreConfig, target: PreTrainedModel) -> None:
    """Refuse a target whose states these are not."""
    found = identify_model(target)
    for prop in BINDING:
        want, have = getattr(config.target, prop), getattr(found, prop)
        if want != have and not (prop == "fingerprint" and not (want and have)):
            raise UserError(
                f"This datastore does not fit the target: its {prop.replace('_', ' ')} should be {str(want)[:12]}, but "
                f"is {str(have)[:12]}. Load '{config.target.name}', or build a datastore for this target."
            )
