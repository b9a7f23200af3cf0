"""Models and tokenizers from names on a command line, and the settings that are written beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.checks import check_smaller, hub_remedy
from gistgate.build.ignored import warn_ignored
from gistgate.build.memory import check_memory
from gistgate.build.tokenizers import check_draft_tokenizer, load_draft_tokenizer, warn_untemplated
from gistgate.build.weights import check_gguf, placed, weight_size, whole_model
from gistgate.errors import UserError, first_line, is_out_of_memory
from gistgate.forward.output import Subset
from gistgate.forward.quantised import check_kind, quantise
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
            UserError: the tokenizer has no chat template, or a system text has no chat to stand in.
        """
        if not chat:
            if system:
                raise UserError("A system text stands in a chat. Add --chat, or leave --system away.")
            warn_untemplated(self.tokenizer, "--chat uses it")
            return list(self.tokenizer(prompt).input_ids)
        if self.tokenizer.chat_template is None:
            raise UserError("This tokenizer has no chat template. Leave --chat away.")
        return list(self.tokenizer(self.rendered(prompt, system), add_special_tokens=False).input_ids)

    def rendered(self, prompt: str, system: str | None = None) -> str:
        """A prompt as the chat template writes it out, up to where the answer begins.

        Raises:
            UserError: the template refuses it, as some do with every system text.
        """
        messages = [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": prompt}]
        try:
            text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program of the model's makers, and may refuse in its own way
            remedy = "Leave --system away." if system else "Mend the template, or leave --chat away."
            raise UserError(f"The tokenizer's chat template fails ({first_line(error)}). {remedy}") from error
        return str(text)


def load_target(name: str, dtype: str = "auto", device: str | None = None, gguf: str | None = None) -> Target:
    """A model by hub id or folder, on the GPU where there is one; `gguf` names a GGUF file there.

    Raises:
        UserError: there is no such dtype, or the model cannot be loaded.
    """
    if dtype not in DTYPES:
        raise UserError(f"There is no dtype '{dtype}'. Use one of: {', '.join(DTYPES)}.")
    wanted = dtype if dtype == "auto" else getattr(torch, dtype)
    name, place = placed(name, gguf)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model("model", name, device, dtype=wanted, **place)
    warn_ignored(model)
    try:
        return Target(model, AutoTokenizer.from_pretrained(name, trust_remote_code=False, **place))
    except Exception as error:  # damaged files and unknown architectures fail in many ways
        raise UserError(unloadable("tokenizer", name, error)) from error


def load_draft(
    draft: PreTrainedModel | str | Path,
    target: PreTrainedModel,
    tokenizer: Any = None,
    revision: str = "main",
    quantised: str | None = None,
    vocabulary: str | Path | None = None,
    gguf: str | None = None,
) -> PreTrainedModel:
    """The draft model in the target's dtype and on its device, made lighter where that is asked for.

    A model that is loaded already keeps its dtype and device, and is made lighter in place.

    Args:
        draft: hub id, folder, GGUF file or loaded model.
        target: the target that it drafts for.
        tokenizer: the target's tokenizer; None: that of what the target was loaded from. The draft's own one is
            compared with it where both can be read.
        revision: revision on the hub.
        quantised: one of `gistgate.forward.quantised.KINDS`.
        vocabulary: file of a `gistgate.forward.output.Subset`.
        gguf: GGUF file in the folder or hub repository that `draft` names.

    Raises:
        UserError: the model cannot be loaded, its tokenizer is another one, or it cannot be made lighter as asked.
    """
    check_kind(quantised or "none")
    if draft is target and (vocabulary is not None or quantised not in (None, "none")):
        raise UserError(
            "Target and draft are one loaded model, so that a lighter draft would change the target's answers. Load "
            "the draft a second time, or leave its bits and its vocabulary as they are."
        )
    subset = None if vocabulary is None else Subset.load(vocabulary)
    if isinstance(draft, str | Path):
        draft = named_draft(draft, target, tokenizer, revision, gguf)
    else:
        check_draft_tokenizer(target, draft, tokenizer)
    if subset is not None:
        always = eos_ids(target, tokenizer) if tokenizer is not None else ()
        draft = subset.apply(draft, tokenizer, always)
        draft.subset_file = str(vocabulary)
    return quantise(draft, quantised)


def named_draft(
    draft: str | Path, target: PreTrainedModel, tokenizer: Any, revision: str, gguf: str | None
) -> PreTrainedModel:
    """The draft model of this name as it is, compared with the target's tokenizer."""
    name, place = placed(str(draft), gguf)
    model = load_model("draft", name, target.device, dtype=target.dtype, revision=revision, **place)
    check_smaller(target, model)
    check_draft_tokenizer(target, model, tokenizer, partial(load_draft_tokenizer, name, revision=revision, **place))
    return model


def load_model(role: str, name: str, device: Any, **options: Any) -> PreTrainedModel:
    """A model for decoding; `role` names it in messages, and `options` go to transformers.

    Raises:
        UserError: the model cannot be loaded, or memory does not suffice for it.
    """
    file = options.get("gguf_file")
    if file is not None and Path(name).is_file():
        raise UserError(f"{name} is a file, and {file} is to lie in a folder. Name the folder, or leave {file} away.")
    check_gguf(name, options)
    check_memory({name: weight_size(name, options["dtype"], file)}, device)
    try:
        model = whole_model(name, **options)
    except Exception as error:  # damaged files and unknown architectures fail in many ways
        if is_out_of_memory(error):
            raise
        raise UserError(unloadable(role, name, error)) from error
    return model.to(device).eval()


def unloadable(role: str, name: str, error: Exception) -> str:
    """The sentence for a model or tokenizer that cannot be loaded."""
    return f"The {role} '{name}' could not be loaded ({first_line(error)}). {hub_remedy(name, error)}"


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
