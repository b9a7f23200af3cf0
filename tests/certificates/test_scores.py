"""Scores of open text: the target's own log-probability, and a judge that is asked in both orders."""

import numpy as np
import pytest
import torch

from gistgate.certificates.scores import CLIP, LogProbability, PairwiseJudge
from tests.tiny import byte_tokenizer, tiny_pair


def test_log_probability_prefers_the_targets_own_answer():
    tiny_model, _ = tiny_pair()
    tiny_model.lm_head.weight.data *= 30
    score = LogProbability(tiny_model, batch_size=3)
    prompt = [3, 4, 5]
    with torch.no_grad():
        own = int(tiny_model(torch.tensor([prompt])).logits[0, -1].argmax())
        logp = tiny_model(torch.tensor([prompt])).logits[0, -1].float().log_softmax(-1)
    other = (own + 1) % 50
    prompts = [{"ids": prompt}, {"ids": [1, 2]}, {"ids": prompt}]
    d = score.differences(prompts, [[own], [7], [own]], [[other], [7], []])
    assert d[0] == pytest.approx((max(float(logp[own]), -CLIP) - max(float(logp[other]), -CLIP)) / CLIP, abs=1e-5)
    assert d[0] > 0
    assert d[1] == 0
    assert d[2] > 0.0


def test_a_judge_that_prefers_the_first_place_says_nothing(monkeypatch):
    judge = PairwiseJudge(None, None, byte_tokenizer())
    monkeypatch.setattr(PairwiseJudge, "prefers_first", lambda self, context, one, other: True)
    assert judge.differences([{"context": ""}], [[5]], [[6]]).tolist() == [0.0]
    monkeypatch.setattr(PairwiseJudge, "prefers_first", lambda self, context, one, other: one < other)
    assert np.abs(judge.differences([{"context": ""}], [[5]], [[6]])).tolist() == [1.0]
