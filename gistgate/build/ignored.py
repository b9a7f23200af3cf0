"""What a model's own `generation_config.json` asks of decoding and this decoder does not do."""

from __future__ import annotations

import warnings
from typing import Any

from transformers import PreTrainedModel

NEUTRAL: dict[str, Any] = {
    "num_beams": 1,
    "guidance_scale": 1.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "bad_words_ids": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
}
"""Entries that change which token is the most probable one, with the value at which they change nothing."""


def ignored(model: PreTrainedModel) -> dict[str, Any]:
    """The entries of the model's own configuration that would change its greedy text, with their values."""
    found = {name: getattr(model.generation_config, name, None) for name in NEUTRAL}
    return {name: value for name, value in found.items() if value is not None and value != NEUTRAL[name]}


def warn_ignored(model: PreTrainedModel) -> None:
    """Say which of them this decoder leaves out."""
    if found := ignored(model):
        named = ", ".join(f"{name}={value}" for name, value in found.items())
        warnings.warn(
            f"The generation_config.json of {model.config.name_or_path or 'a model'} asks for {named}, which GistGate "
            "does not apply: it writes the most probable token, or samples, without it. Programs that apply it write "
            "other texts.",
            stacklevel=3,
        )
