"""Models by name: GGUF files, damaged weights, and entries of a model's own configuration."""

import warnings
from pathlib import Path

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.models.loading import check_smaller, is_finite, load_draft, load_target
from gistgate.rules import make_rule
from pipeline.pair.pair import ModelSource, load_model
from tests.architectures import tiny_model
from tests.gguf_file import write_gguf
from tests.tiny import byte_tokenizer, tiny_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the GGUF files of a target and a draft, and one with another tokenizer."""
    place = tmp_path_factory.mktemp("quantised")
    write_gguf(place / "target.gguf")
    write_gguf(place / "draft.gguf", seed=1)
    vocabulary = byte_tokenizer().get_vocab()
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    tokens[40], tokens[41] = tokens[41], tokens[40]
    write_gguf(place / "foreign.gguf", tokens)
    return place


def test_a_gguf_file_is_one_model_by_folder_and_by_path_and_is_unpacked_to_the_dtype(
    folder: Path,
) -> None:
    named = load_target(str(folder), "bfloat16", "cpu", gguf="target.gguf", quantise="none")
    path = load_target(str(folder / "target.gguf"), "bfloat16", "cpu", quantise="none")
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
    drafter = DRAFTERS["model"](draft)
    decoder = Decoder(target.model, drafter, make_rule("exact"), 3, tokenizer=target.tokenizer)
    with torch.inference_mode():
        greedy = target.model.generate(
            torch.tensor([ids]), max_new_tokens=8, do_sample=False, eos_token_id=-1
        )
    answer = decoder.generate([ids], max_new_tokens=8, eos_ids=[])[0]
    assert answer.ids == greedy[0, len(ids) :].tolist()
    rounded = load_draft(
        str(folder / "draft.gguf"), target.model, target.tokenizer, quantised="int8"
    )
    assert rounded.quantised == "int8" and not hasattr(rounded.config, "quantization_config")
    with pytest.raises(UserError, match="another tokenizer: id 40"):
        load_draft(str(folder / "foreign.gguf"), target.model, target.tokenizer)


def test_a_damaged_gguf_file_is_named(tmp_path: Path, folder: Path) -> None:
    whole = (folder / "target.gguf").read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(whole[: int(0.9 * len(whole))])
    with pytest.raises(UserError, match=r"cut.gguf' could not be loaded \(.+\). .* damaged"):
        load_target(str(file), "float32", "cpu")


def test_weights_of_one_byte_are_tested_too() -> None:
    """torch has no `isfinite` for them."""
    narrow = torch.float8_e4m3fn
    assert is_finite(torch.tensor([1.0, -2.0]).to(narrow))
    assert not is_finite(torch.tensor([1.0, float("nan")]).to(narrow))
    assert is_finite(torch.tensor([1, 2], dtype=torch.int8))


def test_a_draft_larger_than_its_target_is_refused(tmp_path: Path) -> None:
    target, draft = tiny_pair()
    check_smaller(target, draft)
    target.model.layers = target.model.layers[:1]
    draft.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="Drafting would cost more than it saves"):
        load_draft(tmp_path, target)


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
    sentences = [str(warning.message) for warning in caught if "GistGate" in str(warning.message)]
    assert len(sentences) == (penalty != 1.0)
    assert all("asks for repetition_penalty=1.2, which" in sentence for sentence in sentences)


@pytest.mark.parametrize("has_instructions", [True, False])
def test_bfloat16_on_a_processor_without_instructions_for_it_is_told(
    has_instructions: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_instructions)
    source = ModelSource(str(tmp_path), device="cpu")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_model(source)
    told = [str(warning.message) for warning in caught]
    slow = [sentence for sentence in told if "--quantise int4" in sentence]
    assert bool(slow) != has_instructions
