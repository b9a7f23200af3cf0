"""Probes learn, a split by sample mixes problems and a split by problem does not."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gistgate.core.utils import UserError
from pipeline.heads.data import split_by_problem
from pipeline.params import read_params, read_segment_params
from pipeline.segments.train import (
    Examples,
    by_sample,
    check_samples,
    compare,
    dataset,
    examples_of,
    fit_probe,
    measure,
    read_states,
)
from tests.architectures import pair

ROOT = Path(__file__).parents[3]
OWN = replace(read_segment_params(ROOT / "pipeline/studies/segments/params.yaml"), hidden=8, epochs=25, lr=0.01)


def examples(num, seed):
    """Segments whose share follows from the mean of their first component."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(num, 4, 6, generator=generator)
    states[:, :, 0] = states[:, :1, 0]
    valid = torch.arange(4) < torch.randint(1, 5, (num, 1), generator=generator)
    drawn = {"target": torch.ones(num, dtype=torch.long), "draft": torch.ones(num, dtype=torch.long)}
    return Examples(torch.arange(num) // 4, states, valid, (states[:, 0, 0] > 0).float(), drawn)


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_a_probe_learns_what_the_states_say(loss):
    probe = fit_probe(examples(300, 0), examples(60, 1), ("draft",), "mean", loss, OWN, 1)
    report = measure(probe, examples(200, 2), "draft", 0.5)
    assert report["brier"] < 0.08 < report["brier_constant"] == 0.25
    assert report["correlation"] > 0.85 and sum(one["weight"] for one in report["reliability"]) == pytest.approx(1)


def test_only_the_named_writers_count():
    one = examples(20, 0)
    one.drawn["draft"][:15], one.drawn["draft"][15] = 0, 3
    assert dataset(one, ("draft",)).tensors[3].tolist() == [3.0, 1.0, 1.0, 1.0, 1.0]
    assert dataset(one, ("target", "draft")).tensors[3].tolist() == [1.0] * 15 + [4.0] + [2.0] * 4


def test_a_split_by_sample_leaks_and_keeps_the_sizes():
    problem, params = examples(200, 0).problem, read_params(ROOT / "params.yaml")
    parts = split_by_problem(problem, params.train, 1)
    leaking = by_sample(200, parts, 1)
    shared = [set(problem[p.train].tolist()) & set(problem[p.test].tolist()) for p in (parts, leaking)]
    assert not shared[0] and shared[1]
    assert leaking.test.sum() == parts.test.sum()
    masks = torch.stack([leaking.train, leaking.validation, leaking.calibration, leaking.test])
    assert bool((masks.sum(0) == 1).all())


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
        "roles": ["target", "target", "target", "draft"],
        "groups": {"exact": [0, 0, 1, 0]},
    }
    found = examples_of([row], target, "target", "exact", 4)
    assert found.share.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.drawn["target"].tolist() == [2, 1] and found.drawn["draft"].tolist() == [1, 0]


def test_samples_that_cannot_be_split_are_refused():
    rows = [{"problem": number, "roles": ["target", "draft"]} for number in range(4)]
    check_samples(rows)
    for few in ([{**row, "roles": []} for row in rows], [*rows[:3], {"problem": 3, "roles": ["draft"]}]):
        with pytest.raises(UserError, match="the target finished segments in [03] problems"):
            check_samples(few)
    with pytest.raises(UserError, match="the draft finished segments in 3 problems"):
        check_samples([*rows[:3], {"problem": 3, "roles": ["target"]}])


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_a_part_without_segments_of_a_writer_is_refused_before_anything_is_trained(name):
    params, one = read_params(ROOT / "params.yaml"), examples(200, 0)
    one.drawn["draft"][getattr(split_by_problem(one.problem, params.train, params.seed), name)] = 0
    with pytest.raises(UserError, match=f"The draft finished no segment in the part `{name}`"):
        compare(one, "draft", params, OWN)
