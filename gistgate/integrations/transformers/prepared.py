"""What transformers has prepared for a decoding function, as arguments of our decoder; the rest is refused.

The lists of processors and criteria are complete: whatever a caller, a model's defaults or a task asked of `generate`
is in one of them. So nothing is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gistgate.block import Sampling
from gistgate.errors import UserError

MODES = ("greedy_search", "sample")
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
INPUTS = {"attention_mask", "cache_position", "logits_to_keep", "past_key_values", "position_ids", "use_cache"}
"""What is prepared for the model's forward; the decoder makes its own except for the mask."""


@dataclass(frozen=True)
class Ends:
    """Where answers end."""

    max_length: int
    """Longest row, padding and prompt included, in tokens."""
    eos_ids: tuple[int, ...]
    """Ids that end an answer."""
    strings: tuple[str, ...]
    """Texts that end an answer."""
    tokenizer: Any
    """The tokenizer that a criterion brought along; None when none did."""


def check_supported(model: PreTrainedModel, config: GenerationConfig, prepared: dict[str, Any]) -> None:
    """Refuse what the decoder does not do.

    Raises:
        UserError: the name of the argument.
    """
    mode = str(config.get_generation_mode().value)
    if mode not in MODES or model.config.is_encoder_decoder:
        kind = "an encoder-decoder model" if model.config.is_encoder_decoder else mode.replace("_", " ")
        raise UserError(f"This decoder does greedy decoding and sampling of decoder-only models, but got {kind}.")
    for name in OUTPUTS:
        if getattr(config, name, False):
            raise UserError(f"generate got {name}=True, which this decoder does not collect. Turn it off.")
    for name, value in prepared.items():
        if name not in INPUTS and value is not None:
            raise UserError(f"generate got {name}=, which this decoder does not pass to the model. Leave it away.")


def read_sampling(do_sample: bool, processors: Iterable[Any]) -> Sampling:
    """How tokens are drawn.

    Raises:
        UserError: a processor that changes the distribution in another way.
    """
    found: dict[str, Any] = {}
    for processor in processors:
        kind = type(processor)
        if kind is TemperatureLogitsWarper:
            found["temperature"] = float(processor.temperature)
        elif kind is TopKLogitsWarper:
            found["top_k"] = int(processor.top_k)
        elif kind is TopPLogitsWarper:
            found["top_p"] = float(processor.top_p)
        else:
            raise UserError(
                f"generate asks for a {kind.__name__}, but this decoder knows temperature, top_k and top_p alone. "
                "Remove the argument behind it. If you passed none, the model's generation_config asks for it: pass "
                "its neutral value, such as repetition_penalty=1.0."
            )
    return Sampling(**{"temperature": 1.0, **found}) if do_sample else Sampling()


def read_ends(criteria: Iterable[Any]) -> Ends:
    """Where answers end. Blocks of tokens are cut by the decoder itself: criteria look at the last token alone.

    Raises:
        UserError: a criterion that is neither a length, nor an eos, nor a text.
    """
    lengths, eos, strings, tokenizers = [], [], [], []
    for criterion in criteria:
        if isinstance(criterion, MaxLengthCriteria):
            lengths.append(int(criterion.max_length))
        elif isinstance(criterion, EosTokenCriteria):
            eos += ids_of(criterion.eos_token_id)
        elif isinstance(criterion, StopStringCriteria):
            strings += criterion.stop_strings
        elif isinstance(getattr(criterion, "sequence", None), str):  # how lm-evaluation-harness writes a stop
            strings.append(criterion.sequence)
            tokenizers.append(criterion.tokenizer)
        else:
            raise UserError(
                f"generate got the stopping criterion {type(criterion).__name__}, which cannot look inside a block of "
                "tokens. Use max_new_tokens, eos_token_id or stop_strings."
            )
    if not lengths:
        raise UserError("generate has no length limit. Pass max_new_tokens=.")
    return Ends(min(lengths), tuple(eos), tuple(strings), next(iter(tokenizers), None))


def pad_id(config: GenerationConfig, eos_ids: tuple[int, ...]) -> int:
    """The id that fills ended rows: the one for padding, else an eos, as `generate` does."""
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    return eos_ids[0] if eos_ids else 0


def ids_of(tokens: Tensor | int | list[int]) -> list[int]:
    """Ids as a list, in whichever form they come."""
    if isinstance(tokens, Tensor):
        return [int(token) for token in tokens.reshape(-1).tolist()]
    return [tokens] if isinstance(tokens, int) else list(tokens)
