"""Models and tokenizers from names on a command line, and the settings that are written beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gistgate.errors import UserError
from gistgate.identity import check_same_tokenizer
from gistgate.request.stopping import eos_ids

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Target:
    """A loaded target with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos_ids(self) -> list[int]:
        """Every id that ends an answer."""
        return eos_ids(self.model, self.tokenizer)

    def encode(self, prompt: str, chat: bool = False, system: str | None = None) -> list[int]:
        """Token ids of a prompt, in the chat template where `chat` says so.

        Raises:
            UserError: the tokenizer has no chat template.
        """
        if not chat:
            return list(self.tokenizer(prompt).input_ids)
        if self.tokenizer.chat_template is None:
            raise UserError("This tokenizer has no chat template. Leave --chat away.")
        messages = [{"role": "system", "content": system}] if system else []
        text = self.tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)


def load_target(name: str, dtype: str = "auto", device: str | None = None) -> Target:
    """A model by hub id or folder, on the GPU where there is one.

    Raises:
        UserError: there is no such dtype, or the model cannot be loaded.
    """
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES)}.")
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    model = load_model("model", name, device or ("cuda" if torch.cuda.is_available() else "cpu"), dtype=wanted)
    try:
        return Target(model, AutoTokenizer.from_pretrained(name, trust_remote_code=False))
    except Exception as error:  # damaged files and unknown architectures fail in many ways
        raise UserError(unloadable("tokenizer", name, error)) from error


def load_draft(
    draft: PreTrainedModel | str | Path, target: PreTrainedModel, tokenizer: Any = None, revision: str = "main"
) -> PreTrainedModel:
    """The draft model in the target's dtype and on its device; a model that is loaded already stays as it is.

    Args:
        draft: hub id, folder or loaded model.
        target: the target that it drafts for.
        tokenizer: the target's tokenizer; the draft's own one is compared with it where both are at hand.
        revision: revision on the hub.

    Raises:
        UserError: the model cannot be loaded, or its tokenizer is another one.
    """
    if not isinstance(draft, str | Path):
        return draft
    model = load_model("draft", str(draft), target.device, dtype=target.dtype, revision=revision)
    own = load_draft_tokenizer(str(draft), revision) if tokenizer is not None else None
    if own is not None:
        check_same_tokenizer(tokenizer, own)
    return model


def load_model(role: str, name: str, device: Any, **options: Any) -> PreTrainedModel:
    """A model for decoding; `role` names it in messages, and `options` go to transformers.

    Raises:
        UserError: the model cannot be loaded.
    """
    try:
        model = whole_model(name, **options)
    except Exception as error:  # damaged files and unknown architectures fail in many ways
        raise UserError(unloadable(role, name, error)) from error
    return model.to(device).eval()


def whole_model(name: str, **options: Any) -> PreTrainedModel:
    """A model from safetensors files that hold all of its weights, all finite; pickled weights are never read.

    transformers fills weights that a file lacks with random numbers, and says so in a warning only.

    Raises:
        ValueError: weights are missing or not finite; transformers raises further errors.
    """
    safe = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
    model, report = AutoModelForCausalLM.from_pretrained(name, **options, **safe)
    found: PreTrainedModel = model
    if lacking := sorted([*report["missing_keys"], *report["mismatched_keys"]], key=str):
        raise ValueError(f"its files lack {len(lacking)} weights, such as {lacking[0]}")
    for weight, parameter in found.named_parameters():
        if parameter.device.type != "meta" and not parameter.isfinite().all():
            raise ValueError(f"the weight {weight} is not finite")
    return found


def load_draft_tokenizer(name: str, revision: str = "main") -> PreTrainedTokenizerBase | None:
    """The tokenizer in a draft's folder or repository; None where there is none to compare."""
    if Path(name).is_dir() and not any(Path(name).glob("tokenizer*")):
        return None
    try:
        return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
    except (OSError, ValueError):
        return None


def unloadable(role: str, name: str, error: Exception) -> str:
    """The sentence for a model or tokenizer that cannot be loaded."""
    first = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"The {role} '{name}' could not be loaded ({first}). Check the name or the folder."


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of a rule from texts such as `theta=0.9`; numbers and true/false become values.

    Raises:
        UserError: a text without an equals sign.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise UserError(f"'{pair}' is no setting. Write it as name=value, for instance theta=0.9.")
        settings[name.strip()] = value_of(text.strip())
    return settings


def value_of(text: str) -> Any:
    """A truth value, a whole number, a number, or the text itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
