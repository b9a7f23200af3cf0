"""Training the embedded pair: a few steps learn, and the folders are ordinary."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gistgate.core.utils import UserError
from pipeline.pair import training
from pipeline.pair.pair import load_pair, read_pair
from pipeline.pair.training import train_model
from pipeline.pair.world import documents, train_tokenizer
from pipeline.stages import pair as stage
from tests.pipeline.parameters import parameters

SIZES = {
    "hidden_size": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "intermediate_size": 48,
    "documents": 64,
    "batch_size": 8,
    "steps": 12,
}
PARAMS = parameters(
    seed=3,
    world={"task_train": 30, "task_test": 20},
    pair_training={
        "target": SIZES,
        "draft": {**SIZES, "hidden_size": 16},
        "check_problems": 4,
        "min_target_accuracy": 0,
    },
)
TRAINING = PARAMS.pair_training
TINY = TRAINING.target
TOKENIZER = train_tokenizer()
CORPUS = documents(PARAMS.world, 1, "corpus", TINY.documents)


def test_a_training_learns_and_gives_equal_weights_again():
    (model, losses), (again, _) = (
        train_model("target", TINY, TRAINING, TOKENIZER, CORPUS, 1) for _ in range(2)
    )
    assert len(losses) == TINY.steps and losses[-1] < losses[0] - 0.5
    assert all(map(torch.equal, model.parameters(), again.parameters()))


def test_the_stage_writes_ordinary_folders_and_a_report(monkeypatch, tmp_path):
    pairs = Path("models/pairs").resolve()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models/pairs").symlink_to(pairs)
    monkeypatch.setattr(stage, "read_params", lambda: PARAMS)
    stage.main()
    for role, size in (("target", TINY), ("draft", TRAINING.draft)):
        model = AutoModelForCausalLM.from_pretrained(f"models/embedded/{role}")
        tokenizer = AutoTokenizer.from_pretrained(f"models/embedded/{role}")
        assert model.config.hidden_size == size.hidden_size and model.dtype == torch.float32
        assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 2
        assert model.generation_config.pad_token_id == tokenizer.pad_token_id == 0
    report = json.loads(Path("models/pair.json").read_text())
    assert 0 <= report["target"]["accuracy"] <= 1 and report["strict_mean_accepted_length"] >= 1
    assert report["draft"]["parameters"] < report["target"]["parameters"]
    assert len(Path("data/world/train.jsonl").read_text().splitlines()) == 30
    pair = load_pair(PARAMS)
    assert pair.name == "embedded" and Path("models/embedded/target") in pair.files
    assert not pair.target.training and not any(p.requires_grad for p in pair.draft.parameters())


def test_a_target_that_is_too_weak_is_refused(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for step, stand_in in {
        "side_by_side": lambda *_: [[1.0], [1.0]],
        "measure": lambda _params: {"target": {"accuracy": 0.5}},
        **dict.fromkeys(("track", "fingerprint"), lambda *_: None),
    }.items():
        monkeypatch.setattr(stage, step, stand_in)
    with pytest.raises(UserError, match="lower the demand"):
        stage.train_embedded(
            replace(PARAMS, pair_training=replace(TRAINING, min_target_accuracy=1.0))
        )


def test_a_pair_of_its_own_size():
    """models/pairs/embedded-large.yaml says sizes; what it leaves out comes from params.yaml."""
    sizes_of = read_pair("embedded-large").training
    block = stage.replaced(replace(TRAINING, warmup=0.2), sizes_of, "embedded-large.yaml")
    assert (block.warmup, block.check_problems) == (0.2, 4)
    with torch.device("meta"):
        sizes = [
            training.make_model(role, TOKENIZER, 0).num_parameters() / 1e6
            for role in (block.target, block.draft)
        ]
    assert 150 < sizes[0] < 400 and 10 < sizes[1] < 20
    assert stage.replaced(TRAINING, read_pair("embedded").training, "embedded.yaml") == TRAINING
