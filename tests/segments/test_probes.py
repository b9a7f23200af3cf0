"""Probes: pooling ignores padding, and a folder fits only the models it was made for."""

from types import SimpleNamespace

import pytest
import torch

from gistgate.core.files import read_json, write_json
from gistgate.core.utils import UserError
from gistgate.segments.judging import Semantic
from gistgate.segments.probes import Probe, Probes, load_probes
from tests.architectures import pair, tiny_model

TARGET, DRAFT = pair("llama")


@pytest.mark.parametrize("pooling", ["mean", "last", "attention"])
def test_padding_does_not_count(pooling):
    torch.manual_seed(0)
    probe, states = Probe(8, 4, pooling).eval(), torch.randn(3, 5, 8)
    valid = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
    alone = torch.cat(
        [probe(states[b : b + 1, :n], valid[b : b + 1, :n]) for b, n in enumerate((5, 2, 1))]
    )
    torch.testing.assert_close(probe(states, valid), alone)


def test_a_folder_gives_back_what_was_saved(tmp_path):
    probes = Probes(Probe(32, 4).eval(), Probe(32, 4, "attention").eval(), "sentence", 24)
    probes.save(tmp_path, TARGET, DRAFT)
    loaded = load_probes(tmp_path, TARGET, DRAFT)
    states, valid = torch.randn(2, 3, 32), torch.ones(2, 3, dtype=torch.bool)
    for role in ("target", "draft"):
        assert torch.equal(
            getattr(loaded, role)(states, valid), getattr(probes, role)(states, valid)
        )
    assert (loaded.style, loaded.limit) == ("sentence", 24)


def test_other_models_and_changed_folders_are_refused(tmp_path):
    Probes(Probe(32, 4), Probe(32, 4, "attention"), "sentence", 24).save(
        tmp_path, TARGET, DRAFT, seed=1
    )
    with pytest.raises(UserError, match="does not fit the target"):
        load_probes(tmp_path, tiny_model("llama", seed=5), DRAFT)
    config = read_json(tmp_path / "config.json")
    for change, said in (
        ({"limit": 25}, "its checksum differs"),
        ({"format": 99}, "has format version 99, not 1"),
    ):
        write_json(tmp_path / "config.json", {**config, **change})
        with pytest.raises(UserError, match=said):
            load_probes(tmp_path, TARGET, DRAFT)


def test_probes_follow_the_models_device():
    """The device "meta" stands for an accelerator: its tensors cannot be mixed with the main
    memory's either.
    """
    states, valid = (
        torch.zeros(2, 4, 8, device="meta"),
        torch.ones(2, 3, dtype=torch.bool, device="meta"),
    )
    block = SimpleNamespace(logits=states, hidden={"post": states}, valid=valid)
    score = Semantic(Probe(8, 4), Probe(8, 4)).score(block, SimpleNamespace(states=states[:, 1:]))
    assert score.device.type == "meta" and score.shape == (2,)
