"""The end of a target alone: final normalisation and output layer, for states that an engine has computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from gistgate.errors import UserError
from gistgate.files import read_json
from gistgate.forward.states import decoder_layers
from pipeline.pairs.loading import load_shape
from pipeline.pairs.source import ModelSource

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Settings of architectures that change logits behind the output layer."""


@dataclass(frozen=True)
class OutputLayer:
    """What turns the states of the last layer into logits."""

    norm: nn.Module
    head: nn.Module

    @torch.no_grad()
    def post(self, pre: Tensor) -> Tensor:
        """States behind the final normalisation `[..., D]`, of those in front of it."""
        found: Tensor = self.norm(pre)
        return found

    @torch.no_grad()
    def logits(self, post: Tensor) -> Tensor:
        """Logits `[..., V]` in float32, of states behind the normalisation `[..., D]`."""
        found: Tensor = self.head(post)
        return found.float()


def load_output_layer(source: ModelSource) -> OutputLayer:
    """Read these two modules and nothing else of a model's weights.

    Raises:
        UserError: an architecture whose logits are more than the output layer of its normalised states, or weights
            that are not in safetensors.
    """
    model = load_shape(source)
    config = model.config.get_text_config()
    if any(getattr(config, name, None) not in (None, 1, 1.0) for name in SCALED):
        raise UserError(
            f"{source.model} changes its logits behind the output layer, so they cannot be computed from its states. "
            "Set engine.states to own in params.yaml."
        )
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    norm = final_norm(model)
    names = {id(weight): name for name, weight in model.named_parameters(remove_duplicate=False)}
    wanted = [(module, key, names[id(weight)]) for module in (norm, head) for key, weight in module.named_parameters()]
    tied = {name for name, weight in model.named_parameters(remove_duplicate=False) if weight is head.weight}
    for module, key, name in wanted:
        found = weight_of(source, tied if getattr(module, key) is head.weight else {name})
        setattr(module, key, nn.Parameter(found.to(getattr(torch, source.dtype)), requires_grad=False))
    return OutputLayer(norm, head)


def final_norm(model: PreTrainedModel) -> nn.Module:
    """The only module beside the layers whose weights are vectors.

    Raises:
        UserError: there is none, or more than one.
    """
    layers = decoder_layers(model)
    found = [
        child
        for child in model.base_model.children()
        if child is not layers and [*child.parameters()] and all(weight.ndim == 1 for weight in child.parameters())
    ]
    if len(found) != 1:
        raise UserError(
            f"{type(model).__name__} has {len(found)} normalisations behind its layers instead of one. "
            "Set engine.states to own in params.yaml."
        )
    (norm,) = found
    assert isinstance(norm, nn.Module)
    return norm


def weight_of(source: ModelSource, names: set[str]) -> Tensor:
    """The first stored tensor that has one of these names.

    Raises:
        UserError: no file of the model has one.
    """
    for file in weight_files(source):
        with safe_open(file, framework="pt") as stored:
            for name in names & set(stored.keys()):
                found: Tensor = stored.get_tensor(name)
                return found
    raise UserError(
        f"{source.model} has no weights {' or '.join(sorted(names))} in safetensors. "
        "Set engine.states to own in params.yaml."
    )


def weight_files(source: ModelSource) -> Iterator[Path]:
    """The model's files of safetensors, in its folder or in the cache of the hub."""
    index = stored_file(source, INDEX)
    names = [WHOLE] if index is None else sorted(set(read_json(index)["weight_map"].values()))
    for name in names:
        file = stored_file(source, name)
        if file is not None:
            yield file


def stored_file(source: ModelSource, name: str) -> Path | None:
    """Where a file of the model lies; None where it has no such file."""
    found = cached_file(
        source.model,
        name,
        revision=source.revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)
