"""Models and tokenizers by name: GGUF files, damaged weights, hub errors, and drafts with another
tokenizer.
"""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub import get_session
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError
from tokenizers.processors import TemplateProcessing
from transformers import LlamaForCausalLM

from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.models import loading
from gistgate.models.build import build_decoder
from gistgate.models.loading import (
    Target,
    check_same_tokenizer,
    check_smaller,
    encode,
    is_finite,
    load_draft,
    load_remedy,
    load_target,
    own_tokenizer,
    tokenizer_of,
    weight_files,
)
from gistgate.models.options import DecodeOptions
from gistgate.rules import make_rule
from tests.architectures import tiny_model
from tests.gguf_file import write_gguf
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

OTHER = "another tokenizer: id 3 is .* for the target and .* for the draft"


# ---- Files and weights.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the GGUF files of a target and a draft, and one with another tokenizer."""
    place = tmp_path_factory.mktemp("quantised")
    write_gguf(place / "target.gguf")
    write_gguf(place / "draft.gguf", seed=1)
    known = byte_tokenizer().get_vocab()
    tokens = sorted(known, key=lambda token: known[token])
    tokens[40], tokens[41] = tokens[41], tokens[40]
    write_gguf(place / "foreign.gguf", tokens)
    return place


def test_a_gguf_file_is_one_model_by_folder_and_by_path_and_is_unpacked_to_the_dtype(
    folder: Path,
) -> None:
    named = load_target(str(folder), "bfloat16", "cpu", gguf="target.gguf")
    path = load_target(str(folder / "target.gguf"), "bfloat16", "cpu")
    assert {parameter.dtype for parameter in named.model.parameters()} == {torch.bfloat16}
    assert named.tokenizer.decode(named.encode("Tom"), skip_special_tokens=True) == "Tom"
    pairs = zip(named.model.parameters(), path.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_strict_decoding_of_two_gguf_files_is_greedy_and_another_tokenizer_is_refused(
    folder: Path,
) -> None:
    target = load_target(str(folder / "target.gguf"), "float32", "cpu")
    draft = load_draft(str(folder / "draft.gguf"), target.model, target.tokenizer)
    ids = target.encode("Tom has 5 apples")
    decoder = Decoder(
        target.model, DRAFTERS["model"](draft), make_rule("exact"), 3, tokenizer=target.tokenizer
    )
    with torch.inference_mode():
        wanted = target.model.generate(
            torch.tensor([ids]), max_new_tokens=8, do_sample=False, eos_token_id=-1
        )
    assert (
        decoder.generate([ids], max_new_tokens=8, eos_ids=[])[0].ids
        == wanted[0, len(ids) :].tolist()
    )
    rounded = load_draft(
        str(folder / "draft.gguf"), target.model, target.tokenizer, quantised="int8"
    )
    assert rounded.quantised == "int8" and not hasattr(rounded.config, "quantization_config")
    with pytest.raises(UserError, match="another tokenizer: id 40"):
        load_draft(str(folder / "foreign.gguf"), target.model, target.tokenizer)


def test_a_damaged_gguf_file_is_named(tmp_path: Path, folder: Path) -> None:
    whole, file = (folder / "target.gguf").read_bytes(), tmp_path / "cut.gguf"
    file.write_bytes(whole[: int(0.9 * len(whole))])
    with pytest.raises(
        UserError, match=r"cut.gguf' could not be loaded \(.+\). Its files are damaged"
    ):
        load_target(str(file), "float32", "cpu")


def test_only_the_files_that_are_loaded_are_files_with_weights(tmp_path: Path) -> None:
    model, whole = tiny_pair()[0], tmp_path / "model.safetensors"
    model.save_pretrained(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(whole.read_bytes())
    assert weight_files(str(tmp_path)) == [whole]
    whole.unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1 and weight_files(str(tmp_path)) == shards


def test_weights_of_one_byte_are_tested_too() -> None:
    """torch has no `isfinite` for them."""
    whole, broken = (
        torch.tensor([1.0, last]).to(torch.float8_e4m3fn) for last in (-2.0, float("nan"))
    )
    assert is_finite(whole) and not is_finite(broken)
    assert is_finite(torch.tensor([1, 2], dtype=torch.int8))


def caused(error: Exception) -> OSError:
    """The error as transformers raises it: an OSError of its own in front of the hub's."""
    outer = OSError("We have a problem.")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    "error, sentence",
    [
        (
            caused(GatedRepoError.__new__(GatedRepoError)),
            "Accept its licence on https://huggingface.co/owner/name",
        ),
        (caused(LocalEntryNotFoundError.__new__(LocalEntryNotFoundError)), "set HF_HUB_OFFLINE=0"),
        (
            OSError("We couldn't connect to 'https://huggingface.co'"),
            "Check the name and the connection",
        ),
    ],
)
def test_the_remedy_follows_the_cause(error: Exception, sentence: str) -> None:
    assert sentence in load_remedy("owner/name", error)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no config.json"),
        (
            {"adapter_config.json": '{"base_model_name_or_path": "a/b"}'},
            "is an adapter of 'a/b'. Merge both",
        ),
        (
            {"checkpoint-1000/model.safetensors": "", "checkpoint-200/model.safetensors": ""},
            "Name one: .*-200",
        ),
        ({"tiny.gguf": ""}, "holds GGUF files. Name one with its path: tiny.gguf"),
        ({"config.json": '{"model_type": "t5"}'}, "is a t5, which does not continue texts"),
        (
            {"config.json": '{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'},
            "is a BertForMaskedLM",
        ),
        (
            {"config.json": '{"model_type": "new1"}'},
            "is a 'new1', which transformers .* does not know",
        ),
        ({"config.json": '{"model_type": "new1", "auto_map": {}}'}, "runs code of its makers"),
    ],
)
def test_a_folder_is_told_by_what_lies_there(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        load_target(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere/", "does not exist"), ("none.gguf", "does not exist"), ("text.txt", "is a file"),
        ("TINY.GGUF", "is in TINY.GGUF.*Rename it"), ("a-00001-of-00002.gguf", "Join the parts"),
    ],
)  # fmt: skip
def test_a_name_of_no_folder_says_what_is_wrong_with_it(
    tmp_path: Path, name: str, said: str
) -> None:
    for file in ("text.txt", "TINY.GGUF", "a-00001-of-00002.gguf"):
        (tmp_path / file).write_text("")
    with pytest.raises(UserError, match=said):
        load_target(f"{tmp_path}/{name}")


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_model_without_a_tokenizer_is_refused_also_where_transformers_makes_one_up(
    tmp_path: Path, kind: str
) -> None:
    tiny_model(kind).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Copy tokenizer.json and tokenizer_config.json there"):
        load_target(str(tmp_path))


def test_a_draft_larger_than_its_target_is_refused(tmp_path: Path) -> None:
    target, draft = tiny_pair()
    check_smaller(target, draft)
    target.model.layers = target.model.layers[:1]
    draft.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Drafting would cost more than it saves.* Swap the two"):
        load_draft(tmp_path, target)


# ---- What the target's own files ask for.


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_loading_a_target_names_entries_that_change_its_text(
    penalty: float, tmp_path: Path
) -> None:
    model = tiny_model("llama")
    model.generation_config.update(repetition_penalty=penalty, no_repeat_ngram_size=0)
    model.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_target(str(tmp_path), device="cpu")
    said = [str(one.message) for one in caught if "GistGate" in str(one.message)]
    assert ["asks for repetition_penalty=1.2, which" in one for one in said] == [True] * (
        penalty != 1.0
    )


def test_a_chat_template_that_is_not_used_is_said() -> None:
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    target = Target(tiny_pair()[0], tokenizer)
    with pytest.warns(UserWarning, match="has a chat template, and prompts .* --chat uses it."):
        target.encode("Tom")
    assert target.encode("Tom", chat=True) == tokenizer("Tom").input_ids  # <s> as everywhere


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
    for named, name in (
        ({}, "default"),
        ({"chat_template": "ragg"}, "ragg"),
    ):  # transformers would write "ragg"
        with pytest.raises(UserError, match=f"no chat template '{name}'.*'?rag"):
            target.encode("Tom", True, arguments=named)


@pytest.mark.parametrize(
    ("system", "remedy"), [("Be brief.", "Leave --system away"), (None, "leave --chat away")]
)
def test_a_chat_template_that_refuses_is_one_sentence(system: str | None, remedy: str) -> None:
    tokenizer: Any = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(UserError, match=f"System role not supported.*{remedy}"):
        Target(tiny_model("llama"), tokenizer).encode("Tom has 5 apples.", chat=True, system=system)


# ---- Two models may decode together when their token ids mean the same.


def tokens(*names: str) -> Any:
    """A tokenizer with these tokens, numbered in their order."""
    return SimpleNamespace(get_vocab=lambda: {name: index for index, name in enumerate(names)})


def test_a_few_additional_tokens_of_one_tokenizer_pass_and_others_are_refused() -> None:
    check_same_tokenizer(byte_tokenizer(), byte_tokenizer(bos=False))
    check_same_tokenizer(tokens("a", "b", "<think>"), tokens("a", "b"))
    check_same_tokenizer(tokens("a", "b"), tokens("a", "b", "<think>"))
    with pytest.raises(
        UserError, match="another tokenizer: id 1 is 'b' for the target and 'c' for the draft"
    ):
        check_same_tokenizer(tokens("a", "b", "c"), tokens("a", "c", "b"))
    names = [f"t{index}" for index in range(200)]
    check_same_tokenizer(tokens(*names), tokens(*names[:150]))
    with pytest.raises(
        UserError, match="another tokenizer: the target's has 200 tokens and the draft's 100"
    ):
        check_same_tokenizer(tokens(*names), tokens(*names[:100]))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A pair of one tokenizer in target/ and draft/, and the draft with another one in other/."""
    target, draft = tiny_pair()
    save_pair(tmp_path, target, draft, byte_tokenizer())
    draft.save_pretrained(tmp_path / "other")
    byte_tokenizer(reverse=True).save_pretrained(tmp_path / "other")
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
    fitting, other = (
        saved / name if as_name else loaded(saved / name) for name in ("draft", "other")
    )
    build_decoder(target, tokenizer, DecodeOptions(draft=fitting, rule="exact"))
    for build in (
        load_draft,
        lambda draft, *given: build_decoder(*given, DecodeOptions(draft=draft, rule="exact")),
    ):
        with pytest.raises(UserError, match=OTHER):
            build(other, target, tokenizer)


def test_a_model_of_unknown_origin_is_trusted(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of today's working directory is taken for it, and the hub is not asked for the name
    of a folder.
    """
    monkeypatch.setattr(loading, "has_file", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.chdir(saved)
    draft, gone = loaded(Path("other")), tiny_pair()[1]
    monkeypatch.chdir("/")
    for model in (draft, gone):
        assert tokenizer_of("draft", model) is None
        load_draft(model, loaded(saved / "target"), byte_tokenizer())
    load_draft(loaded(saved / "other"), gone)  # nobody knows the tokenizer of this target


def test_a_loaded_draft_is_refused_with_its_origin_and_what_helps(saved: Path) -> None:
    target, draft = loaded(saved / "target"), loaded(saved / "other")
    with pytest.raises(
        UserError, match=f"is that of '{saved / 'other'}'.*draft.config.name_or_path = ''"
    ):
        load_draft(draft, target)
    draft.config.name_or_path = ""
    load_draft(draft, target)


def test_a_model_from_the_hub_is_compared_from_the_cache_alone(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = saved / "hub/models--nobody--here"
    (kept / "snapshots").mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("abc")
    (kept / "snapshots/abc").symlink_to(saved / "other")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(saved / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        type(get_session()), "send", lambda *_, **__: pytest.fail("the hub was asked")
    )
    draft = LlamaForCausalLM.from_pretrained("nobody/here", local_files_only=True)
    with pytest.raises(UserError, match=OTHER):
        load_draft(draft, loaded(saved / "target"))
    (saved / "other/tokenizer.json").write_text("{}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="'nobody/here' could not be read from tokenizer.json"):
        own_tokenizer("draft", "nobody/here")
