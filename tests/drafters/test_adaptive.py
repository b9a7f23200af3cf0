"""A choice of drafters never changes a strict text, takes what pays, and gives up where nothing does."""

from __future__ import annotations

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import AdaptiveDrafter, Option, Recent, match_length, speed
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.trees.drafter import TreeDrafter
from tests.architectures import SIZES, pair, prompts
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted

BATCH = [one * 2 for one in prompts(5, 17, 2, 10)]


class Fixed(PromptLookup):
    """Proposes the same token everywhere, but where the text ends with `unless`."""

    def __init__(self, token: int, unless: int = -1) -> None:
        super().__init__()
        self.token, self.unless, self.settled = token, unless, []

    def continuation(self, text, num_draft):
        return [] if text[-1] == self.unless else [self.token] * num_draft

    def keep(self, accepted):
        self.settled.append(list(accepted))


@pytest.mark.parametrize("batch", [BATCH, BATCH[:1]])
@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones_whoever_drafts(kind, batch):
    drafter = AdaptiveDrafter([Option(PromptLookup(), 0.0, 2), Option(ModelDrafter(pair(kind)[1]), 0.1)], 1.1)
    answers = decoded(drafter, kind, batch)
    assert [one.ids for one in answers] == wanted(kind, batch)
    counts = total([one.statistics for one in answers]).extra
    assert counts["choice_0"] and counts["choice_1"] and num_accepted(answers)


def test_drafters_of_texts_alone_and_a_second_request():
    drafter = AdaptiveDrafter([Option(SuffixDrafter()), Option(PromptLookup())], 1.05)
    for _ in range(2):
        assert [one.ids for one in decoded(drafter, "llama", BATCH)] == wanted("llama", BATCH)


def test_sampled_requests_stay_reproducible_and_carry_probabilities():
    drafter = AdaptiveDrafter([Option(PromptLookup(), 0.0, 2), Option(ModelDrafter(pair("llama")[1]), 0.1)])
    request = {"vocabulary": 259, "sampling": Sampling(1.0), "want_q": False}
    texts = [[7, 8, 9, 7, 8], [5, 6, 11, 12, 13]]
    drafter.start(2)
    draft = drafter.propose(texts, 3, uniforms=torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), **request)
    assert draft.ids[0].tolist() == [9, 7, 8] and draft.q is not None
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(2, 3))
    assert draft.q[0].max(-1).values.tolist() == [1, 1, 1] and draft.q[1].max() < 1
    alone, batch = (
        [one.ids for one in decoded(drafter, "llama", some, sampling=Sampling(1.0), seeds=[3, 4][: len(some)])]
        for some in (BATCH[:1], BATCH[:2])
    )
    assert alone[0] == batch[0]


def test_every_row_has_the_first_that_pays_and_finds_something():
    first, second = Fixed(1, unless=50), Fixed(2)
    drafter = AdaptiveDrafter([Option(first), Option(second)])
    assert proposed(drafter, [[40], [50]], 3) == [[1, 1, 1], [2, 2, 2]]
    drafter.keep([0, 3])
    assert first.settled == [[0, 0]] and second.settled == [[0, 3]]
    assert proposed(drafter, [[40], [50]], 3) == [[2, 2, 2], [2, 2, 2]], "row 0 goes to the drafter without a failure"


def test_a_match_that_is_too_short_is_left_to_others():
    drafter = AdaptiveDrafter([Option(Fixed(1), 0.0, 2), Option(Fixed(2), 0.05)])
    assert proposed(drafter, [[7, 8, 7, 8], [7, 9, 8, 9]], 2) == [[1, 1], [2, 2]]
    assert [match_length(text, 3) for text in ([7, 8, 7, 8], [7, 9, 8, 9], [1, 2], [4], [3, 3, 3, 3])] == [
        2,
        1,
        0,
        0,
        3,
    ]


def test_a_request_gives_up_where_drafting_costs_more_than_it_brings():
    refused = Fixed(258)
    drafter = AdaptiveDrafter([Option(refused, 0.2)], 1.1, block=5)
    answers = decoded(drafter, "llama", BATCH)
    assert [one.ids for one in answers] == wanted("llama", BATCH) and not num_accepted(answers)
    rounds = len(refused.settled)
    counts = total([one.statistics for one in answers]).extra
    assert 1 <= rounds <= 8 and counts["choice_gave_up"] == 39 * len(BATCH) - counts["choice_0"] > 0
    decoded(drafter, "llama", BATCH[:1])
    assert len(refused.settled) > rounds, "the next request begins anew"


def test_break_even_is_that_of_the_costs():
    assert speed(1.0, 4, 0.1, 1.1) == pytest.approx(5 / 1.5) and speed(0.0, 4, 0.0, 1.0) == 1
    assert Recent(3.2, 4).after(5, 2, 0.5) == Recent(3.6, 5, 5, 1) and Recent(3.2, 4).after(2, 2, 1).tested == 6
    above = AdaptiveDrafter([Option(Fixed(1), 0.5)], block=1, prior=0.6)
    below = AdaptiveDrafter([Option(Fixed(1), 0.7)], block=1, prior=0.6)
    assert proposed(above, [[3]], 1) == [[1]] and proposed(below, [[3]], 1) == [[]]


def test_what_cannot_be_chosen_among_is_refused():
    draft = pair("llama")[1]
    for options in ([], [Option(ModelDrafter(draft))] * 2, [Option(TreeDrafter(draft))]):
        with pytest.raises(UserError, match="drafters of chains"):
            AdaptiveDrafter(options)
    with pytest.raises(UserError, match="verify 0 is above 0"):
        AdaptiveDrafter([Option(PromptLookup())], 0)
    with pytest.raises(UserError, match="memory 2 in"):
        AdaptiveDrafter([Option(PromptLookup())], memory=2)
