"""The studies on made-up labels whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gistgate.errors import UserError
from pipeline.heads.rows import Rows
from pipeline.params import Params
from pipeline.studies.labels import features, learning_curve
from pipeline.studies.labels.calibration_error import measured
from pipeline.studies.labels.label_noise import repeated, repetition
from pipeline.studies.labels.learning_curve import curve, next_labels

ROOT = Path(__file__).parents[4]


def test_repetition_counts_the_sampled_rollouts_alone():
    table = {
        "greedy_kept": torch.tensor([1, 0, 0, 0]),
        "kept": torch.tensor([1.0, 0.0, 1 / 3, 2 / 3]),  # of two sampled rollouts 2, 1 and 0 lost the meaning as well
        "rollouts": torch.tensor([1, 3, 3, 3]),
        "problem": torch.tensor([0, 1, 2, 3]),
    }
    found = repetition(table)
    assert (found["labels"], found["lost"], found["repeated"]) == (4, 3, 3)
    assert found["agreement"] == pytest.approx(0.5, abs=1e-6)
    assert found["all_repeat"] == pytest.approx(1 / 3)


def test_where_nothing_was_sampled_again_a_sentence_says_so():
    table = {"greedy_kept": torch.ones(2), "kept": torch.ones(2), "rollouts": torch.ones(2), "problem": torch.arange(2)}
    assert "none of them was sampled again" in repeated(repetition(table))


def world(n: int, seed: int) -> Rows:
    """Rows whose first feature decides."""
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    kept = torch.sigmoid(4 * x[:, 0] + 2)
    return Rows(x, torch.zeros(n, 8), torch.arange(n), torch.full((n,), 2), kept, torch.zeros(n))


def test_more_labels_make_a_better_head():
    found = curve(world(600, 0), world(400, 1), "random", [12, 600], seed=0)
    assert found[0] < found[1]


def test_the_pilot_ranks_once_and_the_active_head_again(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def chosen_by(pool, chosen, order, way, count, head):
        asked.append((way, head))
        return next_labels(pool, chosen, order, way, count, head)

    monkeypatch.setattr(learning_curve, "next_labels", chosen_by)
    for way in ("pilot", "active"):
        curve(world(200, 0), world(100, 1), way, [20, 60, 100], seed=0)
    (_, first), (_, second), (_, third), (_, fourth) = asked
    assert first is second and third is not fourth


def test_sizes_are_numbers_and_every_split_measures_on_other_problems():
    assert learning_curve.numbers("600,300") == [300, 600]
    with pytest.raises(UserError, match="--sizes 0,5 is no list"):
        learning_curve.numbers("0,5")
    rows, params = world(60, 0), Params()
    tests = [set(learning_curve.divided(rows, params, number)[1].problem.tolist()) for number in (0, 0, 1)]
    assert tests[0] == tests[1] != tests[2] and all(tests)


def test_the_learning_curve_is_drawn_with_every_way(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(learning_curve.pyplot, "close", drawn.append)
    report = {"sizes": [300, 600], "ap": {way: [[0.9, 0.95], [0.92, 0.96]] for way in learning_curve.WAYS}}
    learning_curve.draw(report, tmp_path / "curve.png")
    (axes,) = drawn[0].axes
    assert {text.get_text() for text in axes.get_legend().get_texts()} == set(learning_curve.WAYS)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["300", "600"]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_active_choice_takes_what_the_head_is_least_sure_of():
    pool, head = world(50, 0), torch.nn.Linear(4, 1, bias=False)
    head.weight.data = torch.tensor([[1.0, 0, 0, 0]])
    head.forward = lambda x: x[:, 0]
    chosen = next_labels(pool, torch.tensor([0, 1]), torch.arange(50), "active", 5, head)
    others = [n for n in range(2, 50) if n not in chosen.tolist()]
    assert pool.x[chosen, 0].abs().max() <= pool.x[others, 0].abs().min()


def test_calibration_error_of_a_fair_gate_is_small_and_of_a_boastful_one_large():
    rng = np.random.default_rng(0)
    p = rng.random(3000)
    table = {
        "kept": torch.tensor((rng.random(3000) < p).astype(float)),
        "probability": torch.tensor(p),
        "problem": torch.arange(3000) // 10,
    }
    fair = measured(table)
    assert fair["ece"] < 0.04
    assert fair["ece_interval"][0] <= fair["ece_interval"][1]
    assert fair["unsure"]["n"] == int((p < 0.9).sum())
    assert fair["unsure"]["observed"] == pytest.approx(0.45, abs=0.03) == fair["unsure"]["predicted"]
    boastful = measured({**table, "probability": torch.ones(3000)})
    assert boastful["ece"] == pytest.approx(0.5, abs=0.05)
    assert (boastful["unsure"]["n"], boastful["unsure"]["ece"]) == (0, None)
    json.dumps(fair)


def test_feature_sweep_takes_up_what_was_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(features, "read_params", Params)
    monkeypatch.setattr(features, "pair_files", lambda _pair: [])
    monkeypatch.setattr(features, "fingerprint", lambda *parts: "same")
    monkeypatch.setattr(features, "SETS", (("lookahead",), ("draft",), ("draft", "lookahead")))
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    table = {
        "draft": x[:, :1].contiguous(),
        "lookahead": x[:, 1:].contiguous(),
        "scalars": torch.zeros(300, 8),
        "problem": torch.arange(300) // 3,
        "policy": torch.full((300,), 2),
        "kept": (x[:, 0] > -1).float(),
        "kl": torch.zeros(300),
    }
    reads = []
    monkeypatch.setattr(features, "read", lambda _params, names, limit: reads.append((names, limit)) or table)
    features.main(300)
    features.main(300)
    assert reads == [(("lookahead", "draft"), 300)]
    report = json.loads((tmp_path / "reports/studies/features-300.json").read_text())["sets"]
    assert [row["width"] for row in report] == [1, 1, 2]
    assert report[1]["ap"] > 0.9 > report[0]["ap"]
    assert report[1]["loss"] < report[0]["loss"]


@pytest.mark.parametrize("name", ["learning-curve", "learning-curve-real"])
def test_the_page_shows_the_published_curves(name: str):
    report = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    text = (ROOT / "docs/labels.md").read_text()
    assert f"| labels | {' | '.join(map(str, report['sizes']))} |" in text
    for way, runs in report["ap"].items():
        assert f"| `{way}` | {' | '.join(f'{value:.3f}' for value in np.mean(runs, axis=0))} |" in text
