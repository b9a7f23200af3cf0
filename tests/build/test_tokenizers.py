"""Two models may decode together when their token ids mean the same; a draft's tokenizer is read or named."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import huggingface_hub.constants
import pytest

from gistgate.build.models import Target, load_draft
from gistgate.build.tokenizers import check_same_tokenizer, load_draft_tokenizer, warn_untemplated
from gistgate.errors import UserError
from tests.tiny import byte_tokenizer, tiny_pair


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


def test_many_additional_tokens_are_another_tokenizer():
    names = [f"t{index}" for index in range(200)]
    check_same_tokenizer(tokens(*names), tokens(*names[:150]))
    with pytest.raises(UserError, match="another tokenizer: the target's has 200 tokens and the draft's 100"):
        check_same_tokenizer(tokens(*names), tokens(*names[:100]))


def test_a_draft_without_a_tokenizer_has_none_to_compare(tmp_path):
    assert load_draft_tokenizer(str(tmp_path)) is None
    byte_tokenizer().save_pretrained(tmp_path)
    assert load_draft_tokenizer(str(tmp_path), revision="main").get_vocab() == byte_tokenizer().get_vocab()


@pytest.mark.parametrize("text", ["{}", "{", "", "[]"])
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path, text):
    target, draft = tiny_pair()
    draft.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer of the draft .* could not be read from tokenizer.json .* Restore"):
        load_draft(tmp_path, target, byte_tokenizer())


def test_a_repository_without_a_tokenizer_is_told_from_a_damaged_one(tmp_path, monkeypatch):
    """What the hub's cache holds after loading decides."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert load_draft_tokenizer("nobody/nothing") is None
    kept = tmp_path / "models--nobody--nothing"
    (kept / "snapshots/abc").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("abc")
    (kept / "snapshots/abc/tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="'nobody/nothing' could not be read from tokenizer.json"):
        load_draft_tokenizer("nobody/nothing")


def test_a_chat_template_that_is_not_used_is_said():
    model, tokenizer = tiny_pair()[0], byte_tokenizer()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_untemplated(tokenizer, "use it")
    tokenizer.chat_template = "{{ messages[0].content }}"
    loaded = Target(model, tokenizer)
    with pytest.warns(UserWarning, match="has a chat template, and prompts .* --chat uses it."):
        loaded.encode("Tom")
    assert loaded.encode("Tom", chat=True) == tokenizer("Tom", add_special_tokens=False).input_ids
