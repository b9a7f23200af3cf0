"""Drafters by id, made from the models, folders and files that they need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.build.choose import NONE
from gistgate.drafters import DRAFTERS
from gistgate.drafters.base import Drafter
from gistgate.drafters.costs import Costs
from gistgate.drafters.hybrid import HybridDrafter
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping, stopping_from
from gistgate.errors import UserError
from gistgate.registry import nearest

if TYPE_CHECKING:
    from gistgate.optional.retrieval.suffix_array import SuffixArray

CORPUS = "corpus"
HYBRID = "hybrid"
STOPPING = ("model", "tree", HYBRID)
"""Drafters whose drafts may end before K tokens."""
STORED = ("sen", "sen-lexical", "sen-tree", "sen-tree-lexical")
"""Drafters that read a datastore; the lexical ones ask for no states."""
KNOWN = (*DRAFTERS, *STORED, CORPUS, NONE)
"""Every id, plain decoding included."""


@dataclass(frozen=True)
class Sources:
    """What a drafter may be made of."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None
    """Reads the corpus."""
    draft: PreTrainedModel | None = None
    datastore: str | Path | None = None
    """Folder of a datastore of this target."""
    corpus: str | Path | None = None
    """Text file, one training text per line."""
    stopping: Any = None
    """When drafts end: a `Stopping`, its file, or a confidence; None: at K tokens."""

    def behind(self, drafter: str) -> Path | None:
        """The folder or file that a drafter knows texts from; None for a drafter that knows nothing but the request."""
        data = {CORPUS: self.corpus}.get(drafter, self.datastore if drafter in STORED else None)
        return None if data is None else Path(data)


def make_drafter(drafter: str, sources: Sources) -> Drafter | None:
    """A drafter by id; "none" is plain decoding.

    Raises:
        UserError: there is no such drafter, or something that it is made of is missing.
    """
    if drafter not in KNOWN:
        raise UserError(f"There is no drafter '{drafter}'. {nearest(drafter, list(KNOWN))}")
    stopping = stopping_of(drafter, sources)
    if drafter == NONE:
        return None
    if drafter in STORED:
        return stored(drafter, sources)
    if drafter == CORPUS:
        from gistgate.optional.retrieval.corpus import CorpusDrafter

        return CorpusDrafter(read_corpus(sources))
    if drafter == HYBRID:
        return hybrid(draft_of(drafter, sources), stopping)
    kind: Any = DRAFTERS[drafter]
    if not issubclass(kind, ModelDrafter):
        made: Drafter = kind()
    elif stopping is None:
        made = kind(draft_of(drafter, sources))
    else:
        made = kind(draft_of(drafter, sources), stopping=stopping)
    return made


def asks_draft(drafter: str) -> bool:
    """Whether a drafter drafts with the draft model, alone or among others: certificates then bind that model."""
    return drafter == HYBRID or (drafter in DRAFTERS and issubclass(DRAFTERS[drafter], ModelDrafter))


def draft_of(drafter: str, sources: Sources) -> PreTrainedModel:
    """The draft model.

    Raises:
        UserError: there is none.
    """
    if sources.draft is None:
        raise UserError(
            f"The drafter '{drafter}' needs a draft model, and there is none. Name one (--draft, draft= or "
            "draft_model=), or take the drafter 'lookup'."
        )
    return sources.draft


def stopping_of(drafter: str, sources: Sources) -> Stopping | None:
    """When drafts end; None: at K tokens.

    Raises:
        UserError: this drafter's drafts cannot end earlier, or the policy cannot be read.
    """
    said = sources.stopping
    if said is None:
        return None
    if drafter not in STOPPING:
        raise UserError(
            f"The drafter '{drafter}' does not ask when its drafts stop paying. Leave stop_drafting away, or take one "
            f"of: {', '.join(STOPPING)}."
        )
    return said if isinstance(said, Stopping) else stopping_from(said)


def hybrid(draft: PreTrainedModel, stopping: Stopping | None) -> HybridDrafter:
    """Repetitions in the text and the draft model, weighed by the costs that the policy was made with.

    Raises:
        UserError: there is no policy with measured costs.
    """
    try:
        costs, block = costs_of({} if stopping is None else stopping.measured)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            "The drafter 'hybrid' weighs texts against the draft model by measured costs. Measure them with `gistgate "
            "fit-draft`, and name the file as stop_drafting."
        ) from error
    return HybridDrafter(ModelDrafter(draft, stopping), costs, block)


def costs_of(measured: dict[str, Any]) -> tuple[Costs, int]:
    """The costs that a policy was made with, and its K; older files say v at K alone.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: they are missing or damaged.
    """
    block, verify = int(measured["block"]), measured["verify"]
    if isinstance(verify, int | float):
        verify = {block: verify}
    by_block = {int(num): float(price) for num, price in verify.items()}
    if not by_block or min(by_block.values()) <= 0:
        raise ValueError("the costs of verification are no positive numbers")
    return Costs(1.0, float(measured["cost"]), by_block), block


def stored(drafter: str, sources: Sources) -> Drafter:
    """A drafter that reads a datastore.

    Raises:
        UserError: there is no datastore, or it belongs to another target.
    """
    from gistgate.optional.retrieval import Datastore
    from gistgate.optional.retrieval.sen import SenDrafter
    from gistgate.optional.retrieval.sen_tree import SenTree

    if sources.datastore is None:
        raise UserError(f"The drafter '{drafter}' reads a datastore. Name its folder as datastore=<folder>.")
    kind = SenTree if drafter.startswith("sen-tree") else SenDrafter
    return kind(Datastore.load(sources.datastore, sources.target), semantic=not drafter.endswith("-lexical"))


def read_corpus(sources: Sources) -> SuffixArray:
    """The texts of the corpus, without the tokens that a tokenizer puts around a text.

    Raises:
        UserError: there is no file, or no text in it.
    """
    from gistgate.files import read_text
    from gistgate.optional.retrieval.suffix_array import SuffixArray

    if sources.corpus is None or sources.tokenizer is None:
        raise UserError(
            "The drafter 'corpus' looks up training texts. Name a file with one text per line as corpus=<file>."
        )
    texts = [line.removesuffix("\r") for line in read_text(sources.corpus).split("\n") if line.strip()]
    if not texts:
        raise UserError(f"{sources.corpus} holds no text. Put one training text into every line.")
    return SuffixArray.build(sources.tokenizer(texts, add_special_tokens=False).input_ids)
