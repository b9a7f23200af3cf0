"""Models from hub ids, folders and GGUF files: the one loader of the library and the pipeline.

Weights are read from safetensors alone, whole and finite, and code from elsewhere never runs.
"""

import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from gistgate.core.attention import keep_freed_memory
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.models.lighter import Subset
from gistgate.models.packed import GGUF, check_kind, check_processor, lacks_bfloat16, quantise
from gistgate.models.places import or_refuse, placed
from gistgate.models.tokenizers import (
    check_draft_tokenizer,
    encode,
    load_tokenizer,
    rendered,
    warn_untemplated,
)

DTYPES = ("auto", "float32", "bfloat16", "float16")
RETRIEVAL = ("suffix", "lookup")
"""Drafters that a pair may have in place of a draft model: they copy from the text."""


def load_model(
    role: str, name: str, device: Any, kind: str | None = None, **options: Any
) -> PreTrainedModel:
    """A model for decoding on a device, its weights kept as `stored_model` says; without a device
    it stays where `options`, which go to transformers, put it.
    """
    model = or_refuse(role, name, lambda: stored_model(name, kind, device, **options), **options)
    if device is not None:
        model = model.to(device)
        keep_freed_memory(device)
    return model.eval()


def stored_model(name: str, kind: str | None, device: Any, **options: Any) -> PreTrainedModel:
    """A model with its weights kept as `kind` says, one of `gistgate.models.packed.KINDS`; None
    packs those of a GGUF file as they are there, where that is possible, and leaves others alone.
    """
    is_float = options.get("dtype", "auto") not in ("auto", "bfloat16", torch.bfloat16)
    packs = options.get("gguf_file") and str(device) == "cpu" and not is_float
    if kind == GGUF and not packs:
        raise UserError(
            "Weights stay packed as in a GGUF file on processors alone, from such a file and in"
            " bfloat16. Leave the quantisation out."
        )
    check_processor(kind)
    if packs and kind != "none":
        return packed_or_whole(name, kind or GGUF, **options)
    return quantise(whole_model(name, **options), kind)


def whole_model(name: str, **options: Any) -> PreTrainedModel:
    """A model from safetensors or GGUF files that hold all of its weights, which transformers would
    else make up.
    """
    options["trust_remote_code"] = False
    file = options.get("gguf_file")
    if file:  # unpacked, so that every machine computes alike and a draft can be rounded
        options["quantization_config"] = GgufConfig(dequantize=True)
    else:
        options["use_safetensors"] = True
    model: PreTrainedModel
    model, report = AutoModelForCausalLM.from_pretrained(name, **options, output_loading_info=True)
    if file:  # the configuration names the folder alone
        revision = options.get("revision")
        path = cached_file(name, file, revision=revision, local_files_only=True)
        model.gguf_file = str(path)
    lacking = sorted([*report["missing_keys"], *report["mismatched_keys"]], key=str)
    if lacking:
        raise ValueError(f"its files lack {len(lacking)} weights, such as {lacking[0]}")
    check_finite(model)
    return model


def packed_or_whole(name: str, kind: str, **options: Any) -> PreTrainedModel:
    """A model of a GGUF file with its weights kept as `kind` says. Where the file holds experts or
    other weights that are not those of linear layers, the weights are unpacked first.
    """
    from gistgate.models.gguf_file import packed_model

    path = cached_file(name, options["gguf_file"], revision=options.get("revision"))
    with suppress(NotImplementedError):
        model = packed_model(Path(str(path)), kind)
        check_finite(model)
        return model
    whole = whole_model(name, **options | {"dtype": torch.bfloat16})
    if kind != GGUF:
        return quantise(whole, kind)
    warnings.warn(f"The weights of {path} are unpacked to bfloat16.", stacklevel=2)
    return whole


def check_finite(model: PreTrainedModel) -> None:
    """Refuse (ValueError) weights that are no numbers."""
    for weight, parameter in model.named_parameters():
        if parameter.device.type != "meta" and not is_finite(parameter):
            raise ValueError(f"the weight {weight} is not finite")


def is_finite(parameter: torch.Tensor) -> bool:
    """Whether all values are finite; floats of one byte have no test of their own."""
    if parameter.is_floating_point() and parameter.element_size() == 1:
        parameter = parameter.to(torch.bfloat16)
    return bool(parameter.isfinite().all())


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
"""Entries of generation_config.json that change which token is the most probable one, each with the
value at which it changes nothing."""


def warn_generation_config(model: PreTrainedModel) -> None:
    """Say which entries of the model's own generation_config.json this decoder leaves out."""
    entries = []
    for name, neutral in NEUTRAL.items():
        value = getattr(model.generation_config, name, None)
        if value not in (None, neutral):
            entries.append(f"{name}={value}")
    if entries:
        warnings.warn(
            f"The generation_config.json of {model.config.name_or_path or 'a model'} asks for"
            f" {', '.join(entries)}, which GistGate does not apply: it writes the most probable"
            " token, or samples, without it. Programs that apply it write other texts.",
            stacklevel=3,
        )


def warn_slow(model: PreTrainedModel) -> None:
    """Say that an x86 processor without instructions for bfloat16 computes in it nonetheless."""
    is_slow = (
        model.device.type == "cpu"
        and model.dtype == torch.bfloat16
        and getattr(model, "quantised", None) is None
        and lacks_bfloat16()
    )
    if is_slow:
        warnings.warn(
            f"The weights of {model.config.name_or_path or 'the model'} are in bfloat16, for which"
            " this processor has no instructions. --quantise int4 is several times faster, and"
            " --dtype float32 is faster with prompts of many tokens.",
            stacklevel=3,
        )


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_ids(self) -> list[int]:
        """Every id that ends an answer."""
        return eos_ids(self.model, self.tokenizer)

    def encode(
        self, prompt: str, chat: bool = False, system: str | None = None, arguments: Any = None
    ) -> list[int]:
        """Token ids of a prompt, in the chat template with its `arguments` where `chat` says so."""
        if chat:
            return encode(self.tokenizer, self.rendered(prompt, system, arguments))
        if system or arguments:
            raise UserError(
                "A system text and a template belong to a chat. Add --chat, or leave them away."
            )
        warn_untemplated(self.tokenizer, "--chat uses it")
        return encode(self.tokenizer, prompt)

    def encode_chat(
        self, messages: Sequence[dict[str, str]], system: str | None = None, arguments: Any = None
    ) -> list[int]:
        """Token ids of the messages of a chat in the chat template; `system` is that of messages
        without one.
        """
        messages = list(messages)
        if system and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        return encode(self.tokenizer, rendered(self.tokenizer, messages, **(arguments or {})))

    def rendered(self, prompt: str, system: str | None = None, arguments: Any = None) -> str:
        """A prompt as the chat template writes it out, up to where the answer begins."""
        messages = [{"role": "user", "content": prompt}]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        return rendered(self.tokenizer, messages, **(arguments or {}))


def load_target(
    name: str,
    dtype: str = "auto",
    device: str | None = None,
    gguf: str | None = None,
    quantise: str | None = None,
) -> Target:
    """A model by hub id or folder, on the GPU where there is one; `gguf` names a GGUF file there,
    and `quantise` one of `gistgate.models.packed.KINDS`.
    """
    check_kind(quantise or "none")
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES)}.")
    name, place = placed(name, gguf)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model("model", name, device, quantise, dtype=dtype, **place)
    warn_slow(model)
    warn_generation_config(model)
    return Target(model, load_tokenizer(name, **place))


def load_draft(
    draft: PreTrainedModel | str | Path,  # hub id, folder, GGUF file or loaded model
    target: PreTrainedModel,
    tokenizer: Any = None,  # the target's; None: that of what the target was loaded from
    revision: str = "main",  # on the hub
    quantised: str | None = None,  # one of `gistgate.models.packed.KINDS`
    vocabulary: str | Path | None = None,  # file of a `gistgate.models.lighter.Subset`
    gguf: str | None = None,  # GGUF file in the folder or hub repository that `draft` names
) -> PreTrainedModel:
    """The draft model in the target's dtype and on its device, made lighter; a loaded one is
    changed in place.
    """
    check_kind(quantised or "none")
    if draft is target and (vocabulary is not None or quantised not in (None, "none")):
        raise UserError(
            "Target and draft are one loaded model. Load the draft a second time to make it"
            " lighter."
        )
    subset = None if vocabulary is None else Subset.load(vocabulary)
    if isinstance(draft, str | Path):
        name, place = placed(str(draft), gguf)
        place["revision"] = revision
        kind = quantised if subset is None else "none"  # a vocabulary is cut from whole weights
        draft = load_model("draft", name, target.device, kind, dtype=target.dtype, **place)
        check_smaller(target, draft)
    check_draft_tokenizer(target, draft, tokenizer, revision)
    if subset is not None:
        draft = subset.apply(draft, tokenizer)
    return draft if quantised == GGUF else quantise(draft, quantised)


def check_smaller(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Refuse a draft whose weights take more memory than its target's: a step of it could only slow
    decoding down.
    """
    limit = weight_bytes(target)
    size = weight_bytes(draft)
    if size > limit:
        raise UserError(
            f"Drafting would cost more than it saves: {size:,} bytes for {limit:,}. Swap the two."
        )


def weight_bytes(model: PreTrainedModel) -> int:
    """Memory that the weights of a model take."""
    return sum(values.nbytes for values in chain(model.parameters(), model.buffers()))
