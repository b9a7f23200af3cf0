"""Lighter drafts, with rounded weights or a part of the vocabulary: near the original, and drafts
stay lossless.
"""

import copy

import pytest
import torch
from torch import nn

from gistgate.core.block import Sampling
from gistgate.core.identity import identify_model
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.models.lighter import Subset, SubsetHead
from gistgate.models.packed import quantise
from gistgate.rules import make_rule
from tests.architectures import pair, prompts, tiny_model
from tests.drafters.proposing import decoded, num_accepted, wanted
from tests.rules.enumerating import P, Q, first_token
from tests.tiny import byte_tokenizer, tiny_pair

EVEN = range(0, 259, 2)


def lighter(kind: str):
    return quantise(copy.deepcopy(pair("llama", 272)[1]), kind)


@pytest.mark.parametrize(
    ("kind", "ids"), [("int8", None), ("int4", None), ("none", EVEN), ("int4", EVEN)]
)
def test_strict_answers_are_the_greedy_ones(kind, ids):
    """With rounded weights, with a part of the vocabulary, and with both."""
    draft = lighter(kind) if ids is None else quantise(subset(ids).apply(whole()), kind)
    batch = prompts(5, 17, 2)
    assert ids is not None or not any(type(module) is nn.Linear for module in draft.modules())
    answers = decoded(ModelDrafter(draft), "llama", batch)
    assert [answer.ids for answer in answers] == wanted("llama", batch) and num_accepted(answers)


TEXTS = [[10, 11, 11, 12], [12, 11, 40]]


def whole():
    return copy.deepcopy(pair("llama")[1])


def subset(ids) -> Subset:
    return Subset(tuple(ids), "hash", None, 1.0)


def test_the_most_frequent_tokens_and_those_that_are_always_in():
    tokenizer = byte_tokenizer()
    draft = tiny_pair()[1]
    special = set(tokenizer.all_special_ids)
    counted = Subset.count(TEXTS, len({*special, 200}) + 2, tokenizer, draft, [200])
    assert list(counted.ids) == sorted(special | {200, 11, 12})
    assert counted.coverage == pytest.approx(5 / 7, abs=1e-6)
    for size, texts in ((1, TEXTS), (10**6, TEXTS), (50, [])):
        with pytest.raises(UserError, match="cannot be counted"):
            Subset.count(texts, size, tokenizer, draft, [200])


def test_logits_of_the_subset_are_the_whole_model_s_and_all_others_are_impossible():
    texts = torch.tensor(prompts(5, 5))
    ids = [3, 7, 200, 258]
    before = pair("llama")[1](texts).logits
    after = subset(ids).apply(whole())(texts).logits.detach()
    torch.testing.assert_close(after[..., ids], before[..., ids])
    after[..., ids] = -torch.inf
    assert after.shape == before.shape and torch.isneginf(after).all()


@pytest.mark.parametrize("ids", [[0, 2], [1, 2], [2]])
def test_sampling_stays_lossless(ids):
    """Summed over all drafts from the subset and all numbers, the first token is distributed as
    p.
    """
    head = SubsetHead(torch.nn.Linear(3, 3, bias=False), ids)
    head.part.weight = torch.nn.Parameter(torch.eye(3)[ids])
    q = Sampling(1.0).logits(head(Q.float().log())).softmax(-1).double().detach()
    assert q[ids].sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    torch.testing.assert_close(first_token(make_rule("exact"), q_3=q), P, atol=1e-6, rtol=0)


def test_it_is_bound_to_tokenizer_draft_and_end_tokens(tmp_path):
    tokenizer = byte_tokenizer()
    draft = tiny_pair()[1]
    counted = Subset.count(TEXTS, 40, tokenizer, draft, [200])
    counted.save(tmp_path / "words.json")
    again = Subset.load(tmp_path / "words.json")
    assert again == counted
    with pytest.raises(UserError, match="another draft model"):
        again.apply(tiny_pair(noise=0.5)[1], tokenizer)
    with pytest.raises(UserError, match="another tokenizer"):
        subset([1]).apply(draft, tokenizer)
    fingerprint = identify_model(draft).fingerprint
    cut = again.apply(draft, tokenizer)
    assert again.apply(cut, tokenizer) is cut
    assert identify_model(cut).draft_vocabulary == again.digest
    assert identify_model(cut).fingerprint != fingerprint
    with pytest.raises(UserError, match=r"no nn\.Linear"):
        subset(range(9)).apply(cut)
    (tmp_path / "bad.json").write_text('{"ids": "words"}')
    with pytest.raises(UserError, match="is no draft vocabulary"):
        Subset.load(tmp_path / "bad.json")


def test_markers_that_are_not_special_are_always_in():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "<|fim_middle|>"], special_tokens=False)
    markers = tokenizer.convert_tokens_to_ids(["<think>", "<|fim_middle|>"])
    wide = tiny_model("llama", 264)
    counted = Subset.count(TEXTS, 10, tokenizer, wide, [2])
    assert set(markers) <= set(counted.ids) - set(tokenizer.all_special_ids)
    counted.apply(wide, tokenizer)
