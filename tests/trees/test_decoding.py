"""Trees through the whole loop: the target's text with closed rules, the best path with loose ones;
early ends.
"""

from typing import Any

import pytest
import torch

from gistgate.core.block import Block, Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.rule import settle
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import BATCH, CONTEXT, SIZES, greedy, pair, prompts
from tests.core.watching import HalfGate, Markers, Watch
from tests.rules.extremes import CLOSED
from tests.trees.growing import Hiding, tree_drafter

NUM = 20


def drafter(name: str, kind: str, **changes: Any) -> Any:
    if name == "hiding":
        return Hiding(kind, BATCH, NUM, **changes)
    return tree_drafter(pair(kind)[1], nodes=12)


@pytest.mark.parametrize("name", ["tree", "hiding"])
@pytest.mark.parametrize("kind", SIZES)
def test_they_write_the_greedy_texts(kind: str, name: str):
    for block, batch in ((1, BATCH), (3, BATCH), (7, BATCH), (6, BATCH[1:2])):
        decoder = Decoder(pair(kind)[0], drafter(name, kind), make_rule("exact"), block)
        answers = decoder.generate(batch, max_new_tokens=NUM)
        assert [answer.ids for answer in answers] == [
            greedy(kind, tuple(one), NUM) for one in batch
        ], block
        if name == "hiding" and block > 1:
            assert sum(answer.statistics.mean_accepted_length for answer in answers) > 1.5 * len(
                batch
            )


@pytest.mark.parametrize(
    "rule_id", ["fly", "sense", "autojudge", "kl-judge", "csd", "ensemble", "trt-relaxed", "random"]
)
def test_every_closed_rule_writes_them(rule_id: str):
    rule, parts = (
        make_rule(rule_id, **CLOSED[rule_id]),
        {"gate": HalfGate(), "tokenizer": Markers()},
    )
    decoder = Decoder(pair("llama")[0], drafter("tree", "llama"), rule, 6, **parts)
    texts = [answer.ids for answer in decoder.generate(BATCH, max_new_tokens=NUM)]
    assert texts == [greedy("llama", tuple(prompt), NUM) for prompt in BATCH]


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_loose_rule_judges_the_best_path_as_a_chain(kind: str):
    target, rule, watcher = pair(kind)[0], make_rule("prob", r=1e-3), Watch(["post"])
    drafter = tree_drafter(pair(kind)[1], nodes=24, branch=4)
    decoder = Decoder(target, drafter, rule, 5, observer=watcher)
    answers = decoder.generate(BATCH, max_new_tokens=NUM)
    assert sum(answer.statistics.loose for answer in answers) > 5
    judged = [
        (place, text, *seen) for *seen, texts in watcher.seen for place, text in enumerate(texts)
    ]
    for place, text, block, acceptance in judged:
        path = block.draft_ids[place][block.valid[place]]
        z = target(torch.tensor([[*text, *path.tolist()]])).logits[:, len(text) - 1 :]
        assert torch.allclose(block.logits[place, : len(path) + 1], z[0], atol=2e-4)
        chain = settle(rule, Block(path[None], path[None] >= 0, z))
        length = int(chain.length)
        assert length == acceptance.length[place] and chain.own_ids[0] == acceptance.own_ids[place]
        assert chain.reasons[0, :length].tolist() == acceptance.reasons[place, :length].tolist()
        assert block.hidden["post"].shape[1] == block.draft_ids.shape[1] + 1


def test_the_longest_path_wins_then_the_one_with_fewer_loose_tokens():
    class Two(Hiding):
        def branches(self, text: Any, num_draft: int) -> Any:
            right = self.texts[tuple(BATCH[0])][len(text) :][:2]
            other = [token + 1 if token < 258 else 0 for token in right]
            return [(other, 3.0), ([right[0], *other[1:]], 2.0)]

    decoder = Decoder(
        pair("llama")[0], Two("llama", BATCH[:1], NUM), make_rule("random", rate=1.0), 2
    )
    answer = decoder.generate(BATCH[:1], max_new_tokens=3)[0]
    text = greedy("llama", tuple(BATCH[0]), 2)
    assert answer.ids[0] == text[0] and answer.reasons[:2] == [Reason.STRICT, Reason.LOOSE]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_tree_deeper_than_the_context_is_cut(kind: str):
    batch = prompts(CONTEXT - 12, 3, CONTEXT - 12, seed=4)
    deep, watcher = Hiding(kind, batch, 12, deeper=9), Watch()
    for block in (16, 4):
        decoder = Decoder(pair(kind)[0], deep, make_rule("exact"), block, observer=watcher)
        answers = decoder.generate(batch, max_new_tokens=12)
        assert [answer.ids for answer in answers] == [
            greedy(kind, tuple(prompt), 12) for prompt in batch
        ]
    written = [
        (one.sum(), len(text))
        for block, _, texts in watcher.seen
        for one, text in zip(block.valid, texts)
    ]
    assert all(length < CONTEXT - so_far for length, so_far in written) and max(written)[0] > 4


def test_a_tree_of_one_branch_is_the_draft_model_s_chain():
    target, draft = pair("llama")
    for sampling in (Sampling(), Sampling(1.0)):
        one = Decoder(
            target, tree_drafter(draft, nodes=5, width=1, branch=1, chains=1), make_rule("exact"), 5
        )
        chain = Decoder(target, ModelDrafter(draft), make_rule("exact"), 5)
        texts = [d.generate(BATCH, max_new_tokens=NUM, sampling=sampling) for d in (one, chain)]
        assert [a.ids for a in texts[0]] == [b.ids for b in texts[1]]
        assert [a.statistics.histogram for a in texts[0]] == [
            b.statistics.histogram for b in texts[1]
        ]


@pytest.mark.parametrize(
    ("nodes", "chains", "parents"), [(6, 2, [-1, -1, 0, 1, 2, 3]), (5, 3, [-1, -1, -1])]
)
def test_a_sampled_tree_is_whole_chains(nodes: int, chains: int, parents: list[int]):
    """Each node is drawn from its own q, and none is left out because of what was drawn."""
    tree = tree_drafter(pair("llama")[1], nodes=nodes, chains=chains)
    tree.start(2)
    uniforms = torch.rand(
        2, 2 * nodes + 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    draft = tree.propose(
        BATCH[:2], 4, vocabulary=100, sampling=Sampling(1.0), uniforms=uniforms, want_q=True
    )
    assert draft.parents is not None and draft.parents.tolist() == [parents] * 2
    below = (draft.q.cumsum(-1) < uniforms[:, : len(parents), None]).sum(-1)
    assert torch.equal(below, draft.ids)


def test_a_tree_accepts_more_than_the_chain_of_its_depth():
    target, draft = pair("llama")
    drafter = tree_drafter(draft, nodes=32, width=6, branch=4)
    tree = Decoder(target, drafter, make_rule("exact"), 6).generate(BATCH, max_new_tokens=60)
    chain = Decoder(target, ModelDrafter(draft), make_rule("exact"), 6).generate(
        BATCH, max_new_tokens=60
    )
    assert sum(a.statistics.forwards for a in tree) < sum(a.statistics.forwards for a in chain)


def test_rows_do_not_influence_each_other_when_sampling():
    decoder = Decoder(pair("llama")[0], drafter("tree", "llama"), make_rule("traversal"), 4)
    together = decoder.generate(
        BATCH, max_new_tokens=12, sampling=Sampling(1.0), seeds=[1, 2, 3, 4]
    )
    for row, prompt in enumerate(BATCH):
        single = decoder.generate(
            [prompt], max_new_tokens=12, sampling=Sampling(1.0), seeds=[row + 1]
        )
        assert single[0].ids == together[row].ids


def test_what_trees_cannot_do_is_refused():
    target = pair("llama")[0]
    fly = Decoder(target, drafter("tree", "llama"), make_rule("fly"), 4)
    with pytest.raises(UserError, match="'fly' samples along chains only.*'traversal'"):
        fly.generate(BATCH, max_new_tokens=4, sampling=Sampling(1.0))
    with pytest.raises(UserError, match="reads a draft twice.*chains"):
        Decoder(target, drafter("tree", "llama"), make_rule("reflective"), 4, tokenizer=Markers())
