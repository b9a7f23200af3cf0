"""The stage `draft` on a tiny pair: the target's answers become a trained draft, with which
everything behind decodes; pairs without `of` train nothing.
"""

import os
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.core.files import read_json, read_json_lines
from gistgate.core.identity import identify_model
from gistgate.core.utils import UserError
from gistgate.models.loading import load_draft
from pipeline.decode import make_decoder, strict_decoder
from pipeline.pair.pair import check_pair, load_pair
from pipeline.pair.student import Student
from pipeline.paths import VOCABULARY, prompts_of, reference_of
from pipeline.stages import draft as stage
from pipeline.stages import prompts, reference
from tests.pipeline.parameters import content, parameters
from tests.tiny import byte_tokenizer, save_pair, tiny_pair, write_task

PARAMS = {
    "pair": "tiny",
    "task": "sums",
    "documents": "data",
    "prompts": {"train": 4, "development": 2, "calibration": 2, "guard": 0, "draft": 40, "test": 2},
    "decoding": {"block": 4, "batch_size": 16, "workers": 1},
}
CUT = {"of": "draft", "layers": 1, "vocabulary": 120, "quantise": "int8", "lr": 0.01}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Makes a project with prompts for a pair whose draft has these entries besides."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    Path("data").mkdir()
    write_task(tmp_path / "data", num_train=60)
    save_pair(tmp_path / "models/tiny", *tiny_pair(), byte_tokenizer())
    Path("models/pairs").mkdir()

    def make(draft=CUT, **changes):
        how = {"dtype": "float32", "device": "cpu"}
        folder = tmp_path / "models/tiny"
        drafts = {} if draft.get("of") == "target" else {"model": str(folder / "draft")}
        pair = {"target": {"model": str(folder / "target"), **how}, "draft": how | drafts | draft}
        Path("models/pairs/tiny.yaml").write_text(yaml.safe_dump(pair))
        Path("params.yaml").write_text(yaml.safe_dump(content(**{**PARAMS, **changes})))
        prompts.main()
        return parameters(**PARAMS)

    return make


def test_a_trained_draft_decodes_all_that_comes_behind(project, capsys):
    params = project()
    stage.main()
    report = read_json("models/draft.json")
    agrees = report["agreement"]
    assert report["answers"]["trained"] == 36 and report["answers"]["held_out"] == 4
    assert agrees["trained"] > agrees["cut"]
    assert report["seconds"]["answers"] > 0 and report["seconds"]["training"] > 0
    assert "models/draft: layers" in capsys.readouterr().out

    folder = AutoModelForCausalLM.from_pretrained("models/draft")
    assert len(folder.model.layers) == 1 and len(AutoTokenizer.from_pretrained("models/draft"))
    pair = load_pair(params)
    named = identify_model(pair.draft)
    assert (named.num_layers, named.quantisation) == (1, "int8")
    assert identify_model(folder).fingerprint == report["fingerprint"]
    asked = load_draft("models/draft", pair.target, pair.tokenizer, "main", "int8", VOCABULARY)
    assert identify_model(asked) == named, "the command line loads the same draft"

    reference.main()
    asked = [prompt["ids"] for prompt in read_json_lines(prompts_of("development"))]
    ends = {"max_new_tokens": 12, "eos_ids": [2]}
    plain = make_decoder(pair, stage.PLAIN).generate(asked, **ends)
    strict = strict_decoder(pair, 4).generate(asked, **ends)
    texts = [row["ids"] for row in read_json_lines(reference_of("development"))]
    assert [answer.ids for answer in strict] == [answer.ids for answer in plain]
    assert all(answer.ids[: len(ids)] == ids for answer, ids in zip(plain, texts, strict=True))


def test_the_draft_learns_from_no_prompt_of_another_split(project):
    project()
    rows = {split: read_json_lines(prompts_of(split)) for split in ("draft", "train", "test")}
    ids = [tuple(prompt["ids"]) for split in rows.values() for prompt in split]
    assert len(rows["draft"]) == 40 and len(set(ids)) == len(ids)
    learned = read_json("data/prompts/problems.json")["train"].split()
    assert len(learned) == 44, "gates name the problems of their draft, too"


def test_the_target_can_be_cut_itself_and_its_answers_are_asked_once(project, monkeypatch):
    params = project({"of": "target", "layers": 1, "epochs": 1})
    with monkeypatch.context() as patch:
        patch.setattr(Student, "training_step", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stage.main()
    with monkeypatch.context() as patch:
        patch.setattr(stage, "answering", lambda _params: 1 / 0)
        stage.main()
    pair = load_pair(params)
    assert len(pair.draft.model.layers) == 1 and pair.draft.dtype == torch.float32
    assert not VOCABULARY.exists()


@pytest.mark.parametrize(
    "draft, cause",
    [
        ({"of": "draft"}, "both `of` .* and `layers`"),
        ({"layers": 1}, "both `of` .* and `layers`"),
        ({"vocabulary": 9}, "both `of` .* and `layers`"),
        ({"of": "target", "layers": 1, "model": "x"}, "either a `model`, or `of: target`"),
        ({"of": "draft", "layers": 2}, "2 `layers`, .* allows 1 at most"),
        ({"of": "draft", "layers": 1, "vocabulary": 300}, "300 `vocabulary`, .* allows 259"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_anything_is_answered(project, draft, cause):
    def start():
        project(draft)
        check_pair("tiny")

    with pytest.raises(UserError, match=cause):
        start()


def test_a_draft_needs_prompts_and_is_needed(project):
    params = project(prompts={**PARAMS["prompts"], "draft": 5})
    with pytest.raises(UserError, match="'prompts.draft' in params.yaml is 5"):
        stage.main()
    with pytest.raises(UserError, match="not trained yet. Run `dvc repro draft`"):
        load_pair(params)


def test_other_pairs_train_nothing(project):
    project({}, prompts={**PARAMS["prompts"], "draft": 0})
    stage.main()
    assert [path.name for path in Path("models/draft").iterdir()] == ["README.md"]
    assert read_json("models/draft.json") == {}
    assert Path("data/prompts/draft.jsonl").read_text() == ""
