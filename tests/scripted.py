"""Models without weights whose texts are fixed beforehand, and a gate for them: they cost what
their shape costs.

The draft's script is the target's with some tokens exchanged, so that the accepted length is
controlled. The script is found by position, which every engine hands over. Axis letters: B rows, N
new tokens, S positions of the script.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
SHAPES = {"1M": (96, 256, 2, 4, 2), "20M": (384, 1024, 6, 6, 2)}


class Scripted(LlamaForCausalLM):
    """A Llama that computes everything and then says what its script says."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.register_buffer("script", torch.zeros(1, dtype=torch.long), persistent=False)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, **inputs: Any) -> Any:
        if position_ids is None:
            cache = inputs.get("past_key_values")
            first = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(first, first + input_ids.shape[1], device=input_ids.device)[
                None
            ]
        out = super().forward(input_ids=input_ids, position_ids=position_ids, **inputs)
        num = out.logits.shape[1]
        last = self.script.shape[0] - 1
        said_BN = self.script[(position_ids[:, -num:] + 1).clamp(0, last)].expand(
            input_ids.shape[0], -1
        )
        out.logits = out.logits.scatter(
            -1, said_BN[..., None], out.logits.amax(-1, keepdim=True) + 1
        )
        return out


def scripted(size: str, script_S: Tensor, vocabulary: int) -> Scripted:
    """A float32 model of a shape with random weights and a script."""
    sizes = dict(zip(KEYS, SHAPES[size], strict=True))
    model = Scripted(
        LlamaConfig(
            **sizes,
            vocab_size=vocabulary,
            max_position_embeddings=4096,
            pad_token_id=0,
            eos_token_id=None,
        )
    )
    model.script = script_S.clone()
    return model.eval().requires_grad_(False)


def scripts(length: int, vocabulary: int, error: float, seed: int) -> tuple[Tensor, Tensor]:
    """A target's text and its draft's, which differs at a share `error` of the positions, each
    [S].
    """
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(2, vocabulary, (length,), generator=generator)
    wrong = torch.rand(length, generator=generator) < error
    return text, torch.where(wrong, 2 + (text - 1) % (vocabulary - 2), text)
