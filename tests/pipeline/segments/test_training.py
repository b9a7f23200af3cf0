"""Probes learn what the states say, on problems apart; segments count as often as they were
drawn.
"""

import pytest
import torch

from gistgate.core.utils import UserError
from pipeline.labels.schema import split_by_problem
from pipeline.segments.train import Examples, examples_of, fit_and_measure, read_states
from tests.architectures import pair
from tests.pipeline.parameters import parameters


def examples(num, seed):
    """Segments whose share follows from the mean of their first component."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(num, 4, 6, generator=generator)
    states[:, :, 0] = states[:, :1, 0]
    valid = torch.arange(4) < torch.randint(1, 5, (num, 1), generator=generator)
    drawn = {
        "target": torch.ones(num, dtype=torch.long),
        "draft": torch.ones(num, dtype=torch.long),
    }
    return Examples(torch.arange(num) // 4, states, valid, (states[:, 0, 0] > 0).float(), drawn)


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_a_probe_learns_what_the_states_say(loss):
    params = parameters(segments={"hidden": 8, "epochs": 25, "lr": 0.01, "loss": loss})
    probe, report = fit_and_measure(examples(1000, 0), "draft", params)
    again, _ = fit_and_measure(examples(1000, 0), "draft", params)
    assert all(
        torch.equal(one, other)
        for one, other in zip(probe.parameters(), again.parameters(), strict=True)
    )
    assert list(report) == ["draft"] and report["draft"]["segments"] == 200
    found = report["draft"]
    assert found["brier"] < 0.08 and found["brier_constant"] == pytest.approx(0.25, abs=0.01)
    assert found["correlation"] > 0.85 and sum(
        one["weight"] for one in found["reliability"]
    ) == pytest.approx(1)


def test_states_are_those_that_predict_the_segment():
    target, _ = pair("llama")
    prefixes, segments = [[5, 6, 7, 8], [9, 10]], [[11, 12], [13, 14, 15]]
    states, valid = read_states(target, prefixes, segments, limit=5)
    assert valid.sum(-1).tolist() == [2, 3] and not states[0, 2:].any()
    with torch.no_grad():
        logits = target.get_output_embeddings()(states[1, 2])
        whole = target(torch.tensor([[9, 10, 13, 14, 15]])).logits[0, 3]
    torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)


def test_equal_samples_are_one_example_with_a_count():
    target, _ = pair("llama")
    row = {
        "problem": 4,
        "prompt": [5, 6],
        "answer": [7],
        "segments": [[8, 9], [8, 9], [10], [8, 9]],
    }
    row |= {"roles": ["target", "target", "target", "draft"], "groups": {"exact": [0, 0, 1, 0]}}
    found = examples_of([row], target, "target", "exact", 4)
    assert found.share.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.drawn["target"].tolist() == [2, 1] and found.drawn["draft"].tolist() == [1, 0]


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_a_part_without_segments_of_a_writer_is_refused_before_anything_is_trained(name):
    params, one = parameters(), examples(200, 0)
    one.drawn["draft"][getattr(split_by_problem(one.problem, params.train, params.seed), name)] = 0
    with pytest.raises(UserError, match=f"The draft finished no segment in the part `{name}`"):
        fit_and_measure(one, "draft", params)
