"""Lighter draft models, whose steps wait for fewer bytes: a part of the output layer, and weights
of 8 or 4 bits.

Axis letters: O outputs of a layer, I inputs, G groups of inputs, g inputs of a group.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from gistgate.core.files import read_json, write_json
from gistgate.core.identity import identify_tokenizer, sampled, weights_fingerprint
from gistgate.core.utils import UserError, added_ids, dataclass_from, refusing


@dataclass(frozen=True)
class Subset:
    """Token ids that a draft model may propose: a frequent part of the vocabulary (FR-Spec, arXiv
    2502.14856).
    """

    ids: tuple[int, ...]  # in rising order
    tokenizer: str  # hash of the tokenizer that the ids are of
    draft: str | None  # fingerprint of the draft model with its whole output layer
    coverage: float  # share of the counted tokens that the subset holds

    @classmethod
    def count(
        cls,
        texts: Iterable[Sequence[int]],
        size: int,
        tokenizer: Any,
        draft: PreTrainedModel,
        always: Iterable[int],
    ) -> Subset:
        """The `size` most frequent ids of some texts, of equals the lower one; `always` and added
        tokens are in it.
        """
        counts = Counter(chain.from_iterable(texts))
        rows = draft.get_output_embeddings().weight.shape[0]
        needed = {token for token in (*always, *added_ids(tokenizer)) if token < rows}
        if not counts or not len(needed) <= size <= rows:
            raise UserError(
                f"A draft vocabulary of {size} tokens cannot be counted on {counts.total()} tokens"
                f" of text. Pass texts, and a size from {len(needed)} (added tokens are always in)"
                f" to {rows}."
            )
        order = sorted(range(rows), key=lambda token: (token not in needed, -counts[token], token))
        ids = tuple(sorted(order[:size]))
        covered = sum(counts[token] for token in ids) / counts.total()
        identity = identify_tokenizer(tokenizer).vocabulary
        return cls(ids, identity, weights_fingerprint(draft), round(covered, 6))

    @classmethod
    def load(cls, path: str | Path) -> Subset:
        """A saved subset."""
        with refusing(f"{path} is no draft vocabulary", "Count it by `gistgate draft-vocabulary`."):
            subset = dataclass_from(cls, read_json(path))
        return replace(subset, ids=tuple(subset.ids))

    def save(self, path: str | Path) -> None:
        """Write the subset as JSON."""
        write_json(path, asdict(self))

    @property
    def digest(self) -> str:
        """Hash of the ids."""
        return hashlib.sha256(repr(self.ids).encode()).hexdigest()[:16]

    def apply(self, draft: PreTrainedModel, tokenizer: Any = None) -> PreTrainedModel:
        """Cut the output layer of a draft model down to the subset, in place, and return the
        model.
        """
        if getattr(draft, "subset", None) == self.digest:
            return draft
        fits = self.draft is None or weights_fingerprint(draft) in (None, self.draft)
        if tokenizer is not None:
            fits &= identify_tokenizer(tokenizer).vocabulary == self.tokenizer
        if not fits:
            raise UserError(
                "The draft vocabulary is of another tokenizer or another draft model. Count it"
                " again."
            )
        head = draft.get_output_embeddings()
        if type(head) is not nn.Linear:
            raise UserError(
                "The draft's output layer is no nn.Linear and cannot be cut. Use the whole"
                " vocabulary."
            )
        draft.set_output_embeddings(SubsetHead(head, self.ids))
        draft.subset = self.digest
        return draft


class SubsetHead(nn.Module):
    """An output layer that computes the logits of some tokens and gives -inf to all others."""

    def __init__(self, whole: nn.Linear, ids: Sequence[int]) -> None:
        super().__init__()
        self.vocabulary = whole.out_features
        self.index: Tensor
        index = torch.tensor(ids, device=whole.weight.device)
        self.register_buffer("index", index, persistent=False)
        has_bias = whole.bias is not None
        self.part = nn.Linear(whole.in_features, len(ids), bias=has_bias, device="meta")
        for name, values in whole.named_parameters():
            setattr(self.part, name, frozen(values.detach()[index]))

    def forward(self, h: Tensor) -> Tensor:
        """Logits [..., vocabulary] of states [..., D]."""
        z: Tensor = self.part(h)
        impossible = z.new_full((*z.shape[:-1], self.vocabulary), -torch.inf)
        return impossible.index_copy_(-1, self.index, z)


KINDS = ("none", "int8", "int4")
"""How weights are kept: as they are; 8 bits with one scale per output; 4 bits with scale and offset
per group."""
GROUP = 32
"""Inputs of an output that share scale and offset in `int4`."""
MOST_ROWS = 12
"""Rows up to which packed weights are read: unpacked ones are faster beyond, on processors."""


class Packed(nn.Module):
    """A linear layer that reads packed weights for few rows, and the same weights unpacked, kept as
    well, for many.
    """

    dense: Tensor

    def __init__(self, layer: nn.Linear, weight_OI: Tensor) -> None:
        super().__init__()
        dense_OI = weight_OI.to(layer.weight.dtype).contiguous()
        self.register_buffer("dense", dense_OI, persistent=False)
        self.bias = layer.bias

    def narrow(self, rows: Tensor) -> Tensor:
        """Products [rows, O] with the packed weights."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [..., O] of inputs [..., I]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = self.narrow(rows) if len(rows) <= MOST_ROWS else linear(rows, self.dense)
        y = y.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class Int8Linear(Packed):
    """y = s * (W8 x): one scale per output."""

    def __init__(self, layer: nn.Linear) -> None:
        weight_OI = layer.weight.detach().float()
        scale_O = scale_of(weight_OI.abs().amax(1), 127, layer.weight.dtype)
        levels_OI = (weight_OI / scale_O.float()[:, None]).round().clamp(-127, 127)
        super().__init__(layer, levels_OI * scale_O.float()[:, None])
        self.weight = frozen(levels_OI.to(torch.int8))
        self.scale = frozen(scale_O)

    def narrow(self, rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        return y


class Int4Linear(Packed):
    """y = W4 x with w = (level - 8) * scale + middle for every group of 32 inputs."""

    packed: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        outputs, inputs = layer.weight.shape
        weight_OGg = layer.weight.detach().float().view(outputs, inputs // GROUP, GROUP)
        low_OG, high_OG = weight_OGg.aminmax(dim=-1)
        scale_OG = scale_of(high_OG - low_OG, 15, layer.weight.dtype)
        middle_OG = (low_OG + 8 * scale_OG.float()).to(layer.weight.dtype)
        scale_OG1 = scale_OG.float()[..., None]
        middle_OG1 = middle_OG.float()[..., None]
        levels_OGg = ((weight_OGg - middle_OG1) / scale_OG1 + 8).round().clamp(0, 15)
        super().__init__(layer, ((levels_OGg - 8) * scale_OG1 + middle_OG1).view(outputs, inputs))
        levels_OI = levels_OGg.to(torch.int32).view(outputs, inputs)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels_OI, 1)
        self.register_buffer("packed", packed, persistent=False)
        # Processors pack levels in different orders, so that the fingerprint has to read them
        # unpacked.
        self.some_levels = frozen(sampled(levels_OI))
        self.scale_and_middle = frozen(torch.stack([scale_OG.T, middle_OG.T], dim=-1))

    def narrow(self, rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            rows, self.packed, GROUP, self.scale_and_middle
        )
        return y


def scale_of(width: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Scales that divide widths into steps, none of them 0: equal weights have no width, float16 no
    small scale.
    """
    return (width.clamp_min(1e-12) / steps).to(dtype).clamp_min(torch.finfo(dtype).tiny)


def frozen(values: Tensor) -> nn.Parameter:
    """Values as a parameter: the fingerprint of a model reads its parameters, so it tells quantised
    models apart.
    """
    return nn.Parameter(values.contiguous(), requires_grad=False)


def quantise(model: PreTrainedModel, kind: str | None) -> PreTrainedModel:
    """Round the weights of all linear layers of a draft model in place; those of a shape odd for
    `int4` to 8 bits.
    """
    check_kind(kind or "none")
    present = getattr(model, "quantised", None)
    if kind in (None, "none", present):
        return model
    if model.device.type != "cpu":
        raise UserError(
            f"{kind} drafts are for processors, and it is on {model.device.type}. Leave"
            " quantisation out."
        )
    if present or getattr(model.config, "quantization_config", None):
        raise UserError(
            "The draft is quantised already. Name its original weights, or leave the quantisation"
            " out."
        )
    for name, layer in list(model.named_modules()):
        if type(layer) is not nn.Linear:
            continue
        fits_int4 = layer.in_features % GROUP == 0 and layer.out_features % 16 == 0
        packed = Int4Linear(layer) if kind == "int4" and fits_int4 else Int8Linear(layer)
        model.set_submodule(name, packed)
    model.quantised = kind
    return model


def check_kind(kind: Any) -> None:
    """Refuse (UserError) what is none of `KINDS`."""
    if kind not in KINDS:
        raise UserError(f"Weights cannot be quantised to '{kind}'. Use one of: {', '.join(KINDS)}.")
