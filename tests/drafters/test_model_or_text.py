"""A text drafts where it has proven itself in the request, else the model; strict texts never change."""

from __future__ import annotations

import pytest

from gistgate.core.block import Sampling
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import UNPROVEN, Costs, ModelOrTextDrafter, Recent
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.models.build import Sources, make_drafter
from tests.architectures import pair, prompts
from tests.drafters.proposing import decoded, num_accepted, wanted

BATCH = prompts(5, 17, 2, 10)
REPEATED = [7, 8, 9, 10, 11] * 4


def hybrid(stopping=None, cost=0.1, kind="llama") -> ModelOrTextDrafter:
    return ModelOrTextDrafter(ModelDrafter(pair(kind)[1], stopping), Costs(1.0, cost, {1: 1.0}), 5)


@pytest.mark.parametrize("batch", [BATCH, BATCH[:1]])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_strict_answers_are_the_greedy_ones(kind, batch):
    answers = decoded(hybrid(Stopping(0.3), kind=kind), kind, batch)
    assert [one.ids for one in answers] == wanted(kind, batch) and num_accepted(answers)
    counts = total([one.statistics for one in answers]).extra
    assert counts["choice_1"]


def proposed(drafter, text):
    return drafter.propose([text], 5, vocabulary=259, sampling=Sampling(), uniforms=None, want_q=False)


def test_a_text_is_trusted_once_it_foretold_what_was_written():
    """The random model foretells nothing of the repetition, so its drafts are all refused."""
    drafter, written, taken, length = hybrid(cost=0.01), REPEATED * 9, [], len(REPEATED)
    drafter.start(1)
    for _ in range(12):
        draft = proposed(drafter, written[:length])
        taken.append(draft.notes[0])
        follows = written[length : length + draft.ids.shape[1]]
        agree = [a == b for a, b in zip(draft.ids[0].tolist(), follows, strict=True)]
        kept = [*agree, False].index(False)
        drafter.keep([kept])
        length += kept + 1
    first = taken.index("choice_0")
    assert first > 0 and set(taken[:first]) == {"choice_1"} and set(taken[first:]) == {"choice_0"}
    assert drafter.rows[0][0].rate > 0.5


def test_a_text_that_foretells_nothing_is_never_taken():
    """What is written is what the model drafts, and the text proposes the repetition in front of it."""
    drafter, text = hybrid(), list(REPEATED)
    drafter.start(1)
    for token in (100, 101, 102, 103, 104):
        draft = proposed(drafter, text)
        assert draft.notes == ["choice_1"]
        drafter.keep([draft.ids.shape[1]])
        text = [*text, *draft.ids[0].tolist(), token, *REPEATED[:3]]
    assert drafter.rows[0][0].rate < UNPROVEN


@pytest.mark.parametrize("whole, taken", [(1.5, "choice_0"), (1.0, "choice_1")])
def test_a_short_copy_is_read_at_the_price_of_its_length(whole, taken):
    """Three copied tokens are worth more than five drafted ones where reading five costs half a step more."""
    drafter, text = (
        ModelOrTextDrafter(hybrid().options[1].drafter, Costs(1.0, 0.02, {3: 1.0, 5: whole}), 5),
        [1, 2, 3, 9],
    )
    drafter.start(1)
    drafter.rows[0] = [Recent(8.0, 10.0), Recent(8.0, 10.0)]
    draft = proposed(drafter, [*text, 7, 8, 5, *text[:3]])
    assert draft.notes == [taken]


def test_costs_come_from_the_policy(tmp_path):
    draft = pair("llama")[1]
    measured = {"cost": 0.2, "verify": {"1": 0.9, "6": 1.1}, "block": 6}
    made = make_drafter("hybrid", Sources(pair("llama")[0], draft=draft, stopping=Stopping(0.3, measured=measured)))
    assert isinstance(made, ModelOrTextDrafter) and made.verify == 1.1 and made.options[1].cost == 0.2
    assert made.binding == {"stopping": Stopping(0.3).binding, **measured} and made.stops_early
    older = Sources(pair("llama")[0], draft=draft, stopping=Stopping(0.3, measured={**measured, "verify": 1.1}))
    assert made.costs.verification(1) == 0.9 and make_drafter("hybrid", older).costs.verification(1) == 1.1
    for verify in ({}, {"6": 0.0}, {"6": "much"}, None):
        damaged = Sources(
            pair("llama")[0], draft=draft, stopping=Stopping(0.3, measured={**measured, "verify": verify})
        )
        with pytest.raises(UserError, match="Measure them with `gistgate fit-draft`"):
            make_drafter("hybrid", damaged)
    for stopping in (None, "0.4"):
        with pytest.raises(UserError, match="measured costs"):
            make_drafter("hybrid", Sources(pair("llama")[0], draft=draft, stopping=stopping))
    with pytest.raises(UserError, match="needs a draft model"):
        make_drafter("hybrid", Sources(pair("llama")[0], stopping=Stopping(0.3, measured=measured)))
