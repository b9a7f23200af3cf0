"""What is wrong with a model that a user names, and what helps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from gistgate.errors import UserError

RETRIEVAL = ("suffix", "lookup")
"""Drafters that a pair may have in place of a draft model: they copy from the text."""


class Sized(Protocol):
    """A model that knows its size."""

    def parameters(self) -> Iterator[Tensor]:
        """Its weights."""


def check_smaller(target: Sized, draft: Sized) -> None:
    """Refuse a draft whose weights take more memory than its target's: a step of it could only slow decoding down.

    Raises:
        UserError: the draft is larger.
    """
    sizes = [sum(one.numel() * one.element_size() for one in model.parameters()) for model in (target, draft)]
    if sizes[1] > sizes[0]:
        raise UserError(
            f"The draft has {sizes[1]:,} bytes of weights and the target only {sizes[0]:,}: drafting would cost more "
            "than it saves. Swap the two, or choose a smaller draft."
        )


def hub_remedy(name: str, error: BaseException) -> str:
    """A sentence for a hub id whose loading raised `error`; transformers hides the hub's own error behind its own."""
    kinds = {type(one).__name__ for one in chain(error)}
    text = " ".join(str(one) for one in chain(error)).lower()
    if "GatedRepoError" in kinds or "gated repo" in text:
        return (
            f"Its licence has to be accepted: open https://huggingface.co/{name}, accept it there, and log in with "
            "`hf auth login`."
        )
    if "RevisionNotFoundError" in kinds:
        return "Check the revision: a branch, a tag or a commit of that model."
    if "RepositoryNotFoundError" in kinds:
        return "Check the spelling; a private model needs `hf auth login`."
    if kinds & {"OfflineModeIsEnabled", "LocalEntryNotFoundError"} or "connect" in text:
        return (
            "It is not in the local cache, and the hub was not asked or could not be reached. Check the name and the "
            "connection, set HF_HUB_OFFLINE=0 to let it be fetched, or name a local folder."
        )
    if "use_safetensors" in text or "no file named model.safetensors" in text:
        return (
            "Only weights in safetensors files are read, because pickled ones may run code. Convert them once where "
            "you trust them: load the model with transformers, and call save_pretrained on it."
        )
    return "Check the name or the folder."


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that led to it."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__
