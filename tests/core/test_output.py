"""Drafts from a part of the vocabulary: q is renormalised over it, and sampling stays lossless."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.identity import identify_model
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.models.lighter import Subset, SubsetHead, quantise
from gistgate.rules import make_rule
from tests.architectures import pair, prompts, tiny_model
from tests.drafters.proposing import decoded, num_accepted, wanted
from tests.rules.enumerating import P, Q, first_token
from tests.tiny import byte_tokenizer, tiny_pair

TEXTS = [[10, 11, 11, 12], [12, 11, 40]]


def whole():
    return copy.deepcopy(pair("llama")[1])


def subset(ids, draft=None) -> Subset:
    return Subset(tuple(ids), "hash", None, 1.0)


def test_the_most_frequent_tokens_and_those_that_are_always_in():
    tokenizer, draft = byte_tokenizer(), tiny_pair()[1]
    special = set(tokenizer.all_special_ids)
    found = Subset.count(TEXTS, len({*special, 200}) + 2, tokenizer, draft, [200])
    assert set(found.ids) == special | {200, 11, 12} and list(found.ids) == sorted(found.ids)
    assert found.coverage == pytest.approx(5 / 7, abs=1e-6)
    for size, texts in ((1, TEXTS), (10**6, TEXTS), (50, [])):
        with pytest.raises(UserError, match="cannot be counted"):
            Subset.count(texts, size, tokenizer, draft, [200])


def test_logits_of_the_subset_are_the_whole_model_s_and_all_others_are_impossible():
    texts, ids = torch.tensor(prompts(5, 5)), [3, 7, 200, 258]
    before = pair("llama")[1](texts).logits
    after = subset(ids).apply(whole())(texts).logits.detach()
    torch.testing.assert_close(after[..., ids], before[..., ids])
    after[..., ids] = -torch.inf
    assert after.shape == before.shape and torch.isneginf(after).all()


@pytest.mark.parametrize("quantised", ["none", "int4"])
def test_strict_answers_are_the_greedy_ones(quantised):
    draft, batch = quantise(subset(range(0, 259, 2)).apply(whole()), quantised), prompts(5, 17, 2)
    answers = decoded(ModelDrafter(draft), "llama", batch)
    assert [one.ids for one in answers] == wanted("llama", batch) and num_accepted(answers)


def test_q_is_renormalised_and_only_the_subset_is_drawn():
    uniforms = torch.rand(2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = list(range(1, 259, 3))
    drafter = ModelDrafter(subset(ids).apply(whole()))
    drafter.start(2)
    request = {"vocabulary": 259, "sampling": Sampling(1.0), "want_q": False, "uniforms": uniforms}
    with torch.inference_mode():
        draft = drafter.propose(prompts(5, 9), 4, **request)
    torch.testing.assert_close(draft.q.sum(-1), torch.ones(2, 4))
    assert set(draft.ids.flatten().tolist()) <= set(ids)
    assert draft.q[..., [one for one in range(259) if one not in ids]].sum() == 0


@pytest.mark.parametrize("ids", [[0, 2], [1, 2], [2]])
def test_sampling_stays_lossless(ids):
    """Summed over all drafts from the subset and all numbers, the first token is distributed as p."""
    head = SubsetHead(torch.nn.Linear(3, 3, bias=False), ids)
    head.part.weight = torch.nn.Parameter(torch.eye(3)[ids])
    q = Sampling(1.0).logits(head(Q.float().log())).softmax(-1).double().detach()
    assert q[ids].sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    torch.testing.assert_close(first_token(make_rule("exact"), q_3=q), P, atol=1e-6, rtol=0)


def test_it_is_bound_to_tokenizer_draft_and_end_tokens(tmp_path):
    tokenizer, draft = byte_tokenizer(), tiny_pair()[1]
    found = Subset.count(TEXTS, 40, tokenizer, draft, [200])
    found.save(tmp_path / "words.json")
    again = Subset.load(tmp_path / "words.json")
    assert again == found
    with pytest.raises(UserError, match="lacks the token 201"):
        again.apply(draft, tokenizer, [201])
    with pytest.raises(UserError, match="another draft model"):
        again.apply(tiny_pair(noise=0.5)[1], tokenizer)
    with pytest.raises(UserError, match="another tokenizer"):
        subset([1]).apply(draft, tokenizer)
    fingerprint = identify_model(draft).fingerprint
    cut = again.apply(draft, tokenizer, [200])
    assert again.apply(cut, tokenizer) is cut and identify_model(cut).draft_vocabulary == again.digest
    assert identify_model(cut).fingerprint != fingerprint
    with pytest.raises(UserError, match="changed already"):
        subset([1]).apply(cut)
    with pytest.raises(UserError, match="changed already"):
        Subset.count(TEXTS, 40, tokenizer, quantise(whole(), "int8"), [200])
    for content in ('{"ids": [1]}', "[]", '{"ids": "words"}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(UserError, match="is no draft vocabulary"):
            Subset.load(tmp_path / "bad.json")


def test_markers_that_are_not_special_are_always_in():
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<think>", "<|fim_middle|>"], special_tokens=False)
    markers = tokenizer.convert_tokens_to_ids(["<think>", "<|fim_middle|>"])
    wide = tiny_model("llama", 264)
    found = Subset.count(TEXTS, 10, tokenizer, wide, [2])
    assert set(markers) <= set(found.ids) and not set(markers) & set(tokenizer.all_special_ids)
    without = replace(found, ids=tuple(one for one in found.ids if one != markers[0]))
    with pytest.raises(UserError, match=f"lacks the token {markers[0]}, which ends answers or steers"):
        without.apply(wide, tokenizer, [2])
    found.apply(wide, tokenizer, [2])


def test_markers_that_the_draft_does_not_have_are_not_asked_for():
    tokenizer, draft = byte_tokenizer(), whole()
    tokenizer.add_tokens(["<think>"], special_tokens=False)
    found = Subset.count(TEXTS, 10, tokenizer, draft, [2, 300])
    assert max(found.ids) < 259 and found.apply(draft, tokenizer, [2, 300]).subset == found.digest


@pytest.mark.parametrize("ids", [[-1, 3], [3, 3], [4, 3], []])
def test_ids_that_do_not_rise_from_zero_are_refused(tmp_path, ids):
    subset(ids).save(tmp_path / "words.json")
    with pytest.raises(UserError, match="is no draft vocabulary: its ids do not rise"):
        Subset.load(tmp_path / "words.json")


def test_an_id_that_the_draft_does_not_have_is_named():
    with pytest.raises(UserError, match="names the token 259, and the draft has 259"):
        subset([1, 259]).apply(whole())
