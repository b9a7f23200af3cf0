"""Draft models with weights of 8 or 4 bits: a draft step mostly waits for weights, so fewer bytes make it cheaper.

Only weights are rounded; activations and sums keep the model's dtype. The kernels are PyTorch's own for processors.
A draft is verified whatever its weights are, so lossless rules stay lossless.

Axis letters: O outputs of a layer, I inputs, G groups of I / 32 inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.identity import sampled

KINDS = ("none", "int8", "int4")
"""How weights are kept: as they are; 8 bits with one scale per output; 4 bits with scale and offset per group."""
GROUP = 32
"""Inputs of an output that share scale and offset in `int4`."""
MOST_ROWS = 12
"""Rows up to which packed weights are read: beyond that a product with unpacked ones is faster on processors."""


class Packed(nn.Module):
    """A linear layer that reads packed weights for few rows, and the same weights unpacked for many.

    A single row waits for weights, so that fewer bytes make it faster; a prompt or a batch waits for products, and the
    kernels of packed weights are slower at those. Both copies are kept, which costs the memory of one more layer.
    """

    dense: Tensor

    def __init__(self, layer: nn.Linear, weight_OI: Tensor) -> None:
        super().__init__()
        self.register_buffer("dense", weight_OI.to(layer.weight.dtype).contiguous(), persistent=False)
        self.bias = layer.bias

    def narrow(self, rows: Tensor) -> Tensor:
        """Products [rows, O] with the packed weights."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = self.narrow(rows) if len(rows) <= MOST_ROWS else linear(rows, self.dense)
        return shaped(y, x, self.bias)


class Int8Linear(Packed):
    """y = s * (W8 x): one scale per output."""

    def __init__(self, layer: nn.Linear) -> None:
        weight_OI = layer.weight.detach().float()
        scale_O = scale_of(weight_OI.abs().amax(1), 127, layer.weight.dtype)
        levels_OI = (weight_OI / scale_O.float()[:, None]).round().clamp(-127, 127)
        super().__init__(layer, levels_OI * scale_O.float()[:, None])
        self.weight, self.scale = frozen(levels_OI.to(torch.int8)), frozen(scale_O)

    def narrow(self, rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        return y


class Int4Linear(Packed):
    """y = W4 x with w = (level - 8) * scale + middle for every group of 32 inputs."""

    packed: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        outputs, inputs = layer.weight.shape
        weight_OGg = layer.weight.detach().float().view(outputs, inputs // GROUP, GROUP)
        least, most = weight_OGg.aminmax(dim=-1)
        scale_OG = scale_of(most - least, 15, layer.weight.dtype)
        middle_OG = (least + 8 * scale_OG.float()).to(layer.weight.dtype)
        scale, middle = scale_OG.float()[..., None], middle_OG.float()[..., None]
        levels = ((weight_OGg - middle) / scale + 8).round().clamp(0, 15)
        super().__init__(layer, ((levels - 8) * scale + middle).view(outputs, inputs))
        levels_OI = levels.to(torch.int32).view(outputs, inputs)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels_OI, 1)
        self.register_buffer("packed", packed, persistent=False)
        # Processors pack levels in different orders, so that the fingerprint has to read them unpacked.
        self.some_levels = frozen(sampled(levels_OI))
        self.scale_and_middle = frozen(torch.stack([scale_OG.T, middle_OG.T], dim=-1))

    def narrow(self, rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scale_and_middle)
        return y


def scale_of(width: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Scales that divide widths into steps, none of them 0: equal weights have no width, float16 no small scale."""
    return (width.clamp_min(1e-12) / steps).to(dtype).clamp_min(torch.finfo(dtype).tiny)


def shaped(y: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    """Rows of outputs in the shape of the input, the bias added."""
    y = y.view(*x.shape[:-1], -1)
    return y if bias is None else y + bias


def frozen(values: Tensor) -> nn.Parameter:
    """Values as a parameter: the fingerprint of a model reads its parameters, so it tells quantised models apart."""
    return nn.Parameter(values.contiguous(), requires_grad=False)


PACKED: dict[str, Callable[[nn.Linear], nn.Module]] = {"int8": Int8Linear, "int4": Int4Linear}
"""By kind what takes the place of a linear layer."""


def quantise(model: PreTrainedModel, kind: str | None) -> PreTrainedModel:
    """Round the weights of all linear layers of a draft model in place, output layer included, and return it.

    Layers whose shape the kernel of `int4` does not take are kept in 8 bits. `None` and "none" change nothing.

    Raises:
        UserError: there is no such kind, or this model or device has no kernels for it.
    """
    if kind in (None, "none"):
        return model
    check_kind(kind)
    if getattr(model, "quantised", None) == kind:
        return model
    if (why := reason_against(model)) is not None:
        raise UserError(f"The draft model cannot be quantised to {kind}: {why}.")
    layers = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
    for name, layer in layers:
        model.set_submodule(name, PACKED[kind if kind == "int8" or fits_int4(layer) else "int8"](layer))
    model.quantised = kind
    return model


def check_kind(kind: Any) -> None:
    """Refuse what is no kind.

    Raises:
        UserError: names the kinds.
    """
    if kind not in KINDS:
        raise UserError(f"Weights cannot be quantised to '{kind}'. Use one of: {', '.join(KINDS)}.")


def fits_int4(layer: nn.Linear) -> bool:
    """Whether the kernel of 4 bits takes a layer of this shape."""
    return layer.in_features % GROUP == 0 and layer.out_features % 16 == 0


def reason_against(model: PreTrainedModel) -> str | None:
    """Why this model cannot be quantised here, with the remedy; None where it can."""
    if model.device.type != "cpu":
        return (
            f"weights of 8 and 4 bits are for processors, and it is on {model.device.type}. Name a checkpoint that "
            "transformers loads quantised, or leave the quantisation out"
        )
    if getattr(model, "quantised", None) or getattr(model.config, "quantization_config", None):
        return "it is quantised already. Name the checkpoint with its original weights, or leave the quantisation out"
    if model.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"its dtype is {model.dtype}. Load it in bfloat16 or float32"
    if not any(type(layer) is nn.Linear for layer in model.modules()):
        return "it has no linear layers (nn.Linear). Leave the quantisation out"
    return None
