"""Names, folders and files of models: what lies there is told, and what helps."""

from pathlib import Path

import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError

from gistgate.core.files import POINTER
from gistgate.core.utils import UserError
from gistgate.models import places
from gistgate.models.loading import load_target
from gistgate.models.places import load_remedy, weight_files
from gistgate.models.tokenizers import load_tokenizer
from tests.tiny import tiny_pair


def test_only_the_files_that_are_loaded_are_files_with_weights(tmp_path: Path) -> None:
    model = tiny_pair()[0]
    whole = tmp_path / "model.safetensors"
    model.save_pretrained(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(whole.read_bytes())
    assert weight_files(str(tmp_path)) == [whole]
    whole.unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1 and weight_files(str(tmp_path)) == shards


def caused(error: Exception) -> OSError:
    """The error as transformers raises it: an OSError of its own in front of the hub's."""
    outer = OSError("We have a problem.")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (caused(GatedRepoError.__new__(GatedRepoError)), "huggingface.co/owner/name"),
        (caused(LocalEntryNotFoundError.__new__(LocalEntryNotFoundError)), "HF_HUB_OFFLINE=0"),
        (OSError("We couldn't connect to 'https://huggingface.co'"), "name and the connection"),
        (OSError("404"), "its revision"),
        (OSError("no file named model.safetensors"), "Only weights in safetensors files"),
        (ImportError("No module named 'compressed_tensors'"), "Install what the message names"),
    ],
)
def test_the_remedy_follows_the_cause(error: Exception, remedy: str) -> None:
    assert remedy in load_remedy("owner/name", error)


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        ({}, "has no config.json"),
        ({"adapter_config.json": '{"base_model_name_or_path": "a/b"}'}, "is an adapter of 'a/b'"),
        ({"step-1000/model.safetensors": "", "step-200/model.safetensors": ""}, "Name one: .*-200"),
        ({"snapshots/abc/model.safetensors": ""}, "Name one: .*snapshots/abc"),
        ({"tiny.gguf": ""}, "holds GGUF files. Name one with its path: tiny.gguf"),
        ({"config.json": '{"model_type": "t5"}'}, "is a t5, which does not continue texts"),
        (
            {"config.json": '{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'},
            "is a BertForMaskedLM",
        ),
        ({"config.json": '{"model_type": "new1"}'}, "is a 'new1', which .* does not know"),
        ({"config.json": '{"model_type": "new1", "auto_map": {}}'}, "runs code of its makers"),
        (
            {"model.safetensors": f"{POINTER}v1\noid sha256:1"},
            "safetensors is a pointer of Git LFS",
        ),
        ({"tokenizer.json": f"{POINTER}v1\noid sha256:1"}, "json is a pointer of Git LFS"),
        ({"config.json": "<!DOCTYPE html><html>"}, "config.json is a web page"),
        ({"config.json": "", "model.safetensors": "x"}, "config.json is an empty file"),
        ({"config.json": "[]"}, "has no object in config.json"),
    ],
)
def test_a_folder_is_told_by_what_lies_there(
    tmp_path: Path, files: dict[str, str], cause: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=cause):
        load_target(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("nowhere/", "does not exist"),
        ("none.gguf", "does not exist"),
        ("text.txt", "is a file"),
        ("TINY.GGUF", "is in TINY.GGUF.*Rename it"),
        ("a-00001-of-00002.gguf", "Join the parts"),
        ("pointer.gguf", "pointer.gguf is a pointer of Git LFS"),
        ("cut.gguf", "cut.gguf' could not be loaded .*fetch it again"),
    ],
)
def test_a_name_of_no_folder_says_what_is_wrong_with_it(
    tmp_path: Path, name: str, cause: str
) -> None:
    for file in ("text.txt", "TINY.GGUF", "a-00001-of-00002.gguf"):
        (tmp_path / file).write_text("")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    (tmp_path / "pointer.gguf").write_text(f"{POINTER}v1\noid sha256:1")
    with pytest.raises(UserError, match=cause):
        load_target(f"{tmp_path}/{name}")


def test_a_sentencepiece_model_alone_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(places, "is_sentencepiece_available", lambda: False)
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>")
    with pytest.raises(UserError, match="is a SentencePiece model alone"):
        load_tokenizer(str(tmp_path))


def test_a_link_to_weights_that_are_away_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(UserError, match="is a link to a file that is away"):
        load_target(str(tmp_path))


def test_a_folder_without_weights_is_told_from_one_with_pickled_ones(tmp_path: Path) -> None:
    error = OSError("no file named model.safetensors")
    assert "holds no weights" in load_remedy(str(tmp_path), error)
    (tmp_path / "pytorch_model.bin").write_text("")
    assert "Only weights in safetensors files" in load_remedy(str(tmp_path), error)
