"""Features: which row a number comes from, and that nothing in them can become nan."""

import math

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.features import DRAFT, LOOK_AHEAD, SCALARS, extract, layers_needed, needs_q
from gistgate.core.utils import UserError

# One row, three draft tokens, a vocabulary of four. Row 0 prefers 0, row 1 is torn between 1 and 2, row 2 prefers 3.
LOGITS = torch.tensor([[[9.0, 1.0, 0.0, 0.0], [0.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 9.0], [9.0, 0.0, 0.0, 0.0]]])


def block(draft=(1, 1, 3), valid=(True, True, True), logits=LOGITS, **parts):
    states = torch.arange(4.0).view(1, 4, 1).expand(1, 4, 2)  # every entry of row r is r
    return Block(
        torch.tensor([draft]), torch.tensor([valid]), logits, hidden={"post": states, "layer:2": -states}, **parts
    )


def scalar(name, **changes):
    return extract(block(**changes), ["scalars"])["scalars"][0, :, SCALARS.index(name)]


def test_h_tok_is_the_row_after_reading_x_j_and_h_pred_the_row_that_predicts_it():
    found = extract(block(), ["h_tok:post", "h_pred:post", "h_tok:layer:2"])
    assert found["h_tok:post"][0, :, 0].tolist() == [1, 2, 3]
    assert found["h_pred:post"][0, :, 0].tolist() == [0, 1, 2]
    assert found["h_tok:layer:2"][0, :, 0].tolist() == [-1, -2, -3]


def test_scalars_read_their_own_row():
    log_p = LOGITS[0].log_softmax(-1)
    assert torch.equal(scalar("logprob"), log_p[[0, 1, 2], [1, 1, 3]])
    assert scalar("gap")[0] == pytest.approx(8.0, abs=1e-5)
    assert scalar("gap")[1:].tolist() == [0, 0]
    assert scalar("rank").exp().round().tolist() == [2, 1, 1]
    assert scalar("entropy").argmax() == 1


def test_next_scalars_read_the_row_behind():
    assert torch.equal(scalar("next_entropy")[:-1], scalar("entropy")[1:])
    assert torch.equal(scalar("next_top_logprob")[:-1], scalar("top_logprob")[1:])
    assert scalar("next_entropy")[2] < 0.1  # the row of the bonus token


def test_a_change_of_one_row_touches_no_other_position():
    """Neither the future nor the past of a position leaks into its own numbers."""
    other = LOGITS.clone()
    other[0, 3] = torch.tensor([0.0, 5.0, 1.0, 0.0])
    changed = (extract(block(), ["scalars"])["scalars"] != extract(block(logits=other), ["scalars"])["scalars"]).any(-1)
    assert changed.tolist() == [[False, False, True]]


def test_lookahead_says_what_follows_and_nothing_behind_the_end():
    assert LOOK_AHEAD == 2
    columns = extract(block(), ["lookahead"])["lookahead"][0]
    there, matches = columns[:, [0, 3]], columns[:, [1, 4]]
    assert there.tolist() == [[1, 1], [1, 0], [0, 0]]
    assert matches.tolist() == [[1, 1], [1, 0], [0, 0]]
    assert columns[0, 2] == pytest.approx(float(LOGITS[0, 1].log_softmax(-1)[1]))
    short = extract(block(valid=(True, True, False)), ["lookahead"])["lookahead"][0]
    assert short[1].tolist() == [0] * 6


def test_what_the_draft_model_makes_of_its_token():
    """x = 1, 2, 0 against t* = argmax of LOGITS; a probability of 0 stays finite."""
    q = torch.tensor([[[0.5, 0.25, 0.25, 0.0], [0.1, 0.1, 0.7, 0.1], [0.0, 0.0, 0.0, 1.0]]])
    whole = block(q=q)
    columns = dict(zip(DRAFT, extract(whole, ["draft"])["draft"][0].T, strict=True))
    x, top = whole.draft_ids[0], whole.top_ids[0, :-1]
    for name, ids in (("log_q", x), ("log_q_of_top", top)):
        expected = q[0].gather(-1, ids[:, None])[:, 0].log().clamp_min(-20)
        torch.testing.assert_close(columns[name], expected)
    assert columns["q_entropy"][0].item() == pytest.approx(1.5 * math.log(2), abs=1e-5)
    assert columns["q_entropy"][2].item() == pytest.approx(0, abs=1e-5)


def test_draft_probabilities_have_to_be_there():
    with pytest.raises(UserError, match="needs draft probabilities"):
        extract(block(q=None), ["draft"])
    assert needs_q(["scalars", "draft"]) and not needs_q(["scalars", "h_tok:post"])


def test_forbidden_tokens_stay_finite():
    forbidden = LOGITS.clone()
    forbidden[..., 1] = -torch.inf
    for values in extract(block(logits=forbidden), ["scalars", "lookahead"]).values():
        assert values.isfinite().all()


def test_an_empty_draft_has_no_rows():
    empty = Block(torch.zeros(2, 0, dtype=torch.long), torch.zeros(2, 0, dtype=torch.bool), torch.zeros(2, 1, 4))
    assert {name: tuple(v.shape) for name, v in extract(empty, ["scalars", "draft", "lookahead"]).items()} == {
        "scalars": (2, 0, len(SCALARS)),
        "draft": (2, 0, len(DRAFT)),
        "lookahead": (2, 0, 6),
    }


def test_layers_needed():
    assert layers_needed(["scalars", "h_tok:post", "h_pred:post", "h_tok:layer:2"]) == {"post", "layer:2"}
    assert layers_needed(["scalars"]) == frozenset()


@pytest.mark.parametrize(
    "feature, sentence",
    [("h_tock:post", "Did you mean 'h_tok'"), ("h_tok", "names no hidden layer"), ("scalars:post", "has no layers")],
)
def test_a_wrong_id_is_one_sentence(feature, sentence):
    with pytest.raises(UserError, match=sentence):
        layers_needed([feature])


def test_a_state_that_was_not_kept_is_one_sentence():
    with pytest.raises(UserError, match="no hidden state 'pre'"):
        extract(block(), ["h_tok:pre"])
