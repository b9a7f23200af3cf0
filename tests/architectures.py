"""Tiny models of several architectures with random weights, and noisy copies of them as drafts."""

import copy
from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

CONTEXT = 160
"""Context of every model, in tokens."""

COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}

SIZES: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "qwen2": COMMON,
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "mistral": {**COMMON, "sliding_window": 7},
    "gemma2": {**COMMON, "head_dim": 8, "sliding_window": 7},
}
"""Configurations by model type; the last two look back no further than a window, in every or every
other layer.
"""

MORE: dict[str, dict[str, Any]] = {
    "qwen3": {**COMMON, "head_dim": 8},
    "phi": {name: size for name, size in COMMON.items() if name != "num_key_value_heads"},
    "olmo2": COMMON,
}
"""Architectures that only the large sweep decodes with."""

BY_SLOT: dict[str, dict[str, Any]] = {
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": CONTEXT},
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 7,
        "max_position_embeddings": CONTEXT,
    },
}
"""Architectures that measure distances in slots of the cache."""


DEPTH = {"gpt2": "n_layer"}
"""Names of the number of layers, where it is not `num_hidden_layers`."""


def deep_model(kind: str, layers: int) -> PreTrainedModel:
    """A tiny model with so many layers."""
    return tiny_model(kind, **{DEPTH.get(kind, "num_hidden_layers"): layers})


def tiny_model(kind: str, vocabulary: int = 259, seed: int = 0, **changed: int) -> PreTrainedModel:
    """A random model whose greedy texts are varied and seldom undecided."""
    torch.manual_seed(seed)
    sizes = {**SIZES, **MORE, **BY_SLOT}[kind] | changed
    config = AutoConfig.for_model(
        kind, **sizes, vocab_size=vocabulary, initializer_range=0.3, tie_word_embeddings=False
    )
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def noisy_copy(model: PreTrainedModel, noise: float, seed: int = 1) -> PreTrainedModel:
    """A draft that often agrees with `model` and often does not."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.std() > 0:
                weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator))
    return draft


@cache
def pair(
    kind: str, vocabulary: int = 259, noise: float = 0.03
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Target and draft, built once; nobody may change them."""
    with torch.inference_mode(False):  # whoever asks first may be in that mode, and later ones not
        target = tiny_model(kind, vocabulary)
        return target, noisy_copy(target, noise)


@cache
def greedy(kind: str, prompt: tuple[int, ...], num: int) -> list[int]:
    """What transformers itself writes greedily behind one prompt with the target of `pair`."""
    ids = torch.tensor([prompt])
    out = pair(kind)[0].generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num,
        do_sample=False,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def prompts(*lengths: int, vocabulary: int = 259, seed: int = 0) -> list[list[int]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths
    ]


BATCH = prompts(5, 17, 2, 10)
"""A ragged batch; the second prompt is longer than the windows of `SIZES`."""
