"""The draft model proposes what it would write itself, all of it or to where it pays."""

from itertools import product
from typing import Any

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.files import read_json
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping, stopping_from
from gistgate.rules import make_rule
from tests.architectures import BATCH, SIZES, greedy, pair, prompts
from tests.drafters.proposing import decoded, num_accepted, wanted
from tests.rules.enumerating import QUARTERS, WANTED, pairs

GREEDY: dict[str, Any] = {
    "vocabulary": 259,
    "sampling": Sampling(),
    "uniforms": None,
    "want_q": False,
}


@pytest.mark.parametrize("kind", SIZES)
def test_a_proposal_is_the_model_s_own_greedy_text(kind: str):
    """Also after parts of earlier proposals were refused, row by row."""
    drafter = ModelDrafter(pair(kind)[0])
    texts = prompts(5, 11, 2)
    drafter.start(3)
    with torch.inference_mode():
        for accepted in ([0, 3, 1], [3, 0, 2], [3, 3, 3], [0, 0, 0]):
            draft = drafter.propose(texts, 3, **GREEDY)
            assert draft.ids.tolist() == [greedy(kind, tuple(text), 3) for text in texts]
            assert draft.valid.all() and draft.q is None and draft.forwards == 3
            drafter.keep(accepted)
            kept = [ids[:num] for ids, num in zip(draft.ids.tolist(), accepted, strict=True)]
            texts = [[*text, *ids, 9] for text, ids in zip(texts, kept, strict=True)]


def test_probabilities_are_those_it_drew_from():
    drafter, texts = ModelDrafter(pair("llama")[0]), prompts(5, 11)
    uniforms = torch.tensor([[0.2, 0.9], [0.6, 0.4]], dtype=torch.float64)
    sampling = Sampling(0.7, top_k=5)
    drafter.start(2)
    with torch.inference_mode():
        draft = drafter.propose(
            texts, 2, vocabulary=200, sampling=sampling, uniforms=uniforms, want_q=True
        )
        assert draft.q is not None and draft.q.shape == (2, 2, 200)
        for row, text in enumerate(texts):
            whole = torch.tensor([[*text, int(draft.ids[row, 0])]])
            q = sampling.logits(pair("llama")[0](whole).logits[0, -2:, :200]).softmax(-1)
            torch.testing.assert_close(draft.q[row], q, atol=1e-4, rtol=0)
            for step in (0, 1):
                below = q[step, : draft.ids[row, step]].sum()
                assert below <= uniforms[row, step] <= below + q[step, draft.ids[row, step]]


SURE = Stopping(0.1, ((0.1, 0.2), (0.5, 0.6), (0.9, 1.0)))


@pytest.mark.parametrize("batch", [BATCH, BATCH[:1]])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_drafts_that_end_early_leave_the_greedy_answers_and_cost_less(kind, batch):
    answers = decoded(ModelDrafter(pair(kind)[1], Stopping(0.5)), kind, batch)
    assert [one.ids for one in answers] == wanted(kind, batch) and num_accepted(answers)
    whole = decoded(ModelDrafter(pair(kind)[1]), kind, batch)
    drafted = [
        total([one.statistics for one in found]).draft_forwards for found in (answers, whole)
    ]
    assert drafted[0] < drafted[1]


def begun(texts, stopping, **request):
    """What a new drafter proposes first, six tokens at most."""
    drafter = ModelDrafter(pair("llama")[0], stopping)
    drafter.start(len(texts))
    with torch.inference_mode():
        return drafter.propose(texts, 6, **{**GREEDY, **request})


def test_rows_end_on_their_own_and_the_longest_draft_decides_how_often_the_model_is_asked():
    whole, ended = (begun(BATCH, stopping, want_q=True) for stopping in (None, SURE))
    q = whole.q.gather(-1, whole.ids[..., None]).squeeze(-1)
    lengths = [SURE.length(row.tolist()) for row in q]
    assert ended.valid.sum(-1).tolist() == lengths and len(set(lengths)) > 1
    assert ended.forwards == ended.ids.shape[1] == max(lengths)
    assert torch.equal(ended.ids, whole.ids[:, : max(lengths)])
    assert [begun([text], SURE, want_q=True).ids.shape[1] for text in BATCH] == lengths


def test_the_last_row_to_end_may_leave_or_be_refused():
    """Rows that ended have slots in the cache that are taken back with the refused ones."""
    drafter, texts = ModelDrafter(pair("llama")[0], SURE), BATCH
    drafter.start(4)
    with torch.inference_mode():
        for _ in range(3):
            draft = drafter.propose(texts, 6, **GREEDY)
            kept = draft.valid.sum(-1).tolist()
            drafter.keep(kept)
            texts = [
                [*text, *ids[:num], 9]
                for text, ids, num in zip(texts, draft.ids.tolist(), kept, strict=True)
            ]
        draft, again = drafter.propose(texts, 6, **GREEDY), begun(texts, SURE)
    assert torch.equal(draft.valid, again.valid) and torch.equal(
        draft.ids[draft.valid], again.ids[again.valid]
    )


@pytest.mark.parametrize("rule_id", ["exact", "block"])
def test_sampling_stays_lossless_whatever_the_end_depends_on(rule_id):
    """q(x_1) is 1/4 or 1/2: the draft goes on behind one of three tokens."""
    stopping, found = Stopping(0.3), torch.zeros(3, 3, dtype=torch.float64)
    assert {stopping.length([q, 1.0]) for q in (0.25, 0.5)} == {1, 2}
    for first, second in product(range(3), range(3)):
        weight, num = (
            QUARTERS[0, first] * QUARTERS[1 + first, second],
            stopping.length([float(QUARTERS[0, first]), 1]),
        )
        if weight > 0:
            found += weight * pairs(
                make_rule(rule_id), (first, second)[:num], certain=False, num=24
            )
    assert torch.allclose(found, WANTED.double(), atol=1e-6 if rule_id == "exact" else 0.02)


def test_sampled_drafts_are_the_beginnings_of_whole_ones():
    uniforms = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    request = {"sampling": Sampling(1.0), "uniforms": uniforms}
    whole, ended = (begun(BATCH, stopping, **request) for stopping in (None, Stopping(0.2)))
    width = ended.ids.shape[1]
    assert torch.equal(ended.ids, whole.ids[:, :width]) and torch.equal(ended.q, whole.q[:, :width])
    assert ended.valid.sum() < whole.valid.sum()


def test_estimates_follow_the_points():
    assert [SURE.acceptance(q) for q in (0.0, 0.1, 0.3, 0.9, 1.0)] == pytest.approx(
        [0.2, 0.2, 0.4, 1.0, 1.0]
    )
    assert Stopping(0.5).length([0.8, 0.8, 0.6, 0.9]) == 3
    assert Stopping(0.0).length([0.1] * 5) == 5 and Stopping(1.0).length([0.9, 1.0]) == 1


def test_a_policy_is_a_file(tmp_path):
    policy = Stopping(0.1, SURE.points, measured={"rule": "exact"})
    policy.save(tmp_path / "stop.json")
    assert stopping_from(tmp_path / "stop.json") == policy
    assert read_json(tmp_path / "stop.json") == {**policy.binding, "measured": policy.measured}
    with pytest.raises(UserError, match="0.4 is missing"):
        stopping_from(0.4)


@pytest.mark.parametrize(
    "content, said",
    [
        ('{"floor": 0.5}', "'points' is missing"),
        ('{"floor": 0.5, "points": [[0, 1]], "other": 1}', "'other'"),
        ("[]", "says nothing about when drafts end"),
        ('{"floor": 0.5, "points": [[0, 0.9], [1, 0.1]]}', "do not rise"),
        ('{"floor": 1.5, "points": [[0, 0], [1, 1]]}', "'floor' is 1.5"),
        ('{"floor": 0.5, "points": [[0, 2]]}', "'points' is"),
        ('{"floor": 0.5, "points": []}', "says nothing about when drafts end"),
    ],
)
def test_what_is_no_policy_is_refused(tmp_path, content, said):
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(UserError, match=said):
        stopping_from(tmp_path / "bad.json")
