"""What a vLLM configuration says about the models that are served."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gistgate.build.weights import weight_files
from gistgate.drafters.lookup import PromptLookup
from gistgate.identity import ModelIdentity, sampled
from gistgate.protocol import added_ids

DRAFTERS = {"draft_model": "model", "ngram": "lookup"}
"""Our drafter ids by vLLM's speculative methods."""
WHOLE = ("bfloat16", "float16", "float32")
"""Types of a cache that is not rounded."""
BUFFERS = (".rotary_emb.inv_freq",)
"""Ends of the names of tensors that some checkpoints hold and no model has as a parameter."""
LOOKUP = (1, PromptLookup.n_max)
"""Shortest and longest run of tokens that our `lookup` looks for."""


@dataclass(frozen=True)
class Served:
    """Target and drafter of an engine."""

    method: str
    """vLLM's speculative method."""
    num_draft: int
    """K, drafted tokens per round."""
    probabilistic: bool
    """Whether the drafter names probabilities."""
    runner: str
    """"V1" or "V2"."""
    model: str
    """Folder or hub id of the target."""
    architecture: str
    hidden_size: int
    num_layers: int
    vocabulary_size: int
    dtype: str
    tokenizer: Any = None
    """The tokenizer; None where the engine has none."""
    eos_ids: tuple[int, ...] = ()
    """Ids that end an answer."""
    config_eos_ids: tuple[int, ...] = ()
    """Ids that the model's config.json calls ends, which vLLM does not ask."""
    max_requests: int = 256
    """Requests of the largest batch."""
    draft: str | None = None
    """Folder or hub id of the draft model; None for another method."""
    lookup: tuple[int, int] = LOOKUP
    """Shortest and longest run of tokens that vLLM's `ngram` looks for; means nothing for another method."""
    rounded: bool = False
    """Whether the engine rounds weights or its cache when it loads them."""
    schedule: tuple[int, ...] = ()
    """Drafted tokens at other numbers of running requests, where vLLM's schedule names some."""

    @property
    def drafter(self) -> str:
        """Our id of the drafter; vLLM's name where we have none that proposes the same."""
        if self.method == "ngram" and self.lookup != LOOKUP:
            return f"ngram of {self.lookup[0]} to {self.lookup[1]} tokens"
        return DRAFTERS.get(self.method, f"vLLM's {self.method}")

    @property
    def block(self) -> int:
        """K that a certificate has to name: that of every round, or the first other one of the schedule.

        A round without drafts is strict, so a schedule may name zero.
        """
        return next((num for num in self.schedule if num not in (0, self.num_draft)), self.num_draft)

    @cached_property
    def identity(self) -> ModelIdentity:
        """The identity of the target; its weights are read from its folder on the first use."""
        return ModelIdentity(
            name=self.model,
            revision=None,
            architecture=self.architecture,
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            vocabulary_size=self.vocabulary_size,
            dtype=self.dtype,
            fingerprint=folder_fingerprint(self.model),
        )

    @property
    def protected(self) -> tuple[int, ...]:
        """Ids that steer the protocol: ends of text and every added token (chat, think and tool markers)."""
        return tuple(sorted({*self.eos_ids, *self.config_eos_ids, *added_ids(self.tokenizer)}))


def read_served(config: Any) -> Served:
    """The facts in a `VllmConfig`."""
    model, speculation = config.model_config, config.speculative_config
    text = model.hf_config.get_text_config()
    tokenizer = None if model.skip_tokenizer_init else load_tokenizer(model)
    return Served(
        method=speculation.method,
        num_draft=speculation.num_speculative_tokens,
        probabilistic=speculation.draft_sample_method == "probabilistic",
        runner="V2" if config.use_v2_model_runner else "V1",
        model=str(model.model),
        architecture=text.model_type,
        hidden_size=text.hidden_size,
        num_layers=text.num_hidden_layers,
        vocabulary_size=text.vocab_size,
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer=tokenizer,
        eos_ids=eos_ids(model, tokenizer),
        config_eos_ids=listed(text.eos_token_id),
        max_requests=config.scheduler_config.max_num_seqs,
        draft=str(speculation.draft_model_config.model) if speculation.method == "draft_model" else None,
        lookup=(speculation.prompt_lookup_min or 0, speculation.prompt_lookup_max or 0),
        rounded=is_rounded(config),
        schedule=tuple(num for _, _, num in speculation.num_speculative_tokens_per_batch_size or ()),
    )


def is_rounded(config: Any) -> bool:
    """Whether the engine rounds the target, the draft model or its cache of keys and values to fewer bits."""
    models = (config.model_config, getattr(config.speculative_config, "draft_model_config", None))
    cache = str(getattr(getattr(config, "cache_config", None), "cache_dtype", "auto"))
    whole = cache == "auto" or cache.removeprefix("torch.") in WHOLE
    return not whole or any(getattr(model, "quantization", None) is not None for model in models)


def load_tokenizer(model: Any) -> Any:
    """The target's tokenizer as transformers reads it."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        model.tokenizer, revision=model.tokenizer_revision, trust_remote_code=model.trust_remote_code
    )


def eos_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every id that ends an answer: those of generation settings and tokenizer."""
    generation = model.try_get_generation_config() or {}
    own = getattr(tokenizer, "eos_token_id", None)
    return tuple(sorted({*listed(generation.get("eos_token_id")), *listed(own)}))


def listed(ids: Any) -> tuple[int, ...]:
    """One id, several or none, as configurations have them."""
    return tuple(ids) if isinstance(ids, list | tuple) else () if ids is None else (ids,)


def folder_fingerprint(model: str) -> str | None:
    """The hash of `gistgate.identity.weights_fingerprint`, read from a model folder; None for a hub id."""
    import torch
    from safetensors import safe_open

    digest, places = hashlib.sha256(), {}
    for path in weight_files(Path(model)) if Path(model).is_dir() else []:
        with safe_open(path, framework="pt") as file:
            places.update({name: path for name in file.keys() if not name.endswith(BUFFERS)})  # noqa: SIM118
    for name, path in sorted(places.items()):
        with safe_open(path, framework="pt") as file:
            tensor = file.get_tensor(name)
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(sampled(tensor).view(torch.int16).numpy().tobytes())
    return digest.hexdigest() if places else None
