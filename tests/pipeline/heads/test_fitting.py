"""Heads and probability maps: what the libraries fit, chosen on unseen problems."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from gistgate.core.utils import UserError
from pipeline.heads.fit import effects, fit_effects, fit_logistic, fit_net, fit_platt
from pipeline.heads.job import fit_head
from pipeline.labels.schema import TRIAL, Rows
from tests.certificates.proofs import gate_with
from tests.pipeline.parameters import block

SETTINGS = block("train", lr=0.01, hidden=8, epochs=6, patience=6)


def made(num=600, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 5, generator=generator) * 2 + 3
    kept = (x[:, 0] - 3 + torch.randn(num, generator=generator) > 0).float()
    kept[::4] = 0.7
    return Rows(
        x,
        torch.zeros(num, 8),
        torch.arange(num) % 30,
        torch.zeros(num),
        torch.arange(num) // 30,
        kept,
        torch.zeros(num),
        torch.full((num, len(TRIAL)), torch.nan),
    )


def tried(num=8000, seed=0):
    """Labels of which the truth is known: keeping a token loses 0.2 with P = sigmoid(x_0 - 2), and
    saves 3 + x_1.
    """
    generator = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(num, 5, generator=generator), torch.randn(num, generator=generator)
    harmed = (torch.rand(num, generator=generator) < (x[:, 0] - 2).sigmoid()).float()
    trial = torch.stack([0.2 * harmed, 3 + x[:, 1] + noise], dim=-1)
    return replace(made(num), x=x, problem=torch.arange(num) % 200, kept=1 - harmed, trial=trial)


def trained(settings=SETTINGS):
    """Weights and report of a net."""
    net, report = fit_net("mlp", made(), made(seed=1), settings, 1)
    return torch.cat([weight.flatten() for weight in net.state_dict().values()]), report


def test_the_logistic_head_equals_scikit_learn_on_doubled_rows():
    """What is folded says what StandardScaler and LogisticRegression say of the same soft
    labels.
    """
    rows = made()
    head, _ = fit_logistic(rows, [0.1], folds=5)
    x, kept = rows.x.double().numpy(), rows.kept.double().numpy()
    standard, weight = StandardScaler().fit_transform(x), np.concatenate([kept, 1 - kept])
    model = LogisticRegression(C=0.1, max_iter=2000)
    model.fit(np.concatenate([standard] * 2), np.repeat([1, 0], len(x)), sample_weight=weight)
    expected = model.predict_proba(standard)[:, 1]
    assert np.allclose(head(rows.x).sigmoid().detach().numpy(), expected, atol=1e-3)


def test_c_is_chosen_on_unseen_problems():
    """With as many features as rows and no signal, the strongest regularisation wins."""
    generator = torch.Generator().manual_seed(0)
    x, draws = torch.randn(100, 80, generator=generator), torch.rand(100, generator=generator)
    _, losses = fit_logistic(
        replace(made(100), x=x, kept=(draws < 0.5).float()), [1e-4, 1e-2, 1.0], folds=5
    )
    assert losses["0.0001"] < losses["0.01"] < losses["1"]


@pytest.mark.parametrize("price", [0.005, 0.02])
def test_effects_weigh_the_loss_of_score_against_saved_tokens(price):
    rows, unseen = tried(), tried(seed=1)
    head, report = fit_effects(rows, [5], price, 5)
    loss = 0.2 * (unseen.x[:, 0] - 2).sigmoid()
    truth = price * (3 + unseen.x[:, 1]) - loss
    logits = head(unseen.x).detach()
    assert np.corrcoef(logits, truth)[0, 1] > 0.9 and report["unseen_auc_of_harm"] > 0.7
    weight, linear = head.first.weight[0].detach(), np.polyfit(unseen.x[:, 0], loss, 1)[0]
    assert (
        weight[1] / -weight[0] == pytest.approx(price / linear, rel=0.3)
        and weight[2:].abs().max() < 0.1
    )
    assert logits.mean() * report["unit"] == pytest.approx(float(truth.mean()), abs=0.002)
    generator = torch.Generator().manual_seed(3)  # a wide feature is read by its first components
    wide = rows.x[:, 1:2] * torch.randn(1, 80, generator=generator) + 0.1 * torch.randn(
        8000, 80, generator=generator
    )
    many = replace(rows, x=torch.cat([rows.x * torch.tensor([1, 0, 1, 1, 1]), wide], 1))
    assert (
        np.corrcoef(
            fit_effects(many, [5, 80], price, 5)[0](many.x).detach(), head(rows.x).detach()
        )[0, 1]
        > 0.95
    )
    found = effects(unseen.where(unseen.x[:, 1] > 0))
    assert (
        found["saved"] == pytest.approx(3.8, abs=3 * found["saved_error"])
        and found["saved_error"] < 0.05
    )
    assert found["loss"] == pytest.approx(0.031, abs=3 * found["loss_error"])


def test_a_gate_of_effects_is_measured_by_what_its_tokens_do_to_unseen_answers():
    config = replace(gate_with().config, features={"scalars": 5}, labels={"price": 0.01})
    gate, metrics, _ = fit_head("effects", config, tried(), SETTINGS, 1)
    assert metrics["n"] == 1600 and 0.4 < metrics["share_kept"] < 0.7
    assert (
        metrics["kept_saved"] > metrics["refused_saved"] + 0.3
        and metrics["kept_loss"] < metrics["refused_loss"]
    )
    probability = gate.map(gate.head(tried().x))
    assert float((probability > 0.5).float().mean()) == pytest.approx(
        metrics["share_kept"], abs=0.05
    )
    with pytest.raises(UserError, match="lie in 3 training problems only"):
        fit_effects(replace(tried(), kept=(tried().problem > 2).float()), [5], 0.01, 5)


def test_labels_that_are_all_alike_are_one_sentence():
    with pytest.raises(UserError, match="labels are alike"):
        fit_logistic(replace(made(), kept=torch.ones(600)), [0.1], folds=5)


def test_a_net_keeps_its_best_weights_and_equal_seeds_give_equal_ones():
    settings = replace(SETTINGS, epochs=40, patience=1, lr=0.1)
    (one, report), (other, _) = trained(settings), trained(settings)
    assert report["epochs"] < 40 and report["validation_loss"] == min(
        report["curves"]["validation_loss"]
    )
    assert torch.equal(one, other) and not torch.equal(one, trained(replace(settings, epochs=1))[0])


def test_the_map_undoes_a_distortion():
    """Logits that are twice too large are brought back to the probabilities behind them."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20000, generator=generator)
    kept = (torch.rand(20000, generator=generator) < (logits - 1).sigmoid()).float()
    platt = fit_platt(2 * logits, kept)
    assert float(platt.a) == pytest.approx(0.5, abs=0.03)
    assert float(platt.b) == pytest.approx(-1, abs=0.06)


@pytest.mark.parametrize("first, last", [(1, 1), (0, 0), (0, 1), (1, 0)])
def test_no_map_is_ever_certain_or_turned_round(first, last):
    kept = torch.tensor([first, last]).repeat_interleave(10)
    probability = fit_platt(torch.arange(20.0), kept)(torch.arange(-5.0, 25.0))
    assert ((probability > 0) & (probability < 1)).all() and (probability.diff() >= 0).all()
