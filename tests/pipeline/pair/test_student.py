"""A draft that is cut from a model keeps the layers that matter, learns the tokens that it may
propose, and goes on behind a finished pass.
"""

import random

import pytest
import torch

from pipeline.pair.pair import DraftSource
from pipeline.pair.student import Proposals, Student, agreement, cut, teach
from tests.tiny import tiny_pair

SOURCE = DraftSource(of="target", layers=1, epochs=10, batch_size=8, lr=0.01)
ANSWER = [*range(50, 62), 2]


def examples(num=48):
    """Prompts of five random tokens, and one answer to all of them."""
    rng = random.Random(0)
    prompts = [[1, *rng.choices(range(3, 259), k=5)] for _ in range(num)]
    return [([*prompt, *ANSWER], len(prompt)) for prompt in prompts]


def student(ids=None, source=SOURCE):
    model = tiny_pair()[0]
    cut(model, 1, examples())
    return Student(model, Proposals(model, ids), examples(), source, seed=0)


def test_layers_that_change_no_state_go():
    model = tiny_pair()[0]
    first = model.model.layers[0]
    for product in (first.self_attn.o_proj, first.mlp.down_proj):
        torch.nn.init.zeros_(product.weight)
    assert cut(model, 1, examples()) == [1]
    assert len(model.model.layers) == model.config.num_hidden_layers == 1


@pytest.mark.parametrize("ids", [None, [1, 2, *range(50, 62)]])
def test_it_learns_the_answers_in_its_layers_alone(tmp_path, ids):
    pupil = student(ids)
    embeddings = pupil.model.get_input_embeddings().weight.clone()
    before = agreement(pupil.model, pupil.head, examples())
    teach(pupil, tmp_path)
    assert agreement(pupil.model, pupil.head, examples()) > 0.9 > 0.3 > before
    assert torch.equal(pupil.model.get_input_embeddings().weight, embeddings)
    assert len(pupil.losses) == 10 * 6


def test_tokens_that_it_may_not_propose_bear_no_loss():
    pupil = student([2, *range(50, 56)])
    states_ND = torch.randn(3, 32)
    loss = pupil.head.loss(states_ND, torch.tensor([50, 200, 2]))
    assert torch.equal(loss, pupil.head.loss(states_ND[[0, 2]], torch.tensor([50, 2])))
    assert set(pupil.head.choices(states_ND).tolist()) <= {2, *range(50, 56)}


def test_an_interrupted_training_goes_on_behind_its_last_pass(tmp_path, monkeypatch):
    whole = student()
    teach(whole, tmp_path / "whole")
    step = Student.training_step

    def interrupted(self, batch, index):
        if len(self.losses) == 3 * 6 + 2:
            raise RuntimeError("interrupted")
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(Student, "training_step", interrupted)
        with pytest.raises(RuntimeError, match="interrupted"):
            teach(student(), tmp_path / "parts")
    rest = student()
    steps = []
    monkeypatch.setattr(Student, "training_step", lambda *a: steps.append(1) or step(*a))
    teach(rest, tmp_path / "parts")
    assert len(steps) == 7 * 6
    assert rest.losses == whole.losses
    weights = zip(rest.model.parameters(), whole.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in weights)
