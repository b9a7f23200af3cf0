"""A draft model that is drafted for proposes what it would alone."""

from __future__ import annotations

import pytest

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.cascade import CascadeDrafter
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SharedSuffixes, SuffixDrafter
from gistgate.drafters.text import PromptLookup, TokenRecycling
from gistgate.rules import make_rule
from gistgate.trees.drafter import LookupTree, TreeDrafter
from tests.architectures import SIZES, pair, prompts

BATCH = [one * 2 for one in prompts(5, 17, 2, 10)]


@pytest.mark.parametrize("batch", [BATCH, BATCH[:1]])
@pytest.mark.parametrize("inner", [PromptLookup, SuffixDrafter])
@pytest.mark.parametrize("kind", SIZES)
def test_proposals_and_answers_are_those_of_the_draft_model_alone(kind, inner, batch):
    target, draft = pair(kind)
    alone, cascade = ModelDrafter(draft), CascadeDrafter(draft, inner(), 3)
    answers = [
        Decoder(target, drafter, make_rule("prob", r=0.05), 6).generate(batch, max_new_tokens=40)
        for drafter in (alone, cascade)
    ]
    assert [one.ids for one in answers[0]] == [one.ids for one in answers[1]]
    assert [one.statistics.histogram for one in answers[0]] == [one.statistics.histogram for one in answers[1]]


def test_repetition_saves_forwards():
    class Oracle(PromptLookup):
        """Guesses what the draft model alone writes."""

        def continuation(self, text, num_draft):
            return self.known[len(text) : len(text) + num_draft]

    _, draft = pair("llama")
    text = BATCH[0]
    request = {"vocabulary": 259, "sampling": Sampling(), "uniforms": None, "want_q": False}
    alone, inner = ModelDrafter(draft).propose([text], 8, **request), Oracle()
    inner.known = [*text, *alone.ids[0].tolist()]
    found = CascadeDrafter(draft, inner, 3).propose([text], 8, **request)
    assert found.ids.tolist() == alone.ids.tolist() and (alone.forwards, found.forwards) == (8, 2)


def test_what_cannot_be_an_inner_drafter_is_refused():
    with pytest.raises(UserError, match="cascade: inner_block"):
        CascadeDrafter(pair("llama")[1], PromptLookup(), 0)
    _, draft = pair("llama")
    sharing = SuffixDrafter(scope="global", shared=SharedSuffixes())
    for inner in (TokenRecycling(), ModelDrafter(draft), TreeDrafter(draft), LookupTree(), sharing):
        with pytest.raises(UserError, match="reads texts alone"):
            CascadeDrafter(draft, inner)
