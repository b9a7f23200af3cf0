"""GGUF files as they lie on disk, and memory that does not suffice, said before anything is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gistgate.cli.main import app
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters import DRAFTERS
from gistgate.models import loading as memory
from gistgate.models import loading as weights
from gistgate.models.loading import Size, check_gguf, load_draft, load_target, placed, weight_size
from gistgate.rules import make_rule
from tests.gguf_file import write_gguf
from tests.tiny import byte_tokenizer, tiny_pair


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


def test_a_gguf_file_is_unpacked_to_the_dtype(folder: Path) -> None:
    loaded = load_target(str(folder), "bfloat16", "cpu", gguf="target.gguf")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.tokenizer.decode(loaded.encode("Tom"), skip_special_tokens=True) == "Tom"


def test_a_path_to_the_file_is_the_same_model(folder: Path) -> None:
    named, path = load_target(str(folder), gguf="target.gguf"), load_target(str(folder / "target.gguf"))
    pairs = zip(named.model.parameters(), path.model.parameters(), strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)


def test_strict_decoding_of_two_gguf_files_is_greedy(folder: Path) -> None:
    target = load_target(str(folder / "target.gguf"), "float32", "cpu")
    draft = load_draft(str(folder / "draft.gguf"), target.model, target.tokenizer)
    ids = target.encode("Tom has 5 apples")
    decoder = Decoder(target.model, DRAFTERS["model"](draft), make_rule("exact"), 3, tokenizer=target.tokenizer)
    with torch.inference_mode():
        wanted = target.model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, eos_token_id=-1)
    assert decoder.generate([ids], max_new_tokens=8, eos_ids=[])[0].ids == wanted[0, len(ids) :].tolist()


def test_a_draft_with_another_tokenizer_is_refused(folder: Path) -> None:
    target = load_target(str(folder / "target.gguf"), "float32", "cpu")
    with pytest.raises(UserError, match="another tokenizer: id 40"):
        load_draft(str(folder / "foreign.gguf"), target.model, target.tokenizer)


def test_the_command_line_reads_it(folder: Path) -> None:
    done = CliRunner().invoke(app, ["generate", str(folder), "Tom", "--gguf", "target.gguf", "--max-new-tokens", "2"])
    assert done.exit_code == 0, done.output


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no file other.gguf .*draft.gguf, foreign.gguf, target.gguf"):
        check_gguf(str(folder), {"gguf_file": "other.gguf"})


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9])
def test_a_damaged_gguf_file_is_named(tmp_path: Path, folder: Path, share: float) -> None:
    whole, file = (folder / "target.gguf").read_bytes(), tmp_path / "cut.gguf"
    file.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(UserError, match=r"cut.gguf could not be read \(.+\). It is empty, cut off"):
        load_target(str(file), "float32", "cpu")


def test_names_that_are_no_gguf_file_stay_as_they_are(folder: Path) -> None:
    assert placed("owner/name") == ("owner/name", {})
    assert placed("owner/name", "x.gguf") == ("owner/name", {"gguf_file": "x.gguf"})
    assert placed(str(folder / "none.gguf")) == (str(folder / "none.gguf"), {})


def test_bytes_follow_from_headers_and_dtype(tmp_path: Path, folder: Path) -> None:
    model = tiny_pair()[0]
    model.save_pretrained(tmp_path)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert weight_size(str(tmp_path), torch.bfloat16) == Size(2 * numbers, 2 * numbers)
    assert weight_size(str(tmp_path), torch.float32) == Size(4 * numbers, 4 * numbers)
    assert weight_size(str(tmp_path), "auto") == pytest.approx((4 * numbers, 4 * numbers), rel=0.1)
    assert weight_size("owner/name", torch.float32) is None
    quantised = load_target(str(folder / "target.gguf"), "float32", "cpu").model
    unpacked = sum(parameter.numel() for parameter in quantised.parameters())
    assert weight_size(str(folder), torch.bfloat16, "target.gguf") == Size(2 * unpacked, 6 * unpacked)


def test_only_the_files_that_are_loaded_count(tmp_path: Path) -> None:
    model = tiny_pair()[0]
    numbers = sum(parameter.numel() for parameter in model.parameters())
    model.save_pretrained(tmp_path)
    whole = tmp_path / "model.safetensors"
    shutil.copy(whole, tmp_path / "consolidated.safetensors")
    assert weight_size(str(tmp_path), torch.float32) == Size(4 * numbers, 4 * numbers)
    whole.unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert weight_size(str(tmp_path), torch.float32) == Size(4 * numbers, 4 * numbers)
    for damage in ("{", "[]", '{"weight_map": {"a": "none.safetensors"}}'):
        (tmp_path / "model.safetensors.index.json").write_text(damage)
        assert weight_size(str(tmp_path), torch.float32) is None


def test_too_little_memory_is_said_before_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_pair()[0].save_pretrained(tmp_path)
    monkeypatch.setattr(memory, "free_memory", lambda _device: 1000)
    monkeypatch.setattr(weights.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("was loaded"))
    with pytest.raises(UserError, match=r"The weights need 0.0 GB .* are free on cpu"):
        load_target(str(tmp_path), "float32", "cpu")


def test_weights_of_one_byte_are_tested_too() -> None:
    """torch has no `isfinite` for them."""
    whole = torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn)
    broken = torch.tensor([1.0, float("nan")]).to(torch.float8_e4m3fn)
    assert weights.is_finite(whole) and not weights.is_finite(broken)
    assert weights.is_finite(torch.tensor([1, 2], dtype=torch.int8))


def test_pickled_weights_are_not_read_and_the_sentence_says_how_to_convert_them(tmp_path: Path) -> None:
    target, _ = tiny_pair()
    target.config.save_pretrained(tmp_path)
    torch.save(target.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="Only weights in safetensors files are read.*call save_pretrained"):
        load_target(str(tmp_path), "float32", "cpu")
