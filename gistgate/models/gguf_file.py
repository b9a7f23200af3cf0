"""Models from GGUF files whose blocks stay packed, for processors.

Blocks of 4 bits with groups of 32 inputs (Q4_0, Q4_1, Q4_K) keep their levels; their scales and
offsets are rounded to bfloat16. All other weights of linear layers and embeddings are rounded to 8
bits with one scale for each output, so that blocks with groups of their own (Q5, Q6_K, Q8_0) are
kept up to 1/254 of the largest weight of an output. A model that is rounded otherwise (`int8`,
`int4`, `w8a8`) is rounded layer by layer while the file is read. Axis letters: O outputs, I inputs,
B blocks of an output, G groups of inputs, n bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from gistgate.core.utils import replaced
from gistgate.models.packed import (
    GGUF,
    GROUP,
    SLAB,
    Int4Linear,
    Int8Embedding,
    Int8Linear,
    Packed,
    int8_levels,
    packed_linear,
    quantise,
)

FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
PLAIN = ("F32", "F16", "BF16")
ROWS = 256
"""Outputs that are unpacked at a time, so that they stay in the processor's cache."""


class Reader(gguf.GGUFReader):
    """A GGUF file, parsed four times as fast as by its base, to which each of the half million
    numbers of a vocabulary is a file mapped into memory.
    """

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        form = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        return np.frombuffer(self.data, form, int(count), int(offset))


def parsed_by(reader: Reader | type[Reader]) -> AbstractContextManager[None]:
    """While open, transformers reads GGUF files with this reader, or has this one in place of
    another.
    """
    use = reader if isinstance(reader, type) else lambda _: reader
    return replaced(gguf, "GGUFReader", use)


def packed_model(
    path: Path, kind: str = GGUF, dtype: torch.dtype = torch.bfloat16
) -> PreTrainedModel:
    """The model in a GGUF file, with the weights of its linear layers kept as `kind` says, one of
    `gistgate.models.packed.KINDS` but `none`; `gguf` packs the embeddings as well.

    Raises ValueError where the file lacks weights, and NotImplementedError for a model whose
    weights are not those of linear layers, embeddings and norms (experts in one tensor).
    """
    reader = Reader(path)
    with parsed_by(reader):
        entries = load_gguf_checkpoint(path)["config"]
    config = AutoConfig.for_model(**entries)
    with no_init_weights():  # memory is taken where it is written, so that this takes none
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    architecture = str(reader.fields["general.architecture"].contents())
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=entries)
    with replaced(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)):
        names = get_gguf_hf_weights_map(model, processor)  # asks anew for every module
    lacking = set(dict(model.named_parameters()))
    if any(len(tensor.shape) > 2 for tensor in reader.tensors):
        raise NotImplementedError("experts lie in one tensor")
    tensors = [tensor for tensor in reader.tensors if tensor.name in names]
    lacking -= {names[tensor.name] for tensor in tensors}
    place = partial(fill, model, names, processor, kind)
    # Packed layers take the biases over that stand in the model, which therefore come first.
    for is_packed in (False, True):
        group = [tensor for tensor in tensors if is_packed == (blocks_of(tensor) not in PLAIN)]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(place, group))
    if config.tie_word_embeddings:
        tie(model)
        lacking.discard("lm_head.weight")
    if lacking:
        raise ValueError(f"its files lack {len(lacking)} weights, such as {min(lacking)}")
    if kind == GGUF:
        model.quantised = GGUF
    else:
        quantise(model, kind)  # what the file does not pack, and an output layer that is shared
    model.gguf_file = str(path)
    model.config.name_or_path = str(path.parent)
    return model.requires_grad_(False)


def blocks_of(tensor: Any) -> str:
    """How a tensor of a GGUF file is packed, such as Q4_K."""
    return str(tensor.tensor_type.name)


def fill(
    model: PreTrainedModel,
    names: dict[str, str],
    processor: TensorProcessor,
    kind: str,
    tensor: Any,
) -> None:
    """Put a tensor of a GGUF file in the place of a parameter."""
    name = names[tensor.name]
    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    blocks = blocks_of(tensor)
    dtype = module.get_parameter(attribute).dtype
    is_packed_weight = attribute == "weight" and blocks not in PLAIN
    if is_packed_weight and type(module) is nn.Linear:
        data = tensor.data[order_of_rows(tensor, processor)]
        make = linear_of if kind == GGUF else partial(rounded, kind=kind)
        model.set_submodule(owner, make(data, blocks, module, dtype))
    elif is_packed_weight and type(module) is nn.Embedding and kind == GGUF:
        levels = int8_of(tensor.data, blocks, dtype)
        model.set_submodule(owner, Int8Embedding(*levels))
    else:
        values = processor.process(weights=unpacked(tensor.data, blocks), name=tensor.name).weights
        parameter = nn.Parameter(torch.tensor(values, dtype=dtype), requires_grad=False)
        if parameter.shape != module.get_parameter(attribute).shape:
            raise ValueError(f"its weight {name} has the shape {tuple(parameter.shape)}")
        setattr(module, attribute, parameter)


def order_of_rows(tensor: Any, processor: TensorProcessor) -> Any:
    """The order of the outputs of a tensor that transformers' model wants: llama.cpp permutes those
    of some attention layers.
    """
    rows = np.arange(len(tensor.data))
    if type(processor) is TensorProcessor:
        return slice(None)
    permuted = processor.process(weights=rows[:, None], name=tensor.name).weights
    if permuted.shape != (len(rows), 1):
        raise NotImplementedError(f"{tensor.name} is no weight of one linear layer")
    return permuted[:, 0]


def linear_of(data: Any, blocks: str, layer: nn.Linear, dtype: torch.dtype) -> Packed:
    """A linear layer with the blocks [O, bytes] of a tensor as its weights."""
    fits_int4 = layer.in_features % GROUP == 0 and layer.out_features % SLAB == 0
    if blocks in FOUR_BITS and fits_int4:
        levels_OI, scale_OG, offset_OG = levels_of(torch.tensor(data), blocks)
        middle_OG = offset_OG + 8 * scale_OG
        return Int4Linear(levels_OI, scale_OG.to(dtype), middle_OG.to(dtype), layer.bias)
    return Int8Linear(*int8_of(data, blocks, dtype), layer.bias)


def rounded(data: Any, blocks: str, layer: nn.Linear, dtype: torch.dtype, kind: str) -> Packed:
    """A linear layer with the blocks [O, bytes] of a tensor as its weights, rounded to `kind`."""
    begins = range(0, len(data), ROWS)
    parts = [unpacked(data[begin : begin + ROWS], blocks) for begin in begins]
    weights = [torch.from_numpy(part).to(dtype) for part in parts]
    layer.weight = nn.Parameter(torch.cat(weights), requires_grad=False)
    return packed_linear(layer, kind)


def int8_of(data: Any, blocks: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Levels of 8 bits and scales of the blocks [O, bytes] of a tensor."""
    levels = []
    scales = []
    for begin in range(0, len(data), ROWS):
        weights = torch.from_numpy(unpacked(data[begin : begin + ROWS], blocks))
        levels_OI, scale_O = int8_levels(weights, dtype)
        levels.append(levels_OI)
        scales.append(scale_O)
    return torch.cat(levels), torch.cat(scales)


def unpacked(data: Any, blocks: str) -> Any:
    """The values of blocks in float32."""
    return gguf.dequantize(data, gguf.GGMLQuantizationType[blocks])


def levels_of(data_On: Tensor, blocks: str) -> tuple[Tensor, Tensor, Tensor]:
    """Levels from 0 to 15 as int32 [O, I], scales [O, G] and offsets [O, G] of blocks of 4 bits, as
    ggml defines them: a weight is its level times the scale, plus the offset.
    """
    outputs = len(data_On)
    if blocks == "Q4_K":
        blocks_OBn = data_On.view(outputs, -1, 144)
        numbers_OB2 = halves(blocks_OBn[..., :4])
        steps_OB8, offsets_OB8 = six_bits(blocks_OBn[..., 4:16])
        scale = numbers_OB2[..., :1] * steps_OB8
        offset = -numbers_OB2[..., 1:] * offsets_OB8
        bytes_OG = blocks_OBn[..., 16:].reshape(outputs, -1, 32)
    else:
        header = {"Q4_0": 2, "Q4_1": 4}[blocks]
        blocks_OBn = data_On.view(outputs, -1, header + 16)
        numbers = halves(blocks_OBn[..., :header])
        scale = numbers[..., :1]
        offset = -8 * scale if blocks == "Q4_0" else numbers[..., 1:]
        bytes_OG = blocks_OBn[..., header:]
    levels = torch.cat([bytes_OG & 15, bytes_OG >> 4], dim=-1)
    return levels.flatten(1).to(torch.int32), scale.flatten(1), offset.flatten(1)


def halves(data: Tensor) -> Tensor:
    """Pairs of bytes as the numbers of half precision that they are, in float32."""
    return data.contiguous().view(torch.float16).float()


def six_bits(data_OBn: Tensor) -> tuple[Tensor, Tensor]:
    """The eight steps and the eight offsets of 6 bits in the twelve bytes of a block of Q4_K."""
    low, middle, high = data_OBn.split(4, dim=-1)
    steps = torch.cat([low & 63, (high & 15) | (low >> 6 << 4)], dim=-1)
    offsets = torch.cat([middle & 63, (high >> 4) | (middle >> 6 << 4)], dim=-1)
    return steps.float(), offsets.float()


def tie(model: PreTrainedModel) -> None:
    """Let the output layer share the levels of the embeddings."""
    embeddings = model.get_input_embeddings()
    if isinstance(embeddings, Int8Embedding):
        head = Int8Linear(embeddings.weight, embeddings.scale, None)
        model.set_output_embeddings(head)
    else:
        model.tie_weights()
