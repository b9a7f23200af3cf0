"""Models of real shapes without weights, whose texts are fixed beforehand, and a gate for them.

Every forward does the whole work of its shape; then the next token of a script gets the highest logit. The draft's
script is the target's with some tokens exchanged, so the accepted length is controlled and only the engine is measured.
The script is found by position, which every engine and transformers itself hand over.

Axis letters: B rows, N new tokens, S positions of the script, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from gistgate.gates.config import GateConfig
from gistgate.gates.features import LOOK_AHEAD, SCALARS
from gistgate.gates.gate import Gate
from gistgate.identity import ModelIdentity, TokenizerIdentity

SHAPES: dict[str, dict[str, int]] = {
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "7B": {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "32B": {
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
    },
    "1M": {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "20M": {
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "150M": {
        "hidden_size": 896,
        "intermediate_size": 2432,
        "num_hidden_layers": 12,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
}
"""Layer shapes of published families by size; the three smallest are for a CPU."""
VOCABULARY = 151_936
"""Of the large shapes, in tokens."""


class Scripted(LlamaForCausalLM):
    """A Llama that computes everything and then says what its script says."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.register_buffer("script", torch.zeros(1, dtype=torch.long), persistent=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **inputs: Any) -> Any:
        if position_ids is None:
            cache = inputs.get("past_key_values")
            first = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(first, first + input_ids.shape[1], device=input_ids.device)[None]
        out = super().forward(input_ids=input_ids, position_ids=position_ids, **inputs)
        num, last = out.logits.shape[1], self.script.shape[0] - 1
        said_BN = self.script[(position_ids[:, -num:] + 1).clamp(0, last)].expand(input_ids.shape[0], -1)
        best_BN1 = out.logits.amax(-1, keepdim=True) + 1
        out.logits = out.logits.scatter(-1, said_BN[..., None], best_BN1)
        return out


def scripted(size: str, script: Tensor, vocabulary: int, dtype: torch.dtype, device: str) -> PreTrainedModel:
    """A model of a shape with small random weights and a script `[S]`."""
    config = LlamaConfig(
        **SHAPES[size],
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = Scripted(config)
    finally:
        torch.set_default_dtype(before)
    model.script = script.to(device)
    return model.eval().requires_grad_(False)


def scripts(length: int, vocabulary: int, error: float, seed: int) -> tuple[Tensor, Tensor]:
    """A target's text and its draft's, which differs at a share `error` of the positions, each [S]."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(2, vocabulary, (length,), generator=generator)
    wrong = torch.rand(length, generator=generator) < error
    return text, torch.where(wrong, 2 + (text - 1) % (vocabulary - 2), text)


def random_gate(target: PreTrainedModel) -> Gate:
    """A gate of the pipeline's default features for this target, untrained: it costs what a trained one does."""
    config = target.config
    width = config.hidden_size
    features = {"h_tok:post": width, "h_pred:post": width, "scalars": len(SCALARS), "lookahead": 3 * LOOK_AHEAD}
    model = ModelIdentity(
        "scripted", None, config.model_type, width, config.num_hidden_layers, config.vocab_size, str(target.dtype), ""
    )
    return Gate(GateConfig({"type": "linear"}, features, model, None, TokenizerIdentity("none", "", config.vocab_size)))
