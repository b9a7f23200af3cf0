"""Drafters by id that know more than the request: the datastore's, the corpus of training texts, and their choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from gistgate.build.drafters import STORED, Sources, make_drafter
from gistgate.drafters import DRAFTERS
from gistgate.drafters.base import Drafter
from gistgate.drafters.choice import ChoiceDrafter, Option
from gistgate.drafters.lookup import PromptLookup
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.optional.retrieval import Datastore
from gistgate.optional.retrieval.corpus import CorpusDrafter
from gistgate.optional.retrieval.suffix_array import SuffixArray
from pipeline.pairs.pair import Pair
from pipeline.studies.retrieval.params import FILE, ChoiceParams, read_retrieval_params
from pipeline.studies.retrieval.texts import ANSWERS, PROMPTS, STORE, training_texts


def store_for(target: PreTrainedModel) -> Datastore:
    """The datastore of this run.

    Raises:
        UserError: there is none, or it does not fit.
    """
    check_store()
    return Datastore.load(STORE, target)


def check_store() -> None:
    """Refuse to go on without the datastore of this run."""
    if not STORE.is_dir():
        raise UserError(f"{STORE} is missing. Run `make retrieval` in this folder first.")


def stored(name: str, pair: Pair) -> Drafter | None:
    """A drafter that reads the datastore of this run."""
    check_store()
    return make_drafter(name, Sources(pair.target, datastore=STORE))


def corpus(_pair: Pair) -> Drafter:
    """REST-like retrieval from prompts and answers."""
    return CorpusDrafter(SuffixArray.build([*text.prompt, *text.answer] for text in training_texts()))


def choice(pair: Pair, params: ChoiceParams | None = None) -> Drafter:
    """Corpus, prompt lookup and draft model, by what each promises in this row."""
    params = params or read_retrieval_params().choice
    options = [
        Option(corpus(pair)),
        Option(PromptLookup(), min_match=params.min_match),
        Option(ModelDrafter(pair.draft), cost=params.cost),
    ]
    return ChoiceDrafter(options, params.verify, block=params.block, prior=params.prior, weight=params.weight)


RETRIEVAL: dict[str, Callable[[Pair], Drafter | None]] = {
    "corpus": corpus,
    **{name: partial(stored, name) for name in STORED},
    "choice": choice,
}
"""By id, as in the method tables of params.yaml."""


def asks_draft(drafter_id: str) -> bool:
    """Whether a drafter drafts with the pair's draft model, alone or among others."""
    return drafter_id == "choice" or issubclass(DRAFTERS.get(drafter_id, object), ModelDrafter)


def files_behind(drafter_id: str) -> list[Path]:
    """What a drafter knows besides the request: a certificate holds for no other content."""
    if drafter_id in ("corpus", "choice"):
        return [PROMPTS, ANSWERS, *([FILE] if drafter_id == "choice" else [])]
    return [STORE] if drafter_id in RETRIEVAL else []
