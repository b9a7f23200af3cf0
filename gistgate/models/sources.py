"""What drafters are made of, and drafters by their ids."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gistgate.core.drafter import Drafter
from gistgate.core.files import read_text
from gistgate.core.utils import UserError, nearest
from gistgate.coverage.choose import NONE
from gistgate.drafters import DRAFTERS
from gistgate.drafters.model import ModelDrafter

CORPUS = "corpus"
HYBRID = "hybrid"
STOPPING = ("model", HYBRID)  # drafters whose drafts may end before K tokens
# Drafters that read a datastore; the lexical ones ask for no states.
STORED = ("sen", "sen-lexical", "sen-tree", "sen-tree-lexical")
KNOWN = (*DRAFTERS, *STORED, CORPUS, NONE)  # every id, plain decoding included


@dataclass(frozen=True)
class Sources:
    """What a drafter may be made of."""

    target: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None = None  # reads the corpus
    draft: PreTrainedModel | None = None
    datastore: str | Path | None = None  # folder of a datastore of this target
    corpus: str | Path | None = None  # text file, one training text per line
    # When drafts end: a `Stopping` or its file; None: at K tokens.
    stopping: Any = None

    def behind(self, drafter: str) -> Path | None:
        """The folder or file that a drafter knows texts from; None for a drafter that knows
        nothing but the request.
        """
        data = None
        if drafter == CORPUS:
            data = self.corpus
        elif drafter in STORED:
            data = self.datastore
        return None if data is None else Path(data)


def make_drafter(drafter: str, sources: Sources) -> Drafter | None:
    """A drafter by id; "none" is plain decoding. UserError where a source is missing."""
    if drafter not in KNOWN:
        raise UserError(f"There is no drafter '{drafter}'. {nearest(drafter, list(KNOWN))}")
    if sources.stopping is not None and drafter not in STOPPING:
        raise UserError(
            f"'{drafter}' never ends drafts early. Leave stop_drafting away or take"
            f" {', '.join(STOPPING)}."
        )
    if drafter == NONE:
        return None
    if drafter in STORED:
        return datastore_drafter(drafter, sources)
    if drafter == CORPUS:
        return corpus_drafter(sources)
    if asks_draft(drafter):
        return model_drafter(drafter, sources)
    copying: Drafter = DRAFTERS[drafter]()
    return copying


def datastore_drafter(drafter: str, sources: Sources) -> Drafter:
    """A drafter that continues the texts of a datastore (arXiv 2606.00021)."""
    from gistgate.retrieval.sense import SenseDrafter, SenseTree
    from gistgate.retrieval.store import Datastore

    if sources.datastore is None:
        raise UserError(
            f"The drafter '{drafter}' reads a datastore. Name its folder as datastore=<folder>."
        )
    kind = SenseTree if drafter.startswith("sen-tree") else SenseDrafter
    store = Datastore.load(sources.datastore, sources.target)
    return kind(store, semantic=not drafter.endswith("-lexical"))


def corpus_drafter(sources: Sources) -> Drafter:
    """A drafter that continues the texts of a file."""
    from gistgate.retrieval.corpus import CorpusDrafter, SuffixArray

    if sources.corpus is None or sources.tokenizer is None:
        raise UserError(
            "The drafter 'corpus' looks up texts. Name a file with one text per line as"
            " corpus=<file>."
        )
    lines = read_text(sources.corpus).split("\n")
    texts = [line.removesuffix("\r") for line in lines if line.strip()]
    if not texts:
        raise UserError(f"{sources.corpus} holds no text. Put one training text into every line.")
    # Without the tokens that a tokenizer puts around a text.
    ids = sources.tokenizer(texts, add_special_tokens=False).input_ids
    return CorpusDrafter(SuffixArray.build(ids))


def asks_draft(drafter: str) -> bool:
    """Whether a drafter drafts with the draft model, alone or among others: certificates then bind
    that model.
    """
    return drafter == HYBRID or (
        drafter in DRAFTERS and issubclass(DRAFTERS[drafter], ModelDrafter)
    )


def model_drafter(drafter: str, sources: Sources) -> Drafter:
    """A drafter that asks the draft model."""
    if sources.draft is None:
        raise UserError(
            f"The drafter '{drafter}' needs a draft model. Name one (--draft), or take 'lookup'."
        )
    stopping = sources.stopping
    if isinstance(stopping, str | Path):
        from gistgate.drafters.stopping import stopping_from

        stopping = stopping_from(stopping)
    if drafter == HYBRID:
        return hybrid(sources.draft, stopping)
    ends = {} if stopping is None else {"stopping": stopping}
    asking: Drafter = DRAFTERS[drafter](sources.draft, **ends)
    return asking


def hybrid(draft: PreTrainedModel, stopping: Any) -> Drafter:
    """Repetitions in the text and the draft model, weighed by the costs that the policy was made
    with.
    """
    from gistgate.drafters.adaptive import Costs, ModelOrTextDrafter

    measured = {} if stopping is None else stopping.measured
    if not {"block", "cost", "verify"} <= measured.keys():
        raise UserError(
            "The drafter 'hybrid' needs measured costs, those of `gistgate fit-draft`, as"
            " stop_drafting."
        )
    block = int(measured["block"])
    by_block = {int(num): float(cost) for num, cost in measured["verify"].items()}
    costs = Costs(1.0, float(measured["cost"]), by_block)
    return ModelOrTextDrafter(ModelDrafter(draft, stopping), costs, block)
