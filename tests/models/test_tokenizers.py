"""Prompts and chats become ids as the tokenizer's own files say, and two models decode together
when their ids mean the same.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import get_session
from tokenizers.processors import TemplateProcessing
from transformers import LlamaForCausalLM

from gistgate.build import build
from gistgate.core.utils import UserError
from gistgate.models import tokenizers
from gistgate.models.loading import Target, load_draft
from gistgate.models.options import DecodeOptions
from gistgate.models.tokenizers import (
    check_same_tokenizer,
    encode,
    readable_tokenizer,
    tokenizer_of,
)
from tests.architectures import tiny_model
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

SWAPPED = "another tokenizer: id 3 is .* for the target and .* for the draft"

# ---- Prompts and chats.


def test_a_chat_template_that_is_not_used_is_said() -> None:
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    target = Target(tiny_pair()[0], tokenizer)
    with pytest.warns(UserWarning, match="has a chat template, and prompts .* --chat uses it."):
        target.encode("Tom")
    assert target.encode("Tom", chat=True) == tokenizer("Tom").input_ids  # <s> as everywhere


def test_a_system_text_without_a_chat_and_half_a_character_are_refused() -> None:
    target = Target(tiny_pair()[0], byte_tokenizer())
    with pytest.raises(UserError, match="belong to a chat"):
        target.encode("Tom", system="Be brief.")
    with pytest.raises(UserError, match="half a character"):
        target.encode("Tom \ud83d")


def test_what_a_tokenizer_puts_around_a_text_stands_once_in_front_and_not_behind() -> None:
    tokenizer: Any = byte_tokenizer()
    around = [("<s>", 1), ("</s>", 2)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=around
    )
    bare = tokenizer.encode("a", add_special_tokens=False)
    assert tokenizer.encode("<s>a") == [1, 1, *bare, 2]
    assert encode(tokenizer, "a") == encode(tokenizer, "<s>a") == [1, *bare]
    assert encode(tokenizer, "a</s>") == [1, *bare, 2]  # a prompt may hold it
    assert encode(byte_tokenizer(bos=False), "a") == bare


def test_a_chat_template_is_chosen_by_its_name() -> None:
    tokenizer: Any = byte_tokenizer(bos=False)
    tokenizer.chat_template = {
        "rag": "{{ messages[0].content }}",
        "default": "Q: {{ messages[0].content }}",
    }
    target = Target(tiny_model("llama"), tokenizer)
    assert tokenizer.decode(target.encode("Tom", chat=True)) == "Q: Tom"
    del tokenizer.chat_template["default"]
    assert tokenizer.decode(target.encode("Tom", True, arguments={"chat_template": "rag"})) == "Tom"
    with pytest.raises(UserError, match="no chat template 'default'.*'?rag"):
        target.encode("Tom", True)
    with pytest.raises(UserError, match="no chat template 'ragg'.*'?rag"):  # and not a text
        target.encode("Tom", True, arguments={"chat_template": "ragg"})


@pytest.mark.parametrize(
    ("system", "remedy"), [("Be brief.", "Leave --system away"), (None, "leave --chat away")]
)
def test_a_chat_template_that_refuses_is_one_sentence(system: str | None, remedy: str) -> None:
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UserError, match=f"System role not supported.*{remedy}"):
        Target(tiny_model("llama"), tokenizer).encode("Tom has 5 apples.", chat=True, system=system)


# ---- Two models may decode together when their token ids mean the same.


def vocabulary(*tokens: str) -> Any:
    """A tokenizer with these tokens, numbered in their order."""
    return SimpleNamespace(get_vocab=lambda: {token: index for index, token in enumerate(tokens)})


def test_a_few_additional_tokens_of_one_tokenizer_pass_and_others_are_refused() -> None:
    check_same_tokenizer(byte_tokenizer(), byte_tokenizer(bos=False))
    check_same_tokenizer(vocabulary("a", "b", "<think>"), vocabulary("a", "b"))
    check_same_tokenizer(vocabulary("a", "b"), vocabulary("a", "b", "<think>"))
    with pytest.raises(UserError, match="id 1 is 'b' for the target and 'c' for the draft"):
        check_same_tokenizer(vocabulary("a", "b", "c"), vocabulary("a", "c", "b"))
    tokens = [f"t{index}" for index in range(200)]
    check_same_tokenizer(vocabulary(*tokens), vocabulary(*tokens[:150]))
    with pytest.raises(UserError, match="the target's has 200 tokens and the draft's 100"):
        check_same_tokenizer(vocabulary(*tokens), vocabulary(*tokens[:100]))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A pair of one tokenizer in target/ and draft/, and the draft with another one in swapped/."""
    target, draft = tiny_pair()
    save_pair(tmp_path, target, draft, byte_tokenizer())
    draft.save_pretrained(tmp_path / "swapped")
    byte_tokenizer(reverse=True).save_pretrained(tmp_path / "swapped")
    return tmp_path


def loaded(folder: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    "tokenizer", [byte_tokenizer(), None], ids=["given", "of the target's folder"]
)
@pytest.mark.parametrize("as_name", [True, False], ids=["named", "loaded"])
def test_a_draft_with_another_tokenizer_is_refused(
    saved: Path, as_name: bool, tokenizer: Any
) -> None:
    target = loaded(saved / "target")
    draft = saved / "draft" if as_name else loaded(saved / "draft")
    build(target, tokenizer, DecodeOptions(draft=draft, rule="exact"))
    swapped = saved / "swapped" if as_name else loaded(saved / "swapped")
    with pytest.raises(UserError, match=SWAPPED):
        load_draft(swapped, target, tokenizer)
    with pytest.raises(UserError, match=SWAPPED):
        build(target, tokenizer, DecodeOptions(draft=swapped, rule="exact"))


def test_a_model_of_unknown_origin_is_trusted(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of today's working directory is taken for it, and the hub is not asked for the name
    of a folder.
    """
    monkeypatch.setattr(tokenizers, "has_file", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.chdir(saved)
    moved = loaded(Path("swapped"))
    unnamed = tiny_pair()[1]
    monkeypatch.chdir("/")
    for model in (moved, unnamed):
        assert tokenizer_of("draft", model) is None
        load_draft(model, loaded(saved / "target"), byte_tokenizer())
    load_draft(loaded(saved / "swapped"), unnamed)  # nobody knows the tokenizer of this target


def test_a_loaded_draft_is_refused_with_what_helps(saved: Path) -> None:
    target = loaded(saved / "target")
    draft = loaded(saved / "swapped")
    with pytest.raises(UserError, match="draft.config.name_or_path = ''"):
        load_draft(draft, target)
    draft.config.name_or_path = ""
    load_draft(draft, target)


def test_a_model_from_the_hub_is_compared_from_the_cache_alone(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = saved / "hub/models--nobody--here"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    (repository / "snapshots/abc").symlink_to(saved / "swapped")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(saved / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        type(get_session()), "send", lambda *_, **__: pytest.fail("the hub was asked")
    )
    draft = LlamaForCausalLM.from_pretrained("nobody/here", local_files_only=True)
    with pytest.raises(UserError, match=SWAPPED):
        load_draft(draft, loaded(saved / "target"))
    (saved / "swapped/tokenizer.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="'nobody/here' could not be read from tokenizer.json"):
        readable_tokenizer("draft", "nobody/here")


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_model_without_a_tokenizer_is_refused_also_where_transformers_makes_one_up(
    tmp_path: Path, kind: str
) -> None:
    tiny_model(kind).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Copy tokenizer.json and tokenizer_config.json there"):
        tokenizers.load_tokenizer(str(tmp_path))


def test_a_locale_without_umlauts_is_named(monkeypatch) -> None:
    monkeypatch.setattr(tokenizers, "is_utf8", lambda: False)
    with pytest.raises(UserError, match="LC_ALL"):
        encode(byte_tokenizer(), "Gr\udcc3\udcbcn")
