"""Two models may decode together when their token ids mean the same; a draft's tokenizer is read or named."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import get_session
from transformers import LlamaForCausalLM
from transformers.utils import hub as hub_files

from gistgate.core.utils import UserError
from gistgate.models import loading as tokenizers
from gistgate.models.build import build_decoder
from gistgate.models.loading import (
    Target,
    check_draft_tokenizer,
    check_same_tokenizer,
    load_draft,
    load_draft_tokenizer,
    readable_tokenizer,
    tokenizer_of,
    warn_untemplated,
)
from gistgate.models.options import DecodeOptions
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

OTHER = "another tokenizer: id 3 is .* for the target and .* for the draft"


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


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A pair of one tokenizer in target/ and draft/, and the draft with another one in other/."""
    target, draft = tiny_pair()
    save_pair(tmp_path, target, draft, byte_tokenizer())
    draft.save_pretrained(tmp_path / "other")
    byte_tokenizer(reverse=True).save_pretrained(tmp_path / "other")
    return tmp_path


def loaded(folder: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(folder)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models whose tokenizers are read, one for each time."""
    names: list[str] = []
    read = tokenizers.own_tokenizer
    monkeypatch.setattr(tokenizers, "own_tokenizer", lambda role, name, **place: note(names, name) or read(role, name))
    return names


def note(names: list[str], name: str) -> None:
    names.append(Path(name).name)


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), None], ids=["given", "of the target's folder"])
@pytest.mark.parametrize("as_name", [True, False], ids=["named", "loaded"])
def test_everybody_who_builds_a_decoder_refuses_a_draft_with_another_tokenizer(saved: Path, as_name: bool, tokenizer):
    target = loaded(saved / "target")
    fitting, other = (saved / name if as_name else loaded(saved / name) for name in ("draft", "other"))
    build_decoder(target, tokenizer, DecodeOptions(draft=fitting, rule="exact"))
    for build in (load_draft, lambda draft, *given: build_decoder(*given, DecodeOptions(draft=draft, rule="exact"))):
        with pytest.raises(UserError, match=OTHER):
            build(other, target, tokenizer)


def test_a_pair_is_compared_once_and_a_named_draft_not_again_when_it_is_loaded(saved: Path, reads: list[str]):
    target, tokenizer = loaded(saved / "target"), byte_tokenizer()
    draft = load_draft(saved / "draft", target, tokenizer)
    load_draft(draft, target, tokenizer)
    assert reads == ["draft"]
    for _ in range(2):
        load_draft(draft, target)
    assert reads == ["draft", "target", "draft"]
    other = loaded(saved / "other")
    for _ in range(2):  # what was refused is refused again
        with pytest.raises(UserError, match=OTHER):
            load_draft(other, target, tokenizer)
    check_draft_tokenizer(target, target, byte_tokenizer(reverse=True))
    assert reads == ["draft", "target", "draft", "other", "other"]


def test_a_model_of_unknown_origin_is_trusted(saved: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch):
    """No folder of today's working directory is taken for it, and the hub is not asked for the name of a folder."""
    monkeypatch.setattr(tokenizers, "has_file", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.chdir(saved)
    draft, gone = loaded(Path("other")), tiny_pair()[1]
    monkeypatch.chdir("/")
    for model in (draft, gone):
        assert tokenizer_of("draft", model) is None
        load_draft(model, loaded(saved / "target"), byte_tokenizer())
    load_draft(loaded(saved / "other"), gone)  # nobody knows the tokenizer of this target
    assert not reads


def test_a_damaged_tokenizer_of_a_loaded_model_is_a_warning_and_read_once(saved: Path):
    (saved / "other" / "tokenizer.json").write_text("{}")
    target, draft, tokenizer = loaded(saved / "target"), loaded(saved / "other"), byte_tokenizer()
    with pytest.warns(UserWarning, match="tokenizer of the draft .* could not be read from tokenizer.json"):
        load_draft(draft, target, tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_draft(draft, target, tokenizer)
    with pytest.warns(UserWarning, match="tokenizer of the target .* cannot be compared with the draft's"):
        load_draft(loaded(saved / "draft"), draft)


def test_what_cannot_be_a_weak_key_is_compared_each_time(saved: Path, reads: list[str]):
    target, draft, known = loaded(saved / "target"), loaded(saved / "draft"), byte_tokenizer()
    double = tokens(*known.convert_ids_to_tokens(range(len(known))))  # not hashable
    for _ in range(2):
        check_draft_tokenizer(target, draft, double)
    assert reads == ["draft", "draft"]


def test_a_loaded_draft_is_refused_with_its_origin_and_what_helps(saved: Path):
    target, draft = loaded(saved / "target"), loaded(saved / "other")
    with pytest.raises(UserError, match=f"is that of '{saved / 'other'}'.*draft.config.name_or_path = ''"):
        load_draft(draft, target)
    draft.config.name_or_path = ""
    load_draft(draft, target)


def kept_repository(folder: Path, monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """A cache of the hub in `folder` that holds the files of a model as nobody/here."""
    kept = folder / "models--nobody--here"
    (kept / "snapshots").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("abc")
    (kept / "snapshots/abc").symlink_to(source)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)


def test_a_model_from_the_hub_is_compared_from_the_cache_alone(saved: Path, monkeypatch: pytest.MonkeyPatch):
    kept_repository(saved / "hub", monkeypatch, saved / "other")
    monkeypatch.setattr(type(get_session()), "send", lambda *_, **__: pytest.fail("the hub was asked"))
    draft = LlamaForCausalLM.from_pretrained("nobody/here", local_files_only=True)
    with pytest.raises(UserError, match=OTHER):
        load_draft(draft, loaded(saved / "target"))


@pytest.mark.parametrize("error", [hub_files.httpx.ConnectError("no network"), OSError("no access")])
def test_where_the_hub_does_not_answer_one_request_is_made_and_the_model_trusted(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (saved / "other" / name).unlink()
    kept_repository(saved / "hub", monkeypatch, saved / "other")
    draft = LlamaForCausalLM.from_pretrained("nobody/here", local_files_only=True)
    asked: list[Any] = []

    def send(_client: Any, request: Any, **_: Any) -> Any:
        asked.append(request.url)
        raise error

    monkeypatch.setattr(type(get_session()), "send", send)
    target, tokenizer = loaded(saved / "target"), byte_tokenizer()
    for _ in range(2):
        load_draft(draft, target, tokenizer)
    assert len(asked) == 1
    assert readable_tokenizer("draft", "nobody/nothing") is None and len(asked) == 2
