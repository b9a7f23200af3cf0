"""Drafters by id that know more than the request: the datastore's, the corpus of training texts, and their choice."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import PreTrainedModel

from gistgate.build.drafters import STORED, Sources, make_drafter
from gistgate.drafters.base import Drafter
from gistgate.drafters.choice import ChoiceDrafter, Option
from gistgate.drafters.lookup import PromptLookup
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.optional.retrieval import Datastore
from gistgate.optional.retrieval.corpus import CorpusDrafter
from gistgate.optional.retrieval.suffix_array import SuffixArray
from pipeline.common.drafters import OF_STUDIES, StudyDrafter
from pipeline.common.paths import DATASTORE
from pipeline.pairs.pair import Pair
from pipeline.studies.retrieval.params import FILE, ChoiceParams, read_retrieval_params
from pipeline.studies.retrieval.texts import ANSWERS, PROMPTS, training_texts


def store_for(target: PreTrainedModel) -> Datastore:
    """The datastore of this run.

    Raises:
        UserError: there is none, or it does not fit.
    """
    check_store()
    return Datastore.load(DATASTORE, target)


def check_store() -> None:
    """Refuse to go on without the datastore of this run."""
    if not DATASTORE.is_dir():
        raise UserError(f"{DATASTORE} is missing. Run `make retrieval` in this folder first.")


def stored(name: str, pair: Pair) -> Drafter:
    """A drafter that reads the datastore of this run."""
    check_store()
    made = make_drafter(name, Sources(pair.target, datastore=DATASTORE))
    assert made is not None
    return made


def corpus(_pair: Pair) -> Drafter:
    """REST-like retrieval from prompts and answers."""
    return CorpusDrafter(SuffixArray.build([*text.prompt, *text.answer] for text in training_texts()))


def choice(pair: Pair, params: ChoiceParams | None = None) -> Any:
    """Corpus, prompt lookup and draft model, by what each promises in this row."""
    params = params or read_retrieval_params().choice
    options = [
        Option(corpus(pair)),
        Option(PromptLookup(), min_match=params.min_match),
        Option(ModelDrafter(pair.draft_model), cost=params.cost),
    ]
    return ChoiceDrafter(options, params.verify, block=params.block, prior=params.prior, weight=params.weight)


TEXTS = (PROMPTS, ANSWERS)
RETRIEVAL = {
    "corpus": StudyDrafter(corpus, TEXTS),
    **{name: StudyDrafter(partial(stored, name), (DATASTORE,)) for name in STORED},
    "choice": StudyDrafter(choice, (*TEXTS, FILE), asks_draft=True),
}
"""By id, as the methods of pipeline/studies/retrieval/params.yaml name them."""
OF_STUDIES.update(RETRIEVAL)
