"""params.yaml: what it accepts, and the sentence it answers with otherwise."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from gistgate.core.files import write_text
from gistgate.core.utils import UserError
from pipeline.params import Params, parse_params, read_params

ROOT = Path(__file__).parents[2]


def test_the_projects_own_file_reads():
    params = read_params(ROOT / "params.yaml")
    assert params.method("autojudge").head == "logistic" and params.method("fly").head is None
    assert params.method("fly").settings({"window": 2}, 0.5) == {
        "entropy": "top3",
        "window": 2,
        "theta": 0.5,
    }


def test_a_nested_block_keeps_its_own_defaults():
    """A draft with one key changed is still a draft, not a target."""
    assert (
        parse_params({"pair_training": {"draft": {"steps": 3}}}).pair_training.draft.hidden_size
        == 128
    )


def test_yaml_reads_1e_3_as_text_and_we_do_not():
    assert parse_params({"train": {"lr": "1e-3"}}).train.lr == 0.001


def test_environment_names_the_file(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("seed: 7\n")
    monkeypatch.setenv("GISTGATE_PARAMS", str(tmp_path / "mine.yaml"))
    assert read_params().seed == 7


FLY = {"rule": "fly", "knob": "theta", "grid": [0.5, 0.3]}


def check_all(content):
    params = parse_params(content)
    for name in params.methods:
        params.method(name)


@pytest.mark.parametrize(
    "content, sentence",
    [
        (
            {"collect": {"shard_promts": 3}},
            "unknown key 'collect.shard_promts'. Did you mean 'shard_prompts'?",
        ),
        (
            {"decoding": {"block": 0}},
            "'decoding.block' is 0. It should be greater than or equal to 1",
        ),
        ({"decoding": {"block": "8"}}, "It should be a valid integer"),
        ({"train": {"lr": float("nan")}}, "It should be a finite number"),
        ({"calibrate": {"budgets": [0.02, 3]}}, "'calibrate.budgets' is 3."),
        ({"calibrate": {"budgets": 0.02}}, "It should be a valid array"),
        ({"prompts": None}, "It should be an object"),
        ({"train": {"headline_head": "mpl"}}, "not among 'train.heads'"),
        ({"methods": {"fly": {**FLY, "grid": [0.5, 0.1, 0.3]}}}, "goes up and down"),
        ({"methods": {"fly": {**FLY, "grid": [0.1, 0.3, 0.5]}}}, "'fly' goes from loose to strict"),
        ({"methods": {"fly": {**FLY, "knob": None}}}, "needs both 'knob' and 'grid'"),
        ({"methods": {"fly": {}}}, "lacks the key 'methods.fly.rule'"),
        ({"methods": {"a": {"rule": "fly"}}}, "Give it 'knob: theta' and a 'grid'"),
        (
            {"train": {"features": ["h_tok"]}},
            "'train.features': The feature 'h_tok' names no hidden layer",
        ),
        ({"train": {"pilot_features": ["scalar"]}}, "'train.pilot_features': "),
        ({"label": {"price": 0.002}}, "and the head 'effects' (no other) belong together"),
        ({"train": {"heads": ["logistic", "effects"]}}, "Set all of them, or none."),
        (
            {"train": {"heads": ["logistic", "mlpp"]}},
            "'train.heads' names 'mlpp'. Did you mean 'mlp'?",
        ),
    ],
)
def test_bad_input_is_one_sentence(content, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_all(content)


def test_a_missing_and_a_damaged_file_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="missing"):
        read_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("seed: [")
    with pytest.raises(UserError, match="not valid YAML"):
        read_params(tmp_path / "params.yaml")


def test_the_projects_own_file_shows_every_key_with_its_default():
    """DVC tracks what stands in the file; who leaves a key out runs as the project's own file
    does.
    """
    own, default = (
        yaml.safe_load((ROOT / "params.yaml").read_text()),
        json.loads(json.dumps(asdict(Params()))),
    )
    for content in (own, default):
        del content["methods"]
        del content["prompts"][
            "draw"
        ]  # says which prompts of the embedded world were judged before
    assert own == default


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Reads the parameters of a pair that drafts with `suffix`."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "models/pairs/alone.yaml", "target: {model: t}\ndrafter: suffix\n")

    def read(**content):
        write_text(tmp_path / "params.yaml", yaml.safe_dump({"pair": "alone", **content}))
        return read_params()

    return read


def test_without_a_draft_model_methods_use_the_drafter_of_the_pair_and_no_head_reads_draft_probabilities(
    alone,
):
    judge = {"rule": "autojudge", "after": "models/heads/logistic", "knob": "risk", "grid": [0.1]}
    other = {"rule": "exact", "drafter": "lookup"}
    params = alone(methods={"exact": {"rule": "exact"}, "other": other, "autojudge": judge})
    drafters = {name: method.drafter for name, method in params.methods.items()}
    assert drafters == {"exact": "suffix", "other": "lookup", "autojudge": "suffix"}
    assert "logistic+draft" in Params().train.heads
    assert params.train.heads == ("logistic", "linear", "mlp") and params.train.extra_features == ()


JUDGE = {"rule": "autojudge", "after": "models/heads/logistic+draft", "knob": "risk", "grid": [0.1]}


@pytest.mark.parametrize("content, sentence", [
    ({"methods": {"mixed": {"rule": "ensemble", "knob": "w", "grid": [0.9, 0.5]}}},
     "the method 'mixed' has the rule 'ensemble', which reads draft probabilities, .* 'suffix' has none"),
    ({"methods": {"a": JUDGE}}, r"'methods\.a\.after' names the head 'logistic\+draft', which reads draft prob"),
    ({"train": {"headline_head": "logistic+draft"}}, r"'train.headline_head' names the head 'logistic\+draft'"),
    ({"train": {"features": ["scalars", "draft"]}}, "'train.features' names 'draft'"),
])  # fmt: skip
def test_what_reads_draft_probabilities_is_refused_without_a_draft_model(alone, content, sentence):
    with pytest.raises(UserError, match=sentence):
        alone(**content)
