"""Hidden states by name, read from the very forward that verifies.

Layer ids: "post" is the last layer after the final normalisation (what the output layer reads), "pre" the same layer
before it, "layer:i" the output of decoder layer i, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from gistgate.errors import UserError


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers of any decoder-only transformer."""
    num_layers = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise UserError(f"{type(model).__name__} has no list of {num_layers} decoder layers. Use the layer 'post' instead.")


def layer_module(model: PreTrainedModel, layer: str) -> nn.Module:
    """The decoder layer whose output is the state `layer` ("pre" or "layer:i")."""
    layers = decoder_layers(model)
    if layer == "pre":
        return layers[len(layers) - 1]
    name, _, number = layer.partition(":")
    if name != "layer" or not number.isdigit() or int(number) >= len(layers):
        last = f"layer:{len(layers) - 1}"
        raise UserError(f"There is no hidden state '{layer}'. Use 'post', 'pre' or 'layer:0' to '{last}'.")
    return layers[int(number)]


@contextmanager
def tap(model: PreTrainedModel, layers: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """While open, every forward leaves the states of `layers` in the yielded dictionary, each [B, rows, D]."""
    seen: dict[str, Tensor] = {}
    handles = []
    for layer in layers:
        if layer == "post":
            handles.append(model.get_output_embeddings().register_forward_pre_hook(keep_input(seen, layer)))
        else:
            handles.append(layer_module(model, layer).register_forward_hook(keep_output(seen, layer)))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def keep_input(seen: dict[str, Tensor], layer: str) -> Any:
    def hook(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[layer] = args[0]

    return hook


def keep_output(seen: dict[str, Tensor], layer: str) -> Any:
    def hook(_module: nn.Module, _args: Any, output: Any) -> None:
        seen[layer] = output[0] if isinstance(output, tuple) else output

    return hook
