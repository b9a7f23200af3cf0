"""Read configurations, tokenizers and weights; every failure is one sentence that names the remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from gistgate.build.checks import hub_remedy
from gistgate.build.ignored import warn_ignored
from gistgate.build.memory import Size, check_memory
from gistgate.build.tokenizers import check_same_tokenizer, load_draft_tokenizer
from gistgate.build.weights import check_gguf, weight_size, whole_model
from gistgate.errors import UserError, first_line, is_out_of_memory
from gistgate.forward.allocation import keep_freed_memory
from gistgate.forward.context import num_ids
from gistgate.forward.quantised import quantise
from pipeline.pairs.source import ModelSource, PairSource

T = TypeVar("T")


def load_config(source: ModelSource) -> Any:
    """The configuration of a model."""
    return attempt(source, lambda: AutoConfig.from_pretrained(source.model, **source.place))


def load_model(source: ModelSource) -> PreTrainedModel:
    """A model in its dtype on its device, without gradients, and quantised where the pair says so."""
    extra = {"device_map": source.device_map} if source.device_map else {}
    dtype = getattr(torch, source.dtype)
    model = attempt(source, lambda: whole_model(source.model, dtype=dtype, **extra, **source.place))
    if not source.device_map:
        model = model.to(source.place_of_weights)
        keep_freed_memory(source.place_of_weights)
    warn_ignored(model)
    return quantise(model.eval().requires_grad_(False), source.quantise)


def load_shape(source: ModelSource) -> PreTrainedModel:
    """A model without its weights (on the device `meta`), for those who only ask what it is like."""
    config = load_config(source)
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, source.dtype))
    with contextlib.suppress(OSError):  # few models have no such file, and the configuration says the same then
        model.generation_config = GenerationConfig.from_pretrained(source.model, revision=source.revision)
    return model.eval().requires_grad_(False)


def load_tokenizer(source: PairSource) -> PreTrainedTokenizerBase:
    """The pair's tokenizer: the one it names, else the target's."""
    where = source.target if source.tokenizer is None else ModelSource(source.tokenizer)
    tokenizer = attempt(where, lambda: AutoTokenizer.from_pretrained(where.model, **where.place))
    if tokenizer.pad_token_id is None:  # any id will do: padding is masked
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def check_room(source: PairSource) -> None:
    """Refuse models that do not fit into memory together, before the first of them is loaded.

    Raises:
        UserError: their weights need more than is free.
    """
    for device in {model.place_of_weights for model in source.models if not model.device_map}:
        check_memory({role: size_on(device, model) for role, model in source.roles.items()}, device)


def size_on(device: str, source: ModelSource) -> Size | None:
    """What a model needs on a device; None where nothing is known, or it lies elsewhere."""
    if source.device_map or source.place_of_weights != device or not source.is_folder:
        return None
    return weight_size(source.model, getattr(torch, source.dtype), source.gguf_file)


def attempt(source: ModelSource, read: Callable[[], T]) -> T:
    """Call `read`.

    Raises:
        UserError: the folder is missing or damaged, or the hub has no such model or cannot be reached.
    """
    if source.is_folder and not Path(source.model).is_dir():
        raise UserError(
            f"The model folder {source.model} is missing. Run `dvc repro pair` if it is the embedded pair's, "
            "else correct the path in models/pairs/."
        )
    if source.is_folder:
        check_gguf(source.model, source.place)
    try:
        return read()
    except Exception as error:  # damaged files, a hub out of reach and unknown architectures fail in many ways
        if is_out_of_memory(error):
            raise
        raise UserError(f"{source.model} could not be loaded ({first_line(error)}). {remedy(source, error)}") from error


def remedy(source: ModelSource, error: Exception) -> str:
    """What a person can do about a model that does not load."""
    if source.is_folder:
        return "Its files are damaged or incomplete; restore the folder or write it again."
    if isinstance(error, ImportError):
        return "Install what the message names, or leave `device_map` out of the pair's file."
    return hub_remedy(source.model, error)


def check_vocabularies(source: PairSource, tokenizer: PreTrainedTokenizerBase, sizes: Mapping[str, int]) -> None:
    """Both models have to mean the same token by every id of the tokenizer. Padding behind its last id may differ.

    Args:
        source: names the draft, whose own tokenizer is compared where it has one.
        tokenizer: the pair's.
        sizes: rows of the input embedding of `target` and `draft`.

    Raises:
        UserError: an id has two meanings, a model lacks ids, or the draft's tokenizer cannot be read.
    """
    for role, size in sizes.items():
        if size < (needed := num_ids(tokenizer)):
            raise UserError(
                f"The {role} knows {size} tokens, but the tokenizer has {needed}. Choose models of one family: "
                "speculative decoding needs one vocabulary."
            )
    draft = source.draft
    own = None if draft is None else load_draft_tokenizer(draft.model, **draft.place)
    if own is not None:
        check_same_tokenizer(tokenizer, own)
