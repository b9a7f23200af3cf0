"""The tokenizers of a target and its draft: whether the same ids mean the same, and whether a template is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, has_file

from gistgate.build.weights import placed
from gistgate.errors import UserError, first_line, is_out_of_memory

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
"""Files of which a repository with a tokenizer has at least one."""
SPARE = 64
"""Tokens that only one of two tokenizers may know, or a hundredth of all, if that is more: families add special tokens
later."""
COMPARED: WeakKeyDictionary[PreTrainedModel, WeakSet[Any]] = WeakKeyDictionary()
"""The tokenizers, or targets in their place, that a draft model was compared with: a server asks with every request."""


def check_draft_tokenizer(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: Any = None,
    read: Callable[[], PreTrainedTokenizerBase | None] | None = None,
) -> None:
    """Refuse a draft model whose token ids mean something else than the target's; each pair is compared once.

    A pair is trusted where the tokenizer of one of the two cannot be read. Loaded models do not say their revision on
    the hub, so that the tokenizer of the default one is read.

    Args:
        target: the loaded target.
        draft: the loaded draft model.
        tokenizer: the target's; None: the one of the folder or repository that the target was loaded from.
        read: loads the draft's own one; None: that of the folder or repository that the draft was loaded from.

    Raises:
        UserError: the tokenizers differ, or `read` raises it.
    """
    partner = target if tokenizer is None else tokenizer
    if draft is target or was_compared(draft, partner):
        return
    ours = tokenizer_of("target", target) if tokenizer is None else tokenizer
    if ours is not None:
        theirs = tokenizer_of("draft", draft) if read is None else read()
        if theirs is not None:
            check_same_tokenizer(ours, theirs, "" if read is not None else origin_of(draft))
    remember_compared(draft, partner)


def was_compared(draft: PreTrainedModel, partner: Any) -> bool:
    """Whether this pair was compared before; never for what cannot be a weak key, which is compared each time."""
    try:
        return partner in COMPARED.get(draft, ())
    except TypeError:
        return False


def remember_compared(draft: PreTrainedModel, partner: Any) -> None:
    """Compare this pair no more."""
    with suppress(TypeError):  # no weak key
        COMPARED.setdefault(draft, WeakSet()).add(partner)


def origin_of(draft: PreTrainedModel) -> str:
    """Where the tokenizer of a loaded draft was looked for, and what helps where the model is from elsewhere."""
    return (
        f" The draft's tokenizer is that of '{draft.config.name_or_path}', which its configuration names; if the model "
        "was made otherwise, set `draft.config.name_or_path = ''`."
    )


def tokenizer_of(role: str, model: PreTrainedModel) -> PreTrainedTokenizerBase | None:
    """The tokenizer of what a loaded model came from; None where that is not known or has none.

    A name that is no folder is a hub id only where the cache holds its configuration: the folder of a model may have
    moved since, and the hub is not asked for such a name.
    """
    name = str(getattr(model, "gguf_file", None) or model.config.name_or_path)
    if not name or not (Path(name).exists() or is_cached(name, "config.json", None)):
        return None
    return readable_tokenizer(role, name)


def readable_tokenizer(role: str, name: str, revision: str | None = None) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a model that is loaded already, if it can be read; damaged files are a warning.

    Such a model may have a tokenizer that only code from elsewhere reads, so nobody is asked to restore its files. The
    hub is asked where the cache has no tokenizer, at first with one request: transformers repeats each of its own for
    half a minute where there is no network.

    Args:
        role: "target" or "draft", for the warning.
        name: hub id, folder or GGUF file.
        revision: revision on the hub.
    """
    name, place = placed(name)
    is_here = Path(name).is_dir() or bool(found_files(name, revision))
    if not is_here and not is_on_hub(name, revision):
        return None
    try:
        return own_tokenizer(role, name, revision=revision, local_files_only=is_here, **place)
    except UserError as error:
        warnings.warn(str(error), stacklevel=2)
        return None


def is_on_hub(name: str, revision: str | None) -> bool:
    """Whether the hub can be reached and has a tokenizer of this name."""
    try:
        return bool(has_file(name, "tokenizer_config.json", revision=revision))
    except Exception:  # no such repository, no access, a proxy without one: nothing can be read
        return False


def load_draft_tokenizer(name: str, **place: Any) -> PreTrainedTokenizerBase | None:
    """The tokenizer of a draft that a user names, as `own_tokenizer` reads it."""
    return own_tokenizer("draft", name, **place)


def own_tokenizer(role: str, name: str, **place: Any) -> PreTrainedTokenizerBase | None:
    """A model's own tokenizer, to compare; None where its folder or repository has none.

    Args:
        role: "target" or "draft", for the message.
        name: hub id or folder.
        place: what `from_pretrained` gets, such as `revision` and `gguf_file`.

    Raises:
        UserError: there is one, and it cannot be read.
    """
    if Path(name).is_dir() and not found_files(name, **place):  # transformers would make one up
        return None
    try:
        return AutoTokenizer.from_pretrained(name, **{**place, "trust_remote_code": False})
    except Exception as error:  # damaged files fail in many ways
        found = found_files(name, **place)
        if is_out_of_memory(error):
            raise
        if not found:
            return None
        other = "draft" if role == "target" else "target"
        raise UserError(
            f"The tokenizer of the {role} '{name}' could not be read from {', '.join(found)} ({first_line(error)}), so "
            f"that it cannot be compared with the {other}'s. Restore its files."
        ) from error


def found_files(name: str, revision: str | None = None, gguf_file: str | None = None, **_: Any) -> list[str]:
    """Names of the files with a tokenizer, in a folder or in what is here of a repository on the hub."""
    if gguf_file is not None:
        return [gguf_file]
    if Path(name).is_dir():
        return sorted(path.name for path in Path(name).glob("tokenizer*"))
    return [file for file in FILES if is_cached(name, file, revision)]


def is_cached(name: str, file: str, revision: str | None) -> bool:
    """Whether a file of a repository on the hub is here."""
    try:
        return cached_file(name, file, revision=revision, local_files_only=True) is not None
    except OSError:
        return False


def check_same_tokenizer(target: Any, draft: Any, origin: str = "") -> None:
    """Refuse a draft model whose token ids mean something else than the target's.

    A few tokens that only one of the two knows are no contradiction: a target often has more special tokens. `origin`
    ends the message.

    Raises:
        UserError: names the first id that stands for two different tokens, or the numbers of tokens.
    """
    ours, theirs = ({index: token for token, index in one.get_vocab().items()} for one in (target, draft))
    other = next((index for index in sorted(ours.keys() & theirs.keys()) if ours[index] != theirs[index]), None)
    if other is not None:
        refuse(f"id {other} is {ours[other]!r} for the target and {theirs[other]!r} for the draft", origin)
    if len(ours.keys() ^ theirs.keys()) > max(SPARE, len(ours) // 100):
        refuse(f"the target's has {len(ours)} tokens and the draft's {len(theirs)}", origin)


def refuse(difference: str, origin: str) -> None:
    """Raise UserError for two tokenizers that differ."""
    raise UserError(
        f"The draft model has another tokenizer: {difference}. Use a draft model with the target's tokenizer, or a "
        f"drafter without a model such as 'lookup'.{origin}"
    )


def warn_untemplated(tokenizer: PreTrainedTokenizerBase, remedy: str) -> None:
    """Warn that prompts are not wrapped in the tokenizer's chat template, if it has one; `remedy` says what helps."""
    if tokenizer.chat_template is not None:
        warnings.warn(
            "The tokenizer has a chat template, and prompts are not wrapped in it. Instruction-tuned models answer "
            f"worse without it; {remedy}.",
            stacklevel=3,
        )
