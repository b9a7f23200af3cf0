"""States of several layers are read for every labelled mismatch, once."""

from __future__ import annotations

import torch

from pipeline.params import parse_params
from pipeline.studies.labels import layers
from pipeline.studies.labels.layers import states_of

PLACE = {"problem": torch.tensor([0, 1]), "policy": torch.tensor([0, 0]), "position": torch.tensor([3, 4])}


def test_shards_of_both_passes_are_read_once_and_empty_ones_left_out(tmp_path, monkeypatch):
    asked, names = [], states_of(2) + states_of(5)

    class Kept:
        def __init__(self, goal):
            self.goal = goal

        def missing(self, count):
            return list(range(count)) if self.goal == "gated" else []

        def path(self, index):
            return f"{self.goal}-{index}"

    def shards_of(params, goal):
        assert params.train.all_features == names
        return Kept(goal)

    def load(path):
        rows = slice(0, 0 if path == "gated-1" else 2)
        return {**{name: column[rows] for name, column in PLACE.items()}, names[0]: torch.full((2, 3), 1.0)[rows]}

    monkeypatch.setattr(layers, "shards_of", shards_of)
    monkeypatch.setattr(layers, "num_shards", lambda folder: 2)
    monkeypatch.setattr(
        layers, "side_by_side", lambda _work, settings, missing, *_: asked.append((settings[1], missing))
    )
    monkeypatch.setattr(layers, "load_tensors", load)
    table = layers.states(parse_params({}), names)
    assert asked == [("strict", []), ("gated", [0, 1])]
    assert table["problem"].tolist() == [0, 1] * 3 and table[names[0]].shape == (6, 3)
