"""The tokenizers of a target and its draft: whether the same ids mean the same, and whether a template is used."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import cached_file

from gistgate.errors import UserError, first_line, is_out_of_memory

FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
"""Files of which a repository with a tokenizer has at least one."""
SPARE = 64
"""Tokens that only one of two tokenizers may know, or a hundredth of all, if that is more: families add special tokens
later."""


def load_draft_tokenizer(name: str, **place: Any) -> PreTrainedTokenizerBase | None:
    """The draft's own tokenizer, to compare; None where its folder or repository has none.

    Args:
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
        raise UserError(
            f"The tokenizer of the draft '{name}' could not be read from {', '.join(found)} ({first_line(error)}), so "
            "that it cannot be compared with the target's. Restore its files."
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


def check_same_tokenizer(target: Any, draft: Any) -> None:
    """Refuse a draft model whose token ids mean something else than the target's.

    A few tokens that only one of the two knows are no contradiction: a target often has more special tokens.

    Raises:
        UserError: names the first id that stands for two different tokens, or the numbers of tokens.
    """
    ours, theirs = ({index: token for token, index in one.get_vocab().items()} for one in (target, draft))
    other = next((index for index in sorted(ours.keys() & theirs.keys()) if ours[index] != theirs[index]), None)
    if other is not None:
        refuse(f"id {other} is {ours[other]!r} for the target and {theirs[other]!r} for the draft")
    if len(ours.keys() ^ theirs.keys()) > max(SPARE, len(ours) // 100):
        refuse(f"the target's has {len(ours)} tokens and the draft's {len(theirs)}")


def refuse(difference: str) -> None:
    """Raise UserError for two tokenizers that differ."""
    raise UserError(
        f"The draft model has another tokenizer: {difference}. Use a draft model with the target's tokenizer, or a "
        "drafter without a model such as 'lookup'."
    )


def warn_untemplated(tokenizer: PreTrainedTokenizerBase, remedy: str) -> None:
    """Warn that prompts are not wrapped in the tokenizer's chat template, if it has one; `remedy` says what helps."""
    if tokenizer.chat_template is not None:
        warnings.warn(
            "The tokenizer has a chat template, and prompts are not wrapped in it. Instruction-tuned models answer "
            f"worse without it; {remedy}.",
            stacklevel=3,
        )
