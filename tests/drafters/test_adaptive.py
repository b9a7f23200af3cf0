"""A choice of drafters never changes a strict text, takes what pays, and gives up where nothing
does.
"""

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import (
    AdaptiveDrafter,
    Costs,
    ModelOrTextDrafter,
    Option,
    Recent,
    speed,
)
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.drafters.text import PromptLookup
from gistgate.models.sources import Sources, make_drafter
from tests.architectures import SIZES, pair, prompts
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted

BATCH = [one * 2 for one in prompts(5, 17, 2, 10)]


def chosen(*options: Option, verify: float = 1.0, block: int = 8) -> AdaptiveDrafter:
    return AdaptiveDrafter(options, verify, block=block, weight=16.0)


def lookup_or_model(kind: str, verify: float = 1.0) -> AdaptiveDrafter:
    lookup = Option(PromptLookup(), min_match=2)
    return chosen(lookup, Option(ModelDrafter(pair(kind)[1]), 0.1), verify=verify)


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
    answers = decoded(lookup_or_model(kind, 1.1), kind, batch)
    assert [one.ids for one in answers] == wanted(kind, batch)
    counts = total([one.statistics for one in answers])
    assert counts.draft_forwards > 0 and num_accepted(answers)


def test_sampled_requests_stay_reproducible_and_carry_probabilities():
    drafter = lookup_or_model("llama")
    request = {"vocabulary": 259, "sampling": Sampling(1.0), "want_q": False}
    texts = [[7, 8, 9, 7, 8], [5, 6, 11, 12, 13]]
    drafter.start(2)
    draft = drafter.propose(
        texts, 3, uniforms=torch.rand(2, 3, generator=torch.Generator().manual_seed(0)), **request
    )
    assert draft.ids[0].tolist() == [9, 7, 8] and draft.q is not None
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(2, 3))
    assert draft.q[0].max(-1).values.tolist() == [1, 1, 1] and draft.q[1].max() < 1
    alone, batch = (
        [
            one.ids
            for one in decoded(
                drafter, "llama", some, sampling=Sampling(1.0), seeds=[3, 4][: len(some)]
            )
        ]
        for some in (BATCH[:1], BATCH[:2])
    )
    assert alone[0] == batch[0]


def test_every_row_has_the_first_that_pays_and_finds_something():
    first, second = Fixed(1, unless=50), Fixed(2)
    drafter = chosen(Option(first), Option(second))
    assert proposed(drafter, [[40], [50]], 3) == [[1, 1, 1], [2, 2, 2]]
    drafter.keep([0, 3])
    assert first.settled == [[0, 0]] and second.settled == [[0, 3]]
    assert proposed(drafter, [[40], [50]], 3) == [[2, 2, 2], [2, 2, 2]], (
        "row 0 goes to the drafter without a failure"
    )


def test_a_match_that_is_too_short_is_left_to_others():
    drafter = chosen(Option(Fixed(1), 0.0, 2), Option(Fixed(2), 0.05))
    assert proposed(drafter, [[7, 8, 7, 8], [7, 9, 8, 9]], 2) == [[1, 1], [2, 2]]


def test_a_request_gives_up_where_drafting_costs_more_than_it_brings():
    refused = Fixed(258)
    drafter = chosen(Option(refused, 0.2), verify=1.1, block=5)
    answers = decoded(drafter, "llama", BATCH)
    assert [one.ids for one in answers] == wanted("llama", BATCH) and not num_accepted(answers)
    rounds = len(refused.settled)
    assert 1 <= rounds <= 8
    decoded(drafter, "llama", BATCH[:1])
    assert len(refused.settled) > rounds, "the next request begins anew"


def test_break_even_is_that_of_the_costs():
    assert speed(1.0, 4, 0.1, 1.1) == pytest.approx(5 / 1.5) and speed(0.0, 4, 0.0, 1.0) == 1
    assert Recent(3, 10, 20, 2).after(5, 2) == Recent(4.7, 12, 23, 2.8)
    assert Recent(3, 10).after(2, 2).tested == 11
    above = chosen(Option(Fixed(1), 0.5, prior=0.6), block=1)
    below = chosen(Option(Fixed(1), 0.7, prior=0.6), block=1)
    assert proposed(above, [[3]], 1) == [[1]] and proposed(below, [[3]], 1) == [[]]


REPEATED = [7, 8, 9, 10, 11] * 4


def hybrid(stopping=None, cost=0.1, kind="llama") -> ModelOrTextDrafter:
    return ModelOrTextDrafter(ModelDrafter(pair(kind)[1], stopping), Costs(1.0, cost, {1: 1.0}), 5)


@pytest.mark.parametrize("num", [4, 1])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_model_and_a_text_leave_the_greedy_answers(kind, num):
    batch = prompts(5, 17, 2, 10)[:num]
    answers = decoded(hybrid(Stopping(0.3), kind=kind), kind, batch)
    assert [one.ids for one in answers] == wanted(kind, batch) and num_accepted(answers)
    assert total([one.statistics for one in answers]).draft_forwards


def draft_of(drafter, text):
    return drafter.propose(
        [text], 5, vocabulary=259, sampling=Sampling(), uniforms=None, want_q=False
    )


def test_a_text_is_trusted_once_it_foretold_what_was_written():
    """The random model foretells nothing of the repetition, so its drafts are all refused."""
    drafter, written, taken, length = hybrid(cost=0.01), REPEATED * 9, [], len(REPEATED)
    drafter.start(1)
    for _ in range(12):
        draft = draft_of(drafter, written[:length])
        taken.append(drafter.rows[0].taken.place)
        follows = written[length : length + draft.ids.shape[1]]
        agree = [a == b for a, b in zip(draft.ids[0].tolist(), follows, strict=True)]
        kept = [*agree, False].index(False)
        drafter.keep([kept])
        length += kept + 1
    first = taken.index(0)
    assert first > 0 and set(taken[:first]) == {1} and set(taken[first:]) == {0}
    assert drafter.rows[0].recent[0].rate > 0.5


def test_costs_come_from_the_policy():
    target, draft = pair("llama")
    measured = {"cost": 0.2, "verify": {"1": 0.9, "6": 1.1}, "block": 6}

    stopping = Stopping(0.3, measured=measured)
    found = make_drafter("hybrid", Sources(target, draft=draft, stopping=stopping))
    assert (
        isinstance(found, ModelOrTextDrafter)
        and found.verify == 1.1
        and found.options[1].cost == 0.2
    )
    assert found.binding == {"stopping": Stopping(0.3).binding, **measured}
    assert found.costs.verification(1) == 0.9
    with pytest.raises(UserError, match="measured costs"):
        make_drafter("hybrid", Sources(target, draft=draft, stopping=None))
    with pytest.raises(UserError, match="needs a draft model"):
        make_drafter("hybrid", Sources(target, stopping=Stopping(0.3, measured=measured)))
