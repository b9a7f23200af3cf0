"""Linear layers and embeddings with weights of 8 or 4 bits, for processors: a step of a model waits
for its weights, and these are fewer bytes.

The products are those of `gistgate.models.products` where these run, and elsewhere PyTorch's own
(`_weight_int4pack_mm_for_cpu`, `_weight_int8pack_mm`), which are fast in bfloat16 alone. With
activations of 8 bits they are those of oneDNN (`qlinear_pointwise`). Axis letters: O outputs of a
layer, I inputs, G groups of inputs, g inputs of a group, R rows, N blocks of outputs in packed
order, b outputs of a block, h outputs of half a block, n blocks and o outputs of a portion.
"""

from __future__ import annotations

import sys
from functools import cache
from itertools import count
from typing import Any, Self
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from gistgate.core.identity import sampled
from gistgate.core.utils import UserError
from gistgate.models.products import take

GGUF = "gguf"
W8A8 = "w8a8"
KINDS = ("none", "int8", "int4", W8A8, GGUF)
"""How weights are kept: as they are; 8 bits with one scale per output; 4 bits with scale and offset
per group; as int8, and activations in 8 bits with one scale per row; packed as a GGUF file has them
(`gistgate.models.gguf_file`)."""
GROUP = 32
"""Inputs of an output that share scale and offset in `int4`."""
SLAB = 64
"""Outputs that `int4` packs together, on every kind of processor."""
PORTION = 512
"""Outputs that are unpacked at a time, so that they stay in the processor's cache."""


def lacks_bfloat16() -> bool:
    """Whether this is an x86 processor without instructions for bfloat16."""
    is_x86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
    return is_x86 and not torch.cpu._is_avx512_bf16_supported()


class Packed(nn.Module):
    """A linear layer that reads packed weights for few rows, and unpacks them for many."""

    bias: nn.Parameter | None
    most_rows: int
    """Rows up to which packed weights are read: unpacked ones are faster beyond, unless the
    processor lacks instructions for bfloat16."""

    @classmethod
    def rounded(cls, layer: nn.Linear) -> Self:
        """The layer with its weights rounded to the nearest level."""
        raise NotImplementedError

    def narrow(self, rows: Tensor) -> Tensor:
        """Products [rows, O] of few rows [rows, I] with the packed weights."""
        raise NotImplementedError

    def wide(self, rows: Tensor) -> Tensor:
        """Products [rows, O] of many rows, for which weights are unpacked portion by portion."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [..., O] of inputs [..., I]."""
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        is_narrow = len(rows) <= self.most_rows or lacks_bfloat16()
        y = self.narrow(rows) if is_narrow else self.wide(rows)
        y = y.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class Int8Linear(Packed):
    """y = s * (W8 x): one scale per output."""

    most_rows = 16

    def __init__(self, levels_OI: Tensor, scale_O: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = frozen(levels_OI)
        self.scale = frozen(scale_O)
        self.bias = bias

    @classmethod
    def rounded(cls, layer: nn.Linear) -> Self:
        return cls(*int8_levels(layer.weight.detach(), layer.weight.dtype), layer.bias)

    def narrow(self, rows: Tensor) -> Tensor:
        y: Tensor
        if take(rows):
            y = torch.ops.gistgate.int8_product(rows, self.weight, self.scale)
        else:
            y = torch.ops.aten._weight_int8pack_mm(rows, self.weight, self.scale)
        return y

    def wide(self, rows: Tensor) -> Tensor:
        parts = [linear(rows, levels.to(rows.dtype)) for levels in self.weight.split(PORTION)]
        return torch.cat(parts, dim=-1) * self.scale


class W8A8Linear(Packed):
    """y = s * a * (W8 x8): one scale per output and one per row of activations, so that a row has
    the same products beside any other rows. The sums are whole numbers, which processors with VNNI
    add several times as fast as bfloat16 without AMX: nine rows take little longer than one.
    """

    most_rows = sys.maxsize
    packed: Tensor

    def __init__(self, levels_OI: Tensor, scale_O: Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        packed = torch.ops.onednn.qlinear_prepack(levels_OI, None)
        self.register_buffer("packed", packed, persistent=False)
        self.zeros = torch.zeros(len(levels_OI), dtype=torch.int32)
        self.some_levels = frozen(sampled(levels_OI))  # which the fingerprint reads
        self.scale = frozen(scale_O)  # in the type of the model, which is read off its parameters
        self.float_scale = scale_O.float()
        self.bias = bias
        self.number = next(NUMBERS)
        W8A8_LAYERS[self.number] = self

    @classmethod
    def rounded(cls, layer: nn.Linear) -> Self:
        return cls(*int8_levels(layer.weight.detach(), layer.weight.dtype), layer.bias)

    def narrow(self, rows: Tensor) -> Tensor:
        rows_RI = rows.float()
        scale_R1 = scale_of(rows_RI.abs().amax(-1, keepdim=True), 127, torch.float32)
        levels_RI = ((rows_RI / scale_R1).round() + MIDDLE).to(torch.uint8)
        sums_RO = w8a8_sums(levels_RI, self.number, len(self.zeros))
        y: Tensor = (sums_RO * scale_R1).to(rows.dtype)
        return y

    def sums(self, levels_RI: Tensor) -> Tensor:
        """Scaled sums [R, O] over levels of activations, which are `MIDDLE` for 0."""
        sums_RO: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels_RI,
            1.0,
            MIDDLE,
            self.packed,
            self.float_scale,
            self.zeros,
            None,  # bias
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return sums_RO


MIDDLE = 128
"""Level of an activation of 0: the products of processors want activations without a sign."""
NUMBERS = count()
W8A8_LAYERS: WeakValueDictionary[int, W8A8Linear] = WeakValueDictionary()
"""Layers by number: compiled programs take no weights that oneDNN has packed, but a number."""


# An exported gate has a copy of this module, with layers and an operator of its own.
@torch.library.custom_op(f"{__name__.replace('.', '_')}::w8a8_sums", mutates_args=())
def w8a8_sums(levels_RI: Tensor, number: int, outputs: int) -> Tensor:
    """The sums of the layer with a number."""
    return W8A8_LAYERS[number].sums(levels_RI)


@w8a8_sums.register_fake
def shape_of_sums(levels_RI: Tensor, number: int, outputs: int) -> Tensor:
    """An empty result, which tells a compiler its shape."""
    return levels_RI.new_empty((len(levels_RI), outputs), dtype=torch.float32)


class Int8Embedding(nn.Module):
    """The embeddings of token ids from levels of 8 bits, with one scale per token."""

    def __init__(self, levels_VD: Tensor, scale_V: Tensor) -> None:
        super().__init__()
        self.weight = frozen(levels_VD)
        self.scale = frozen(scale_V)

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings [..., D] of ids [...]."""
        embeddings: Tensor = self.weight[ids].to(self.scale.dtype) * self.scale[ids][..., None]
        return embeddings


class Int4Linear(Packed):
    """y = W4 x with w = (level - 8) * scale + middle for every group of 32 inputs."""

    most_rows = 128
    packed: Tensor
    order: Tensor

    def __init__(
        self,
        levels_OI: Tensor,  # int32, from 0 to 15
        scale_OG: Tensor,
        middle_OG: Tensor,
        bias: nn.Parameter | None,
    ) -> None:
        super().__init__()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels_OI, 1)
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("order", packing_order(), persistent=False)
        # Processors pack levels in different orders, so that the fingerprint has to read them
        # unpacked.
        self.some_levels = frozen(sampled(levels_OI))
        self.scale_and_middle = frozen(torch.stack([scale_OG.T, middle_OG.T], dim=-1))
        self.bias = bias

    @classmethod
    def rounded(cls, layer: nn.Linear) -> Self:
        outputs, inputs = layer.weight.shape
        weight_OGg = layer.weight.detach().float().view(outputs, inputs // GROUP, GROUP)
        low_OG, high_OG = weight_OGg.aminmax(dim=-1)
        scale_OG = scale_of(high_OG - low_OG, 15, layer.weight.dtype)
        middle_OG = (low_OG + 8 * scale_OG.float()).to(layer.weight.dtype)
        steps_OGg = (weight_OGg - middle_OG.float()[..., None]) / scale_OG.float()[..., None]
        levels_OI = (steps_OGg + 8).round().clamp(0, 15).to(torch.int32).view(outputs, inputs)
        return cls(levels_OI, scale_OG, middle_OG, layer.bias)

    def narrow(self, rows: Tensor) -> Tensor:
        y: Tensor
        if take(rows):
            y = torch.ops.gistgate.int4_product(rows, self.packed, self.scale_and_middle)
        else:
            numbers = self.scale_and_middle
            y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, numbers)
        return y

    def wide(self, rows: Tensor) -> Tensor:
        block = len(self.order)
        groups = len(self.scale_and_middle)
        # Outputs stay in packed order, and so do scale and middle here.
        numbers_GNb2 = self.scale_and_middle.view(groups, -1, block, 2)[:, :, self.order]
        scale_G1O, middle_G1O = numbers_GNb2.flatten(1, 2)[:, None].movedim(-1, 0).contiguous()
        bytes_INh = self.packed.view(-1, rows.shape[-1], block // 2).transpose(0, 1)
        parts: list[Tensor] = []
        for bytes_Inh in bytes_INh.split(PORTION // block, dim=1):
            halves_Inb = torch.cat([bytes_Inh & 15, bytes_Inh >> 4], dim=-1)
            levels_Ggo = halves_Inb.flatten(1).to(rows.dtype).unflatten(0, (groups, GROUP)) - 8
            places = slice(PORTION * len(parts), PORTION * len(parts) + levels_Ggo.shape[-1])
            scale_G1o, middle_G1o = scale_G1O[..., places], middle_G1O[..., places]
            weight_Ggo = torch.addcmul(middle_G1o, levels_Ggo, scale_G1o)
            parts.append(rows @ weight_Ggo.flatten(0, 1))
        y_RO = torch.cat(parts, dim=-1)
        y_RNb = y_RO.view(len(rows), -1, block)[..., self.order.argsort()]
        return y_RNb.flatten(1)


def int8_levels(weight_OI: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Levels of 8 bits [O, I], and the scale of every output [O] in `dtype`."""
    weight_OI = weight_OI.float()
    scale_O = scale_of(weight_OI.abs().amax(1), 127, dtype)
    levels_OI = (weight_OI / scale_O.float()[:, None]).round().clamp(-127, 127)
    return levels_OI.to(torch.int8), scale_O


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


@cache
def packing_order() -> Tensor:
    """The outputs of a block [b] in the order in which this processor packs them: first the low
    halves of the bytes of one input, then the high ones. It is read off packed numbers of outputs,
    digit by digit, and of inputs.
    """
    outputs = torch.arange(SLAB, dtype=torch.int32)[:, None].expand(-1, 2)
    inputs = torch.arange(2, dtype=torch.int32).expand(SLAB, -1)
    digits = []
    for numbers in (outputs % 16, outputs // 16, inputs):
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.contiguous(), 1)
        digits.append(packed.flatten().long())
    half = int((digits[2] & 15).argmax())  # bytes of the first input, before those of the second
    low = (digits[0] & 15) + 16 * (digits[1] & 15)
    high = (digits[0] >> 4) + 16 * (digits[1] >> 4)
    return torch.cat([low[:half], high[:half]])


def packed_linear(layer: nn.Linear, kind: str) -> Packed:
    """The layer rounded to `kind`; one of a shape odd for `int4` has 8 bits."""
    if kind == W8A8:
        return W8A8Linear.rounded(layer)
    fits_int4 = layer.in_features % GROUP == 0 and layer.out_features % SLAB == 0
    return (Int4Linear if kind == "int4" and fits_int4 else Int8Linear).rounded(layer)


def quantise(model: PreTrainedModel, kind: str | None) -> PreTrainedModel:
    """Round the weights of all linear layers of a model in place."""
    check_kind(kind or "none")
    present = getattr(model, "quantised", None)
    if kind in (None, "none", present):
        return model
    if model.device.type != "cpu":
        raise UserError(
            f"Weights of {kind} are for processors, and the model is on {model.device.type}. Leave"
            " quantisation out."
        )
    if present or getattr(model.config, "quantization_config", None):
        raise UserError(
            "The model is quantised already. Name its original weights, or leave the quantisation"
            " out."
        )
    if kind == GGUF:
        raise UserError(
            "Weights are packed as in a GGUF file where a model comes from one. Name such a file,"
            " or take int4."
        )
    check_processor(kind)
    for name, layer in list(model.named_modules()):
        if type(layer) is nn.Linear:
            model.set_submodule(name, packed_linear(layer, str(kind)))
    model.quantised = kind
    return model


def check_processor(kind: str | None) -> None:
    """Refuse (UserError) what this processor has no instructions for."""
    if kind == W8A8 and not torch.cpu._is_vnni_supported():
        raise UserError(
            "Activations of 8 bits (w8a8) need a processor with VNNI instructions, which this one"
            " lacks. Take int8 or int4."
        )


def check_kind(kind: Any) -> None:
    """Refuse (UserError) what is none of `KINDS`."""
    if kind not in KINDS:
        raise UserError(f"Weights cannot be quantised to '{kind}'. Use one of: {', '.join(KINDS)}.")
