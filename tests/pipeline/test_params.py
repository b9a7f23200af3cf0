"""params.yaml: what it accepts, and the sentence it answers with otherwise."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gistgate.core.files import write_text
from gistgate.core.utils import UserError
from pipeline.params import Params, parse_params, read_params, recorded
from tests.pipeline.parameters import block, content, parameters

ROOT = Path(__file__).parents[2]


def test_the_projects_own_file_reads():
    params = read_params(ROOT / "params.yaml")
    assert params.method("autojudge").head == "logistic" and params.method("fly").head is None


def test_methods_that_vllm_cannot_run_are_refused_by_name(tmp_path):
    """At once, and not hours later by the stage that meets the first of them."""
    values = content()
    values["methods"] = yaml.safe_load((ROOT / "params.yaml").read_text())["methods"]
    values["engine"]["answers"] = "vllm"
    gated = {"rule": "autojudge", "after": "models/heads/logistic+draft"}
    values["methods"]["seen"] = {**gated, "knob": "risk", "grid": [0.1]}
    values["methods"]["built"] = {"rule": "exact", "engine": "compiled"}
    file = tmp_path / "params.yaml"
    file.write_text(yaml.safe_dump(values))
    refused = (
        r"cannot run 'built' \(an engine or batch_size of its own\), 'seen' \(its gate reads"
        r" .*draft\), 'segments' \(drafter segment\), 'sense' \(drafter sen\)\. Remove"
    )
    with pytest.raises(UserError, match=refused):
        read_params(file)
    for name in ("sense", "segments", "seen", "built"):
        del values["methods"][name]
    file.write_text(yaml.safe_dump(values))
    assert {"exact", "fly", "autojudge"} <= read_params(file).methods.keys()
    for name, key, value in (("decoding", "batch_size", 1), ("calibrate", "fluency", 0.1)):
        further = content(engine={"answers": "vllm"}, **{name: {key: value}})
        file.write_text(yaml.safe_dump(further))
        with pytest.raises(UserError, match=f"params.yaml: {name}.{key} .* engine.answers is vllm"):
            read_params(file)


def test_keys_that_came_later_are_recorded_where_they_say_something():
    """So that the gates that were trained before keep their bytes."""
    assert "answers" not in recorded(block("engine"))
    assert recorded(block("engine", answers="vllm"))["answers"] == "vllm"
    assert "longest" not in recorded(block("label"))
    assert recorded(block("label", longest=1.5))["longest"] == 1.5


def test_yaml_reads_1e_3_as_text_and_we_do_not():
    assert parameters(train={"lr": "1e-3"}).train.lr == 0.001


FLY = {"rule": "fly", "knob": "theta", "grid": [0.5, 0.3]}


def check_all(**changes: Any) -> None:
    params = parse_params(content(**changes))
    for name in params.methods:
        params.method(name)


@pytest.mark.parametrize(
    "changes, sentence",
    [
        (
            {"collect": {"shard_promts": 3}},
            "unknown key 'collect.shard_promts'. Did you mean 'shard_prompts'?",
        ),
        ({"methods": {"fly": {**FLY, "gird": []}}}, "key 'methods.fly.gird'. Did you mean 'grid'?"),
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
        (
            {"methods": {"fly": {**FLY, "grid": [0.5, 0.1, 0.3]}}},
            "not go from strict to loose",
        ),
        (
            {"methods": {"fly": {**FLY, "grid": [0.5, 0.5, 0.3]}}},
            "not go from strict to loose",
        ),
        (
            {"methods": {"fly": {**FLY, "grid": [0.1, 0.3, 0.5]}}},
            "not go from strict to loose",
        ),
        ({"methods": {"fly": {**FLY, "knob": None}}}, "needs both 'knob' (theta) and 'grid'"),
        ({"methods": {"fly": {}}}, "lacks the key 'methods.fly.rule'"),
        ({"methods": {"a": {"rule": "fly"}}}, "needs both 'knob' (theta) and 'grid'"),
        ({"methods": {"a": {**FLY, "rule": "flyy"}}}, "no rule 'flyy'. Did you mean 'fly'?"),
        (
            {"train": {"features": ["h_tok"]}},
            "'train.features': The feature 'h_tok' names no hidden layer",
        ),
        ({"train": {"pilot_features": ["scalar"]}}, "'train.pilot_features': "),
        ({"label": {"price": 0.002}}, "and the head 'effects' (no other) belong together"),
        (
            {"train": {"heads": ["logistic", "mlpp"]}},
            "'train.heads' names 'mlpp'. Did you mean 'mlp'?",
        ),
    ],
)
def test_bad_input_is_one_sentence(changes, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_all(**changes)


@pytest.mark.parametrize("block, key", [(None, "seed"), ("pair_training", "warmup")])
def test_no_key_has_a_default_outside_the_file(block, key):
    """DVC tracks what stands in the file alone."""
    values = content()
    del (values[block] if block else values)[key]
    place = f"{block}.{key}" if block else key
    with pytest.raises(UserError, match=f"lacks the key '{place}'. Add it"):
        parse_params(values)


def test_a_missing_and_a_damaged_file_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="missing"):
        read_params(tmp_path / "params.yaml")
    (tmp_path / "params.yaml").write_text("seed: [")
    with pytest.raises(UserError, match="not valid YAML"):
        read_params(tmp_path / "params.yaml")


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Reads the parameters of a pair that drafts with `suffix`."""
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "models/pairs/alone.yaml", "target: {model: t}\ndrafter: suffix\n")

    def read(**changes: Any) -> Params:
        write_text(tmp_path / "params.yaml", yaml.safe_dump(content(pair="alone", **changes)))
        return read_params()

    return read


def test_without_a_draft_model_the_pairs_drafter_drafts_and_no_head_reads_draft_probabilities(
    alone,
):
    judge = {"rule": "autojudge", "after": "models/heads/logistic", "knob": "risk", "grid": [0.1]}
    lookup = {"rule": "exact", "drafter": "lookup"}
    params = alone(methods={"exact": {"rule": "exact"}, "lookup": lookup, "autojudge": judge})
    drafters = {name: method.drafter for name, method in params.methods.items()}
    assert drafters == {"exact": "suffix", "lookup": "lookup", "autojudge": "suffix"}
    assert "logistic+draft" in parameters().train.heads
    assert params.train.heads == ("logistic", "linear", "mlp") and params.train.extra_features == ()


JUDGE = {"rule": "autojudge", "after": "models/heads/logistic+draft", "knob": "risk", "grid": [0.1]}


@pytest.mark.parametrize(
    "changes, place",
    [
        (
            {"methods": {"mixed": {"rule": "ensemble", "knob": "w", "grid": [0.9, 0.5]}}},
            "methods.mixed.rule",
        ),
        ({"methods": {"a": JUDGE}}, "methods.a.after"),
        ({"train": {"headline_head": "logistic+draft"}}, "train.headline_head"),
        ({"train": {"features": ["scalars", "draft"]}}, "train.features"),
    ],
)
def test_what_reads_draft_probabilities_is_refused_without_a_draft_model(alone, changes, place):
    with pytest.raises(UserError, match=f"'{place}' reads draft .* 'suffix' has none"):
        alone(**changes)
