"""Two models may decode together when their token ids mean the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gistgate.errors import UserError
from gistgate.identity import check_same_tokenizer
from tests.tiny import byte_tokenizer


def tokens(*names: str) -> SimpleNamespace:
    """A tokenizer with these tokens, numbered in their order."""
    return SimpleNamespace(get_vocab=lambda: {name: index for index, name in enumerate(names)})


def test_equal_tokenizers_pass_and_so_do_additional_tokens_of_one_of_them():
    check_same_tokenizer(byte_tokenizer(), byte_tokenizer(bos=False))
    check_same_tokenizer(tokens("a", "b", "<think>"), tokens("a", "b"))
    check_same_tokenizer(tokens("a", "b"), tokens("a", "b", "<think>"))


def test_another_tokenizer_is_refused_and_the_first_differing_id_is_named():
    with pytest.raises(UserError, match="another tokenizer: id 1 is 'b' for the target and 'c' for the draft"):
        check_same_tokenizer(tokens("a", "b", "c"), tokens("a", "c", "b"))
