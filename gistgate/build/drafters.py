"""Drafters by id as a command line names them, those included that know more than the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.drafters import DRAFTERS
from gistgate.drafters.base import Drafter
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.files import read_text
from gistgate.optional.retrieval import Datastore
from gistgate.optional.retrieval.corpus import CorpusDrafter
from gistgate.optional.retrieval.sen import SenDrafter
from gistgate.optional.retrieval.sen_tree import SenTree
from gistgate.optional.retrieval.suffix_array import SuffixArray
from gistgate.registry import nearest

NONE, CORPUS = "none", "corpus"
STORED: dict[str, Callable[[Datastore], Drafter]] = {
    "sen": SenDrafter,
    "sen-lexical": partial(SenDrafter, semantic=False),
    "sen-tree": SenTree,
    "sen-tree-lexical": partial(SenTree, semantic=False),
}
"""Drafters that read a datastore, by id; the lexical ones ask no states."""
KNOWN = [*DRAFTERS, *STORED, CORPUS, NONE]
"""Every id, plain decoding included."""


@dataclass(frozen=True)
class Sources:
    """What a drafter may be made of."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    draft: PreTrainedModel | None = None
    datastore: str | None = None
    """Folder of a datastore of this target."""
    corpus: str | None = None
    """Text file, one training text per line."""


def make_drafter(drafter: str, sources: Sources) -> Drafter | None:
    """A drafter by id; "none" is plain decoding.

    Raises:
        UserError: there is no such drafter, or it lacks what it is made of.
    """
    if drafter not in KNOWN:
        raise UserError(f"There is no drafter '{drafter}'. {nearest(drafter, KNOWN)}")
    if drafter == NONE:
        return None
    if drafter in STORED:
        if sources.datastore is None:
            raise UserError(f"The drafter '{drafter}' reads a datastore. Name its folder as datastore=<folder>.")
        return STORED[drafter](Datastore.load(sources.datastore, sources.target))
    if drafter == CORPUS:
        return CorpusDrafter(read_corpus(sources))
    made: Drafter
    if not issubclass(DRAFTERS[drafter], ModelDrafter):
        made = DRAFTERS[drafter]()
        return made
    if sources.draft is None:
        raise UserError(f"The drafter '{drafter}' needs a draft model. Name it as draft=<name or folder>.")
    made = DRAFTERS[drafter](sources.draft)
    return made


def read_corpus(sources: Sources) -> SuffixArray:
    """The texts of the corpus, without the tokens that a tokenizer puts around a text.

    Raises:
        UserError: there is no file, or no text in it.
    """
    if sources.corpus is None:
        raise UserError(
            "The drafter 'corpus' looks up training texts. Name a file with one text per line as corpus=<file>."
        )
    texts = [line for line in read_text(Path(sources.corpus)).splitlines() if line.strip()]
    if not texts:
        raise UserError(f"{sources.corpus} holds no text. Put one training text into every line.")
    return SuffixArray.build(sources.tokenizer(texts, add_special_tokens=False).input_ids)
