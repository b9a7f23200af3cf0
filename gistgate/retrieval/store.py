"""A datastore folder: config.json, the projection, and the keys with the tokens that followed them.

Axis letters: N keys, P width of a key, T stored tokens with an end mark behind every answer.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from gistgate.core.cache import Texts
from gistgate.core.files import (
    check_sealed,
    fingerprint,
    load_tensors,
    read_sealed,
    save_tensors,
    write_atomic,
    write_sealed,
)
from gistgate.core.identity import ModelIdentity, TokenizerIdentity, check_identity, identify_model
from gistgate.core.utils import UserError, dataclass_from
from gistgate.retrieval.corpus import END

FORMAT_VERSION = 1  # version of the folder's layout that this code reads and writes
INDEX_FILE = "index.faiss"
PROJECTION_FILE = "projection.safetensors"
KEYS_FILE = "keys.safetensors"


@dataclass(frozen=True)
class DatastoreConfig:
    """Everything about a datastore except its tensors. Equal builds give equal bytes: no dates, no
    machine.
    """

    target: ModelIdentity  # the model whose states the keys are
    tokenizer: TokenizerIdentity  # the tokenizer of the stored tokens
    layer: str  # which state: "post", "pre" or "layer:i"
    num_keys: int  # N, stored states
    key_size: int  # P, width of a key
    files: dict[str, int] = field(default_factory=dict)
    """Bytes of every other file of the folder, by name."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Which prompts the states come from, and how many."""
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class Projection:
    """key = unit(h W + b)."""

    weight: Tensor  # W [D, P]: components divided by the standard deviation of each dimension
    bias: Tensor  # b [P]: what the means come to

    @classmethod
    def compose(
        cls,
        mean_D: Tensor,
        deviation_D: Tensor,
        components_PD: Tensor,
        centre_D: Tensor,
    ) -> Self:
        """One matrix for ((h - mean) / deviation - centre) components^T; a constant dimension
        counts for nothing.
        """
        inverse_D = torch.where(deviation_D > 0, 1 / deviation_D.clamp_min(1e-12), 0.0)
        weight_DP = (components_PD * inverse_D).T.contiguous()
        return cls(weight_DP.float(), (-mean_D @ weight_DP - centre_D @ components_PD.T).float())

    def __call__(self, states: Tensor) -> Tensor:
        """Keys [..., P], float32, of states [..., D]."""
        return F.normalize(states.float() @ self.weight + self.bias, dim=-1)


@dataclass(frozen=True)
class Datastore:
    """Keys of target states; the i-th state predicted the token at `places[i]`."""

    config: DatastoreConfig
    projection: Projection
    keys: Tensor  # unit vectors [N, P], float16, mapped from the file
    tokens: np.ndarray  # the answers one after another, each with its end mark [T], int32
    places: np.ndarray  # where the token stands that each state predicted [N], int64
    index_file: Path | None = None  # a FAISS index of the same keys, where the folder has one

    @classmethod
    def build(
        cls,
        config: DatastoreConfig,
        projection: Projection,
        keys: Tensor,
        answers: Texts,
    ) -> Self:
        """A store of these answers, whose tokens `keys` [N, P] predicted in order."""
        tokens = chain.from_iterable([*answer, END] for answer in answers)
        tokens_T = np.fromiter(tokens, np.int32)
        places_N = np.flatnonzero(tokens_T != END)
        assert len(keys) == len(places_N), "one state for every token"
        config = replace(config, num_keys=len(keys), key_size=projection.weight.shape[1])
        return cls(config, projection, keys.half(), tokens_T, places_N)

    def save(self, folder: str | Path, write_index: Callable[[Path], object] | None = None) -> None:
        """Write the folder, whole or not at all; `write_index` puts an index of the keys into the
        file it is given.
        """

        def write(part: Path) -> None:
            part.mkdir()
            stored = {"keys": self.keys, "tokens": torch.from_numpy(self.tokens)}
            save_tensors(part / PROJECTION_FILE, asdict(self.projection))
            save_tensors(part / KEYS_FILE, stored)
            if write_index is not None:
                write_index(part / INDEX_FILE)
            sizes = {path.name: path.stat().st_size for path in sorted(part.iterdir())}
            described = asdict(replace(self.config, files=sizes))
            write_sealed(part / "config.json", described, fingerprint(part / PROJECTION_FILE))

        write_atomic(folder, write)

    @classmethod
    def load(cls, folder: str | Path, target: PreTrainedModel) -> Self:
        """Open a folder of this target's states; the keys are mapped, not read."""
        folder = Path(folder)
        place = folder / "config.json"
        described, sealed = read_sealed(place, "datastore", "Build it again.", FORMAT_VERSION)
        target_identity = dataclass_from(ModelIdentity, described["target"])
        tokenizer = dataclass_from(TokenizerIdentity, described["tokenizer"])
        identities = {"target": target_identity, "tokenizer": tokenizer}
        config = dataclass_from(DatastoreConfig, {**described, **identities})
        check_identity("target", config.target, identify_model(target), "datastore")
        for name, size in config.files.items():
            file = folder / name
            if not file.exists() or file.stat().st_size != size:
                raise UserError(f"{file} is missing or truncated. Build the datastore again.")
        check_sealed(place, sealed, described, fingerprint(folder / PROJECTION_FILE))
        projection = Projection(**load_tensors(folder / PROJECTION_FILE))
        stored = load_tensors(folder / KEYS_FILE)
        tokens_T = stored["tokens"].numpy()
        places_N = np.flatnonzero(tokens_T != END)
        index_file = folder / INDEX_FILE if INDEX_FILE in config.files else None
        return cls(config, projection, stored["keys"], tokens_T, places_N, index_file)
