"""The files of a new project, and the sentences where it cannot be written."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from gistgate.errors import UserError
from gistgate.project.create import OWN_TASK, Wanted, create, shipped_tasks
from pipeline.pairs.loading import load_model
from pipeline.pairs.source import read_pair
from pipeline.params import read_params
from tests.gguf_file import write_gguf


def made(tmp_path, **said):
    folder = tmp_path / "my gate"
    create(Wanted(folder, **{"target": "owner/target", "draft": "owner/draft", **said}))
    return folder


def test_a_project_says_what_the_user_said(tmp_path):
    options = {"target_revision": "v1", "dtype": "float16", "device_map": "auto", "chat": True, "task": "gsm8k"}
    folder = made(tmp_path, **options)
    params = read_params(folder / "params.yaml")
    assert (params.pair, params.task, params.prompting.chat_template) == ("my-gate", "gsm8k", True)
    source = read_pair("my-gate", folder / "models/pairs")
    assert (source.target.model, source.target.revision, source.target.device_map) == ("owner/target", "v1", "auto")
    assert (source.draft.model, source.draft.revision, source.draft.dtype) == ("owner/draft", None, "float16")
    assert (folder / "requirements.txt").read_text().startswith("gistgate[pipeline]==")
    assert yaml.safe_load((folder / "data/tasks/gsm8k.yaml").read_text())["task"] == "gsm8k"


@pytest.mark.parametrize("name", ["2024", "007", "on", "1.5"])
def test_a_name_that_yaml_would_read_otherwise_stays_a_name(tmp_path, name):
    create(Wanted(tmp_path / name, target="owner/target", draft="owner/draft", task="gsm8k"))
    assert read_params(tmp_path / name / "params.yaml").pair == read_pair_name(tmp_path / name)


def read_pair_name(folder):
    """The name of the project's one pair file."""
    (file,) = (folder / "models/pairs").glob("*.yaml")
    return file.stem


def test_what_the_file_leaves_out_has_the_defaults_of_the_embedded_run(tmp_path):
    """One list of defaults: an embedded project differs from this repository's parameters in nothing that matters.

    Its task has no solved examples of its own, so that leaving their number to the task changes nothing.
    """
    create(Wanted(tmp_path / "new", task="wordproblems"))
    here = read_params()  # whose calibration prompts are a later draw, because earlier ones were judged
    own = {"prompts": replace(here.prompts, draw=1), "prompting": replace(here.prompting, num_fewshot=None)}
    assert read_params(tmp_path / "new/params.yaml") == replace(here, **own)


def test_a_local_folder_is_named_by_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'a "target"').mkdir()
    folder = made(tmp_path, target='./a "target"')
    assert read_pair("my-gate", folder / "models/pairs").target.model == str(tmp_path / 'a "target"')


def test_a_gguf_file_is_named_with_its_folder(tmp_path):
    """Two ways to say it; the pair that is read from the project decodes nothing else than the file."""
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "models" / "target.gguf")
    write_gguf(tmp_path / "models" / "draft.gguf", seed=1)
    models = str(tmp_path / "models")
    folder = made(tmp_path, target=f"{models}/target.gguf", draft=models, draft_gguf="draft.gguf", dtype="float32")
    source = read_pair("my-gate", folder / "models/pairs")
    assert [(one.model, one.gguf_file) for one in (source.target, source.draft)] == [
        (models, "target.gguf"),
        (models, "draft.gguf"),
    ]
    target, draft = (load_model(one).get_input_embeddings().weight for one in (source.target, source.draft))
    assert target.shape == draft.shape and not torch.equal(target, draft) and draft.dtype == torch.float32
    assert (folder / "requirements.txt").read_text().startswith("gistgate[pipeline,gguf]==")


def test_a_gguf_file_on_the_hub_is_passed_on(tmp_path):
    source = read_pair("my-gate", made(tmp_path, target_gguf="big.gguf", target_revision="v2") / "models/pairs")
    assert source.target.place["gguf_file"] == "big.gguf" and source.target.place["revision"] == "v2"
    assert "gguf_file" not in source.draft.place


def test_an_own_task_can_be_filled_in(tmp_path):
    folder = made(tmp_path)
    task = yaml.safe_load((folder / f"data/tasks/{OWN_TASK}.yaml").read_text())
    assert task["task"] == OWN_TASK and task["doc_to_text"] == "Question: {{question}}\nAnswer:"
    rows = (folder / task["dataset_kwargs"]["data_files"]["train"]).read_text().splitlines()
    assert set(json.loads(rows[0])) == {"question", "answer"}


def test_a_task_file_is_copied(tmp_path):
    (tmp_path / "mine.yaml").write_text("task: mine\n")
    folder = made(tmp_path, task=str(tmp_path / "mine.yaml"))
    assert (folder / "data/tasks/mine.yaml").read_text() == "task: mine\n"
    assert read_params(folder / "params.yaml").task == "mine"


def test_a_task_brings_what_it_is_made_of(tmp_path):
    folder = made(tmp_path, task="gsm8k-chat")
    assert {path.name for path in (folder / "data/tasks").iterdir()} == {"gsm8k-chat.yaml", "gsm8k.yaml"}
    mine = tmp_path / "mine"
    (mine / "judges").mkdir(parents=True)
    (mine / "own.yml").write_text("include: base.yaml\ntask: own\n")
    (mine / "base.yaml").write_text("process_results: !function judges.sums.score\n")
    (mine / "judges/sums.py").write_text("def score(): ...\n")
    other = tmp_path / "other"
    create(Wanted(other, "a/b", "a/c", task=str(mine / "own.yml")))
    for name, source in (("own.yaml", "own.yml"), ("base.yaml", "base.yaml"), ("judges/sums.py", "judges/sums.py")):
        assert (other / "data/tasks" / name).read_text() == (mine / source).read_text()
    (mine / "outside.yaml").write_text("include: ../far.yaml\n")
    (tmp_path / "far.yaml").write_text("task: far\n")
    with pytest.raises(UserError, match="takes in .*far.yaml, which lies outside its folder"):
        create(Wanted(tmp_path / "third", "a/b", "a/c", task=str(mine / "outside.yaml")))


def test_a_task_of_lm_eval_is_named(tmp_path):
    folder = made(tmp_path, task="triviaqa")
    assert read_params(folder / "params.yaml").task == "triviaqa"
    assert [path.name for path in (folder / "data/tasks").iterdir()] == ["README.md"]
    assert "triviaqa" not in shipped_tasks()


@pytest.mark.parametrize("inside, line", [(True, False), (False, True)])
def test_dvc_is_told_whether_git_is_there(tmp_path, inside, line):
    if inside:
        (tmp_path / ".git").mkdir()
    assert ("no_scm = true" in (made(tmp_path) / ".dvc/config").read_text()) == line


@pytest.mark.parametrize(
    "said, sentence",
    [
        ({"target": "./nowhere"}, "The model folder ./nowhere is missing"),
        ({"target": ".", "target_gguf": "no.gguf"}, r"has no file no.gguf \(GGUF files there: none\)"),
        ({"task": "nowhere.yaml"}, "The task file nowhere.yaml is missing"),
    ],
)
def test_nothing_is_written_where_something_is_missing(tmp_path, said, sentence):
    with pytest.raises(UserError, match=sentence):
        made(tmp_path, **said)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_left_alone(tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    with pytest.raises(UserError, match="is not empty"):
        create(Wanted(tmp_path, "a/b", "a/c"))
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_a_drafter_stands_in_for_a_draft_model(tmp_path):
    folder = made(tmp_path, draft="", drafter="lookup", dtype="float32")
    source = read_pair("my-gate", folder / "models/pairs")
    assert (source.draft, source.drafter, source.target.dtype) == (None, "lookup", "float32")


def test_the_folder_in_which_one_stands_stays_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    named = create(Wanted(Path(), "a/b", "a/c"))
    assert tmp_path.stat().st_ino == before and all((tmp_path / name).is_file() for name in named)
    assert not [path for path in tmp_path.iterdir() if "gistgate" in path.name]


def test_a_task_and_its_file_have_one_name(tmp_path):
    """lm-eval looks for the task's own name, and would take one of its own tasks for a file of another name."""
    (tmp_path / "gsm8k.yaml").write_text("include: base.yaml\ntask: 'gsm8k_mine' # mine\n")
    with pytest.raises(UserError, match="is called 'gsm8k_mine'. Rename the file to gsm8k_mine.yaml"):
        made(tmp_path, task=str(tmp_path / "gsm8k.yaml"))
