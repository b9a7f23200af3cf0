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
MINE = SimpleNamespace(pair="mine")
PAIR_NAMES = sorted(path.stem for path in PAIRS.glob("*.yaml"))


def save(name: str, vocab_size: int = 272, reverse: bool = False) -> None:
    LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **SIZES)).save_pretrained(name)
    tokenizer = byte_tokenizer(reverse=reverse)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(name)


def name_pair(**changes) -> None:
    """The file of the pair `mine` of the folders `target` and `draft`."""
    content = {
        "target": {"model": "target", "dtype": "float32", "device": "cpu"},
        "draft": {"model": "draft", "dtype": "bfloat16", "device": "cpu"},
    }
    for key, value in changes.items():
        content[key] = content[key] | value if isinstance(value, dict) else value
    PAIRS.mkdir(parents=True, exist_ok=True)
    (PAIRS / "mine.yaml").write_text(yaml.safe_dump(content))


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A working folder with a target and a draft."""
    monkeypatch.chdir(tmp_path)
    save("target")
    save("draft", 260)


def test_a_pair_with_padded_vocabularies_loads(models):
    name_pair()
    pair = load_pair(MINE)
    assert pair.name == "mine"
    assert pair.target.dtype == torch.float32
    assert pair.draft.dtype == torch.bfloat16
    assert not pair.target.training
    assert not any(parameter.requires_grad for parameter in pair.target.parameters())
    assert pair.tokenizer.padding_side == "left"
    assert pair.tokenizer.pad_token_id == pair.tokenizer.eos_token_id
    assert pair.files == (PAIRS / "mine.yaml", Path("target"), Path("draft"))
    report = check_pair("mine")
    sizes = (report["target"]["vocabulary"], report["draft"]["vocabulary"], report["tokens"])
    assert sizes == (272, 260, 259)


@pytest.mark.parametrize("look", [load_pair, lambda params: check_pair(params.pair)])
@pytest.mark.parametrize(
    "vocab_size, reverse, message",
    [
        (272, True, "another tokenizer: id 3 is .* for the target and .* for the draft"),
        (100, False, "The draft knows 100 tokens, the tokenizer 259"),
    ],
)
def test_different_vocabularies_are_refused(models, look, vocab_size, reverse, message):
    save("draft", vocab_size, reverse)
    name_pair()
    with pytest.raises(UserError, match=message):
        look(MINE)


def test_an_unknown_pair_offers_the_nearest_name():
    with pytest.raises(UserError, match="no pair 'embeded' .* Did you mean 'embedded'?"):
        read_pair("embeded")


def test_a_drafter_stands_in_for_a_draft_model(models):
    name_pair(draft=None, drafter="suffix")
    pair = load_pair(MINE)
    assert (pair.draft, pair.drafter) == (None, "suffix")
    assert pair.files == (PAIRS / "mine.yaml", Path("target"))
    report = check_pair("mine")
    assert (report["draft"], report["drafter"]) == (None, "suffix")
    assert report["target"]["vocabulary"] > 0
    with pytest.raises(UserError, match="The pair 'mine' has no draft model"):
        _ = pair.draft_model


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"drafer": "x"}, "unknown key 'drafer'. Did you mean 'drafter'?"),
        ({"draft": {"model": "models/none/target"}}, "folder .* is missing. Run `dvc repro pair`"),
        ({"draft": {"model": "nobody/nothing"}}, "could not be loaded .* HF_HUB_OFFLINE=0"),
        ({"draft": {"dtype": "brainfloat"}}, "dtype 'brainfloat'"),
        ({"target": {"quantise": "int3"}}, "Use one of: none, int8, int4, w8a8, gguf"),
        ({"drafter": "lookup"}, "needs one source of drafts"),
    ],
)
def test_what_is_wrong_in_a_pairs_file_is_one_sentence(models, monkeypatch, changes, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name_pair(**changes)
    with pytest.raises(UserError, match=message):
        load_pair(MINE)


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    source = ModelSource("~/models/qwen")
    assert source.model == str(tmp_path / "models/qwen")
    assert source.is_folder


@pytest.mark.parametrize("name", PAIR_NAMES)
def test_every_file_of_the_project_reads(name):
    roles = read_pair(name).roles
    assert len({source.model for source in roles.values()}) == len(roles)


def test_the_stage_trains_nothing_for_another_pair(models, monkeypatch):
    name_pair()
    params = parameters(pair="mine", world={"task_train": 5, "task_test": 5})
    monkeypatch.setattr(stage, "read_params", lambda: params)
    stage.main()
    assert [path.name for path in Path("models/embedded").iterdir()] == ["README.md"]
    assert '"pair": "mine"' in Path("models/pair.json").read_text()
    assert len(Path("data/world/test.jsonl").read_text().splitlines()) == 5


def test_a_pair_quantises_its_draft_alone(models):
    name_pair(draft={"quantise": "int8"})
    pair = load_pair(MINE)
    assert identify_model(pair.draft).quantisation == "int8"
    assert identify_model(pair.target).quantisation is None


def test_gates_call_models_as_the_pairs_file_names_them(models):
    """A name is for people: what a gate is bound to stays the same."""
    name_pair()
    plain = partners_of(load_pair(MINE))
    name_pair(target={"name": "owner/big"}, draft={"name": "owner/small"})
    named = partners_of(load_pair(MINE))
    assert [partner.name for partner in plain.values()] == ["target", "draft", "target"]
    assert [partner.name for partner in named.values()] == ["owner/big", "owner/small", "owner/big"]
    for role in ("target", "draft"):
        assert model_scope(named[role]) == model_scope(plain[role])
    assert named["tokenizer"].vocabulary == plain["tokenizer"].vocabulary
