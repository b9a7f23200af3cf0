"""Heads and their probability maps."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gistgate.core.gate import HEADS, Isotonic, Linear, Mlp, Platt, build_head, fold_standardisation
from gistgate.core.utils import UserError

numbers = st.floats(-30, 30, allow_nan=False, width=32)


@pytest.mark.parametrize("kind", HEADS)
def test_folding_equals_standardising(kind):
    """A head that reads raw features after folding says what it said of standardised ones."""
    torch.manual_seed(0)
    head, x = HEADS[kind](5).double().eval(), torch.randn(40, 5).double() * 3 + 7
    mean, scale = x.mean(0), x.std(0)
    expected = head((x - mean) / scale)
    fold_standardisation(head.first, mean, scale)
    assert torch.allclose(head(x), expected, atol=1e-9)
    assert not torch.allclose(head((x - mean) / scale), expected)


def test_a_folded_scikit_learn_head_equals_predict_proba():
    generator = np.random.default_rng(0)
    x = generator.normal(5, [1, 10, 100], size=(300, 3))
    label = (x[:, 0] + x[:, 1] / 10 + generator.normal(size=300) > 5.5).astype(int)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, label)
    head = Linear(3).double()
    with torch.no_grad():
        head.first.weight.copy_(torch.from_numpy(model[1].coef_))
        head.first.bias.copy_(torch.from_numpy(model[1].intercept_))
    fold_standardisation(head.first, torch.from_numpy(model[0].mean_), torch.from_numpy(model[0].scale_))
    found = head.float()(torch.from_numpy(x).float()).sigmoid().detach().numpy()
    assert np.allclose(found, model.predict_proba(x)[:, 1], atol=1e-5)


@pytest.mark.parametrize("head", [Linear(4), Mlp(4, hidden_size=8)])
def test_any_leading_shape(head):
    assert head(torch.randn(2, 3, 4)).shape == (2, 3)
    assert head(torch.randn(2, 0, 4)).shape == (2, 0)


def test_wrong_sizes_are_one_sentence():
    with pytest.raises(UserError, match="mlp head cannot have"):
        build_head(Mlp, {"input_size": 4, "width": 3})


@settings(max_examples=50, deadline=None)
@given(st.lists(numbers, min_size=2, max_size=50), st.floats(0, 10), numbers)
def test_platt_is_monotone_and_a_probability(logits, a, b):
    check_map(Platt(a, b), torch.tensor(sorted(logits)))


@settings(max_examples=50, deadline=None)
@given(st.lists(numbers, min_size=1, max_size=9, unique=True), st.lists(numbers, min_size=2, max_size=50), st.data())
def test_isotonic_is_monotone_and_a_probability(knots, logits, data):
    values = data.draw(st.lists(st.floats(0, 1, width=32), min_size=len(knots), max_size=len(knots)))
    check_map(Isotonic(sorted(knots), sorted(values)), torch.tensor(sorted(logits)))


def check_map(fitted, logits):
    probability = fitted(logits)
    assert ((probability >= 0) & (probability <= 1)).all()
    assert (probability.diff() >= -1e-6).all()


def test_isotonic_equals_scikit_learn():
    generator = np.random.default_rng(0)
    x = generator.normal(size=200)
    model = IsotonicRegression(out_of_bounds="clip").fit(x, generator.random(200) < 1 / (1 + np.exp(-x)))
    fitted = Isotonic(model.X_thresholds_.tolist(), model.y_thresholds_.tolist())
    grid = np.linspace(-5, 5, 1001)
    assert np.allclose(fitted(torch.from_numpy(grid).float()).numpy(), model.predict(grid), atol=1e-4)


def test_isotonic_passes_through_its_knots():
    fitted = Isotonic([-1.0, 0.0, 2.0], [0.1, 0.5, 0.9])
    assert fitted(torch.tensor([-9.0, -1.0, -0.5, 0.0, 1.0, 2.0, 9.0])).tolist() == pytest.approx(
        [0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 0.9]
    )
