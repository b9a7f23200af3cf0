"""Answers of decodings that should be equal, compared id by id."""

from __future__ import annotations

import torch

from benchmarks.rounding import compared, decoded, differences, differing
from pipeline.pairs.pair import Pair
from tests.tiny import byte_tokenizer, tiny_pair


def test_equal_answers_and_common_beginnings_are_counted():
    assert compared([[1, 2, 3], [4]], [[1, 2, 3], [4]]) == {"equal": 2, "common_tokens": None}
    assert compared([[1, 2, 3], [4, 5], [6]], [[1, 9, 3], [4, 5, 6], [6]]) == {"equal": 1, "common_tokens": 1.5}
    assert differing([1.0, 0.0, 1.0], [1.0, 1.0, 0.0]) == 2


def test_every_decoding_answers_every_prompt_and_the_other_dtype_comes_last():
    pair, dtypes = Pair(*tiny_pair(), byte_tokenizer(), "tiny"), []
    pair.target.register_forward_pre_hook(lambda model, _inputs: dtypes.append(model.dtype))
    ids, request = [[1, 2, 3], [4, 5], [6, 7, 8, 9]], {"max_new_tokens": 12}
    answers = decoded(pair, ids, [2, 1], torch.float64, 4, request)
    assert list(answers) == ["strict, 2 rows", "strict, 1 rows", "plain, 2 rows", "strict, float64"]
    assert all([len(one) for one in given] == [12, 12, 12] for given in answers.values())
    assert dtypes[0] == torch.float32 and dtypes[-1] == torch.float64 and dtypes == sorted(dtypes, key=str)
    found = differences(answers)
    assert all(entry == {"equal": 3, "common_tokens": None, "other_scores": None} for entry in found.values())
    answers["strict, float64"][1] = answers["strict, float64"][1][:5] + [0] * 7
    assert differences(answers)["strict, float64"]["equal"] == 2
