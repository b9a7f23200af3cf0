"""Drafters by id that know more than the request: the datastore's, and the corpus of the training texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transformers import PreTrainedModel

from gistgate.drafters.base import Drafter
from gistgate.drafters.corpus import CorpusDrafter
from gistgate.drafters.sen import SenDrafter
from gistgate.drafters.sen_tree import SenTree
from gistgate.drafters.suffix_array import SuffixArray
from gistgate.errors import UserError
from gistgate.retrieval import Datastore
from pipeline.retrieval.texts import ANSWERS, PROMPTS, STORE, training_texts


def store_for(target: PreTrainedModel) -> Datastore:
    """The datastore of this run.

    Raises:
        UserError: there is none, or it does not fit.
    """
    if not STORE.is_dir():
        raise UserError(f"{STORE} is missing. Run `make retrieval` in this folder first.")
    return Datastore.load(STORE, target)


def corpus(_target: PreTrainedModel) -> Drafter:
    """REST-like retrieval from prompts and answers."""
    return CorpusDrafter(SuffixArray.build([*text.prompt, *text.answer] for text in training_texts()))


RETRIEVAL: dict[str, Callable[[PreTrainedModel], Drafter]] = {
    "corpus": corpus,
    "sen": lambda target: SenDrafter(store_for(target)),
    "sen-lexical": lambda target: SenDrafter(store_for(target), semantic=False),
    "sen-tree": lambda target: SenTree(store_for(target)),
}
"""By id, as in the method tables of params.yaml; `sen-lexical` is `sen` without its states."""


def files_behind(drafter_id: str) -> list[Path]:
    """What a drafter knows besides the request: a certificate holds for no other content."""
    if drafter_id == "corpus":
        return [PROMPTS, ANSWERS]
    return [STORE] if drafter_id in RETRIEVAL else []
