"""Pairs from models/pairs/: loading, and one sentence for everything that can be wrong with
them.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import LlamaConfig, LlamaForCausalLM

from gistgate.core.identity import identify_model, model_scope
from gistgate.core.utils import UserError
from pipeline.heads.job import partners_of
from pipeline.pair.pair import ModelSource, check_pair, load_pair, read_pair
from pipeline.paths import PAIRS
from pipeline.stages import pair as stage
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def save(folder: Path, vocab_size: int = 272, reverse: bool = False) -> Path:
    LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **SIZES)).save_pretrained(folder)
    tokenizer = byte_tokenizer(reverse=reverse)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    return folder


def name_pair(folder: Path, target: Path, draft: Path, /, **more) -> SimpleNamespace:
    """A file `mine.yaml` in `folder`, and parameters that name it."""
    models = {"target": (target, "float32"), "draft": (draft, "bfloat16")}
    content = {
        role: {"model": str(one), "dtype": dtype, "device": "cpu"}
        for role, (one, dtype) in models.items()
    }
    for key, value in more.items():
        content[key] = {**content[key], **value} if key in content else value
    (folder / "mine.yaml").write_text(yaml.safe_dump(content))
    return SimpleNamespace(pair="mine")


@pytest.fixture
def target(tmp_path):
    return save(tmp_path / "target")


@pytest.fixture
def draft(tmp_path):
    return save(tmp_path / "draft")


def test_a_pair_with_padded_vocabularies_loads(tmp_path, target):
    params = name_pair(tmp_path, target, save(tmp_path / "draft", 260))
    pair = load_pair(params, tmp_path)
    assert (pair.name, pair.target.dtype, pair.draft.dtype) == (
        "mine",
        torch.float32,
        torch.bfloat16,
    )
    assert not pair.target.training and not any(p.requires_grad for p in pair.target.parameters())
    assert (
        pair.tokenizer.padding_side == "left"
        and pair.tokenizer.pad_token_id == pair.tokenizer.eos_token_id
    )
    assert pair.files == (tmp_path / "mine.yaml", target, tmp_path / "draft")
    report = check_pair("mine", tmp_path)
    assert (report["target"]["vocabulary"], report["draft"]["vocabulary"], report["tokens"]) == (
        272,
        260,
        259,
    )


@pytest.mark.parametrize(
    "look", [load_pair, lambda params, folder: check_pair(params.pair, folder)]
)
@pytest.mark.parametrize(
    "vocab_size, reverse, message",
    [
        (272, True, "another tokenizer: id 3 is .* for the target and .* for the draft"),
        (100, False, "The draft knows 100 tokens, the tokenizer 259"),
    ],
)
def test_different_vocabularies_are_refused(tmp_path, target, look, vocab_size, reverse, message):
    params = name_pair(tmp_path, target, save(tmp_path / "draft", vocab_size, reverse))
    with pytest.raises(UserError, match=message):
        look(params, tmp_path)


def test_an_unknown_pair_offers_the_nearest_name():
    with pytest.raises(
        UserError, match="There is no pair 'embeded' in models/pairs. Did you mean 'embedded'?"
    ):
        read_pair("embeded")


def test_a_drafter_stands_in_for_a_draft_model(tmp_path, target):
    named = {
        "target": {"model": str(target), "dtype": "float32", "device": "cpu"},
        "drafter": "suffix",
    }
    (tmp_path / "alone.yaml").write_text(yaml.safe_dump(named))
    pair = load_pair(SimpleNamespace(pair="alone"), tmp_path)
    assert (pair.draft, pair.drafter) == (None, "suffix")
    assert pair.files == (tmp_path / "alone.yaml", target)
    found = check_pair("alone", tmp_path)
    assert (found["draft"], found["drafter"]) == (None, "suffix") and found["target"][
        "vocabulary"
    ] > 0
    with pytest.raises(UserError, match="The pair 'alone' has no draft model"):
        _ = pair.draft_model


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (
            {"tokeniser": "x"},
            r"mine.yaml has an unknown key 'tokeniser'. Did you mean 'tokenizer'?",
        ),
        (
            {"draft": {"model": "models/none/target"}},
            "model folder .* is missing. Run `dvc repro pair`",
        ),
        (
            {"draft": {"model": "nobody/nothing"}},
            "could not be loaded .* HF_HUB_OFFLINE=0 .* local folder",
        ),
        ({"draft": {"dtype": "brainfloat"}}, "dtype 'brainfloat'"),
        ({"target": {"quantise": "int8"}}, "Only `draft` has `quantise`"),
        ({"drafter": "lookup"}, r"needs one source of drafts: .*`drafter: suffix`"),
    ],
)
def test_what_is_wrong_in_a_pairs_file_is_one_sentence(
    tmp_path, target, monkeypatch, changes, sentence
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=sentence):
        load_pair(name_pair(tmp_path, target, target, **changes), tmp_path)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source = ModelSource("~/models/qwen")
    assert source.model == str(tmp_path / "models/qwen") and source.is_folder


@pytest.mark.parametrize("path", sorted(PAIRS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_of_the_project_reads(path):
    source = read_pair(path.stem)
    assert len({one.model for one in source.roles.values()}) == len(source.roles)


def test_the_stage_trains_nothing_for_another_pair(tmp_path, target, draft, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/pairs").mkdir(parents=True)
    name_pair(tmp_path / "models/pairs", target, draft)
    params = parameters(pair="mine", world={"task_train": 5, "task_test": 5})
    monkeypatch.setattr(stage, "read_params", lambda: params)
    stage.main()
    assert [path.name for path in Path("models/embedded").iterdir()] == ["README.md"]
    assert '"pair": "mine"' in Path("models/pair.json").read_text()
    assert len(Path("data/world/test.jsonl").read_text().splitlines()) == 5


def test_a_pair_quantises_its_draft_alone(tmp_path, target, draft):
    pair = load_pair(name_pair(tmp_path, target, draft, draft={"quantise": "int8"}), tmp_path)
    assert (
        identify_model(pair.draft).quantisation == "int8"
        and identify_model(pair.target).quantisation is None
    )


def test_gates_call_models_as_the_pairs_file_names_them(tmp_path, target, draft):
    """A name is for people: what a gate is bound to stays the same."""
    names = {"target": {"name": "owner/big"}, "draft": {"name": "owner/small"}}
    plain, named = (
        partners_of(load_pair(name_pair(tmp_path, target, draft, **more), tmp_path))
        for more in ({}, names)
    )
    assert {role: one.name for role, one in plain.items()} == {
        "target": "target",
        "draft": "draft",
        "tokenizer": "target",
    }
    assert [one.name for one in named.values()] == ["owner/big", "owner/small", "owner/big"]
    for role in ("target", "draft"):
        assert model_scope(named[role]) == model_scope(plain[role])
    assert named["tokenizer"].vocabulary == plain["tokenizer"].vocabulary
