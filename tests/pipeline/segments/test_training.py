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


def examples(num):
    """Segments whose share follows from the mean of their first component."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(num, 4, 6, generator=generator)
    states[:, :, 0] = states[:, :1, 0]
    valid = torch.arange(4) < torch.randint(1, 5, (num, 1), generator=generator)
    drawn = {role: torch.ones(num, dtype=torch.long) for role in ("target", "draft")}
    return Examples(torch.arange(num) // 4, states, valid, (states[:, 0, 0] > 0).float(), drawn)


def test_a_probe_learns_what_the_states_say():
    params = parameters(segments={"hidden": 8, "epochs": 25, "lr": 0.01})
    (probe, report), (again, _) = (
        fit_and_measure(examples(1000), "draft", params) for _ in range(2)
    )
    assert all(map(torch.equal, probe.parameters(), again.parameters()))
    assert list(report) == ["draft"]
    measures = report["draft"]
    assert measures["segments"] == 200
    assert measures["brier"] < 0.08
    assert measures["brier_constant"] == pytest.approx(0.25, abs=0.01)
    assert measures["correlation"] > 0.85
    assert sum(entry["weight"] for entry in measures["reliability"]) == pytest.approx(1)


def test_states_are_those_that_predict_the_segment():
    target, _ = pair("llama")
    prefixes = [[5, 6, 7, 8], [9, 10]]
    segments = [[11, 12], [13, 14, 15]]
    states, valid = read_states(target, prefixes, segments, limit=5)
    assert valid.sum(-1).tolist() == [2, 3]
    assert not states[0, 2:].any()
    with torch.no_grad():
        logits = target.get_output_embeddings()(states[1, 2])
        whole = target(torch.tensor([prefixes[1] + segments[1]])).logits[0, 3]
    torch.testing.assert_close(logits, whole, atol=1e-4, rtol=1e-4)


def test_equal_samples_are_one_example_with_a_count():
    target, _ = pair("llama")
    row = {
        "problem": 4,
        "prompt": [5, 6],
        "answer": [7],
        "segments": [[8, 9], [8, 9], [10], [8, 9]],
        "roles": ["target", "target", "target", "draft"],
        "groups": {"exact": [0, 0, 1, 0]},
    }
    distinct = examples_of([row], target, "target", "exact", 4)
    assert distinct.share.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert distinct.drawn["target"].tolist() == [2, 1]
    assert distinct.drawn["draft"].tolist() == [1, 0]


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_a_part_without_segments_of_a_writer_is_refused_before_anything_is_trained(name):
    params = parameters()
    segments = examples(200)
    parts = split_by_problem(segments.problem, params.train, params.seed)
    segments.drawn["draft"][getattr(parts, name)] = 0
    with pytest.raises(UserError, match=f"The draft finished no segment in the part `{name}`"):
        fit_and_measure(segments, "draft", params)
