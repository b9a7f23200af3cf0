"""What a model's configuration says about how it has to be read: context, windows, states."""

from contextlib import suppress
from typing import Any

from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

BY_SLOT = ("gpt_neo", "mpt")  # the local layers of GPT-Neo and the ALiBi of MPT count cache slots
CHUNKED = ("attention_chunk_size", "attn_temperature_tuning")  # Llama 4 counts them by these
CONTEXTS = (
    "max_position_embeddings",
    "max_seq_len",
)  # settings of the context; the second is MPT's
# Layers of caches that forget at will.
KEYS_AND_VALUES = {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"}


def context_of(config: Any) -> int | None:
    """The tokens that a model can read, of its text configuration; None where it does not say."""
    for name in CONTEXTS:
        context = getattr(config, name, None)
        if context and context > 0:
            return int(context)
    return None


def num_ids(tokenizer: Any) -> int:
    """One more than a tokenizer's largest id: its length counts entries, and ids may have gaps."""
    return 1 + int(max(tokenizer.get_vocab().values()))


def keeps_states(model: PreTrainedModel) -> bool:
    """True when a model remembers more of a text than keys and values.

    Examples are states of convolutions and recurrences, and indices.
    """
    kinds: set[str] = set()
    # Some configurations do not name their layers.
    with suppress(AttributeError, KeyError, ValueError):
        cache = DynamicCache(config=model.config.get_text_config())
        kinds = {type(layer).__name__ for layer in cache.layers}
    return getattr(model, "_is_stateful", False) or not kinds <= KEYS_AND_VALUES


def fills_slots(model: PreTrainedModel) -> bool:
    """True when a cache may have no more slots than the context: tables of distances end there."""
    return model.config.get_text_config().model_type in BY_SLOT


def counts_slots(model: PreTrainedModel) -> bool:
    """True when attention measures distances in slots of the cache, so that holes change them."""
    config = model.config.get_text_config()
    is_chunked = any(getattr(config, name, None) for name in CHUNKED)
    return fills_slots(model) or is_chunked or has_window(model)


def has_window(model: PreTrainedModel) -> bool:
    """True when attention sees a window of slots that holes would narrow.

    A window of twice the context is never filled, whatever holes a cache has.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if not window or not getattr(config, "use_sliding_window", True):
        return False
    context = context_of(config)
    return context is None or int(window) < 2 * context
