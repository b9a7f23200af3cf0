"""From names on a command line to something that decodes: target, tokenizer, decoder, prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gistgate.errors import UserError
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
        """Token ids of a prompt, in the chat template if wanted.

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
        UserError: it cannot be loaded.
    """
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES)}.")
    try:
        model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype if dtype == "auto" else getattr(torch, dtype))
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The model '{name}' could not be loaded ({first}). Check the name or the folder.") from error
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Target(model.to(where).eval(), tokenizer)


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
