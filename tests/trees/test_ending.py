"""Trees that end early: paths stop where they cannot pay, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gistgate.core.block import Draft, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import total
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.rules import make_rule
from gistgate.trees.drafter import TreeDrafter
from tests.architectures import greedy, pair, prompts

BATCH = prompts(5, 17, 2, 10)
NUM = 20
SURE = Stopping(0.2, ((0.0, 0.1), (0.5, 0.7), (1.0, 1.0)))


def proposed(stopping: Stopping | None, sampling: Sampling | None = None, **sizes: int) -> Draft:
    drafter = TreeDrafter(pair("llama")[0], stopping=stopping, **sizes)
    drafter.start(len(BATCH))
    uniforms = torch.rand(4, 2 * drafter.nodes + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    request: dict[str, Any] = {"vocabulary": 259, "uniforms": uniforms, "want_q": True}
    with torch.inference_mode():
        return drafter.propose(BATCH, 6, sampling=sampling or Sampling(), **request)


def survival(stopping: Stopping, draft: Draft, row: int) -> list[float]:
    """Estimated survival of every proposed node of a row."""
    assert draft.parents is not None and draft.q is not None
    found: list[float] = []
    for node, parent in enumerate(draft.parents[row][draft.valid[row]].tolist()):
        before = 1.0 if parent < 0 else found[parent]
        found.append(stopping.after(before, float(draft.q[row, node, draft.ids[row, node]])))
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize("stopping", [SURE, Stopping(0.05, joint=False)])
def test_a_node_is_proposed_where_the_one_before_it_survives(stopping: Stopping, sampling: Sampling):
    draft = proposed(stopping, sampling, nodes=40, width=3, branch=3, chains=3)
    assert draft.parents is not None
    for row in range(len(BATCH)):
        num = int(draft.valid[row].sum())
        assert draft.valid[row, :num].all(), "nodes that are left out stand behind the others"
        estimates, parents = survival(stopping, draft, row), draft.parents[row, :num].tolist()
        assert all(parent < 0 or estimates[parent] >= stopping.floor for parent in parents)
        followed = {parent for parent in parents if parent >= 0}
        assert any(node not in followed for node in range(num))
    assert int(draft.valid.sum()) < int(proposed(None, sampling, nodes=40, width=3, branch=3, chains=3).valid.sum())


def test_a_floor_of_zero_changes_nothing():
    whole, same = proposed(None), proposed(Stopping(0.0))
    assert torch.equal(whole.ids, same.ids) and torch.equal(whole.parents, same.parents) and same.valid.all()


def test_sampled_trees_are_the_beginnings_of_whole_ones():
    """What is drawn does not depend on where a path ends, so that lossless walks stay lossless."""
    stopping = Stopping(0.1)
    whole, ended = (proposed(one, Sampling(1.0), nodes=12, chains=2) for one in (None, stopping))
    assert ended.forwards <= whole.forwards
    for row in range(len(BATCH)):
        kept = ended.ids[row][ended.valid[row]].tolist()
        estimates, parents = survival(stopping, whole, row), whole.parents[row].tolist()  # type: ignore[index]
        alive = [parent < 0 or estimates[parent] >= stopping.floor for parent in parents]
        assert kept == [token for token, lives in zip(whole.ids[row].tolist(), alive, strict=True) if lives]


@pytest.mark.parametrize("batch", [BATCH, BATCH[:1]])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_strict_answers_are_the_greedy_ones(kind: str, batch: list[list[int]]):
    counted = []
    for stopping in (None, Stopping(0.3)):
        drafter = TreeDrafter(pair(kind)[1], nodes=12, stopping=stopping)
        answers = Decoder(pair(kind)[0], drafter, make_rule("exact"), 6).generate(batch, max_new_tokens=NUM)
        assert [one.ids for one in answers] == [greedy(kind, tuple(prompt), NUM) for prompt in batch]
        counted.append(total([one.statistics for one in answers]).draft_forwards)
    assert counted[1] < counted[0]


def test_one_branch_ends_where_the_chain_ends():
    stopping, (target, draft) = Stopping(0.3), pair("llama")
    tree = TreeDrafter(draft, nodes=6, width=1, branch=1, chains=1, stopping=stopping)
    found = [
        Decoder(target, drafter, make_rule("exact"), 6).generate(BATCH, max_new_tokens=NUM)
        for drafter in (tree, ModelDrafter(draft, stopping))
    ]
    assert [a.statistics.histogram for a in found[0]] == [b.statistics.histogram for b in found[1]]
