"""The files of a new project, and the sentences where it cannot be written."""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml

from gistgate.lm_eval.task import load_named
from gistgate.tasks.task import TaskSpec
from tests.gguf_file import write_gguf
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(tmp_path, run):
    """Makes a project with these options, a text as a shell reads it; returns its folder."""

    def make(options="", models="--target owner/target --draft owner/draft"):
        folder = tmp_path / "my gate"
        status, _, error = run("init", folder, *shlex.split(f"{models} {options}"))
        assert status == 0, error
        return folder

    return make


def read(folder, name):
    return yaml.safe_load((folder / name).read_text())


def test_a_project_says_what_the_user_said(made):
    folder = made(
        "--target-revision v1 --dtype float16 --device-map auto --quantise-draft int4 --task gsm8k"
        " --chat --system 'Be short: \"yes\"' --template rag"
    )
    params = read(folder, "params.yaml")
    assert (params["pair"], params["task"]) == ("my-gate", "gsm8k")
    prompting = params["prompting"]
    assert prompting["chat_template"] is True and prompting["system"] == 'Be short: "yes"'
    assert prompting["arguments"] == {"chat_template": "rag"}
    assert params["prompts"]["draw"] == 1 and params["decoding"]["workers"] == 1
    assert list(params["methods"]) == ["exact", "prob-ratio", "autojudge"]
    uncommented = re.sub("(?m)^  # ", "  ", (folder / "params.yaml").read_text())
    assert yaml.safe_load(uncommented)["methods"] == read(ROOT, "params.yaml")["methods"]
    pair = read(folder, "models/pairs/my-gate.yaml")
    how = {"dtype": "float16", "device_map": "auto"}
    assert pair["target"] == {"model": "owner/target", "revision": "v1", **how}
    assert pair["draft"] == {"model": "owner/draft", "quantise": "int4", **how}
    assert (folder / "requirements.txt").read_text().startswith("gistgate[pipeline]==")
    assert read(folder, "data/tasks/gsm8k.yaml")["task"] == "gsm8k"


def is_code(place):
    return place.startswith(("gistgate", "pipeline"))


def test_the_graph_is_the_repositorys_without_its_code(made):
    stages = read(made("--task gsm8k"), "dvc.yaml")["stages"]
    whole = read(ROOT, "dvc.yaml")["stages"]
    assert list(stages) == list(whole)
    for name, stage in stages.items():
        before = whole[name].get("do", whole[name])["deps"]
        deps = stage.get("do", stage)["deps"]
        assert deps == ["requirements.txt", *(dep for dep in before if not is_code(dep))]


def test_local_models_and_gguf_files_are_named_by_their_whole_path(made, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = tmp_path / "models"
    folder.mkdir()
    write_gguf(folder / "target.gguf")
    project = made(models=f"--target {folder}/target.gguf --drafter lookup")
    pair = read(project, "models/pairs/my-gate.yaml")
    assert pair["target"]["model"] == str(folder) and pair["target"]["gguf_file"] == "target.gguf"
    assert pair["target"]["quantise"] == "gguf"
    assert pair["drafter"] == "lookup" and "draft" not in pair
    assert (project / "requirements.txt").read_text().startswith("gistgate[pipeline,gguf]==")


@pytest.mark.parametrize(
    "option, has_gpu", [("--quantise none", False), ("--dtype float32", False), ("", True)]
)
def test_weights_of_a_gguf_file_are_unpacked_where_they_cannot_stay_packed(
    made, tmp_path, monkeypatch, option, has_gpu
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    write_gguf(tmp_path / "target.gguf")
    project = made(option, f"--target {tmp_path}/target.gguf --drafter lookup")
    assert "quantise" not in read(project, "models/pairs/my-gate.yaml")["target"]


@pytest.mark.parametrize(
    "models, entries",
    [
        ("--target {0}/target --draft {0}/draft --quantise-draft int4", {"of": "draft"}),
        ("--target {0}/target --quantise-draft int4", {"of": "target"}),
    ],
)
def test_a_draft_that_is_trained_keeps_a_part_of_a_model(made, tmp_path, models, entries):
    save_pair(tmp_path, *tiny_pair(), byte_tokenizer())
    project = made("--train-draft", models.format(tmp_path))
    draft = read(project, "models/pairs/my-gate.yaml")["draft"]
    named = {} if entries["of"] == "target" else {"model": str(tmp_path / "draft")}
    kept = {"layers": 1, "quantise": "int4", "dtype": "bfloat16"}
    assert draft == entries | named | kept
    assert read(project, "params.yaml")["prompts"]["draft"] == 1000


def test_an_own_task_can_be_filled_in_and_knows_a_right_answer(made, monkeypatch):
    monkeypatch.chdir(made())
    task = load_named(TaskSpec("data/tasks/own.yaml"))
    doc = task.documents("train")[0]
    assert task.name == "own" and task.documents("test")[0] != doc
    assert doc.keys() == {"question", "answer"}
    assert task.score(doc, "5 + 4 = 9.") == 1 and task.score(doc, "5 + 4 = 8.") == 0


def test_a_task_brings_what_it_is_made_of(made, tmp_path):
    (tmp_path / "judges").mkdir()
    (tmp_path / "own.yml").write_text("include: base.yaml\ntask: own\ntraining_split: train\n")
    (tmp_path / "base.yaml").write_text("process_results: !function judges.sums.score\n")
    (tmp_path / "judges/sums.py").write_text("def score(): ...\n")
    folder = made(f"--task {tmp_path}/own.yml")
    tasks = folder / "data/tasks"
    files = {path.relative_to(tasks).as_posix() for path in tasks.rglob("*.*")}
    assert files == {"own.yaml", "base.yaml", "judges/sums.py"}
    assert read(folder, "params.yaml")["task"] == "own"


def test_a_shipped_task_brings_its_documents(made):
    folder = made("--task python-functions") / "data/tasks"
    assert {path.suffix for path in (folder / "python_functions").iterdir()} == {".jsonl"}


@pytest.mark.parametrize(
    "named", ["d/rows.csv", "{here}/d/rows.csv", "d/r*.csv", "d*/rows.csv", "[d/rows.csv]", "away"]
)
def test_a_task_brings_its_documents(made, tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    rows = "question,answer\n1 + 1?,2\n"
    (tmp_path / "d").mkdir()
    (tmp_path / "d/rows.csv").write_text(rows)
    data = f"dataset_path: csv\ndataset_kwargs:\n  data_files: {named.format(here=tmp_path)}\n"
    (tmp_path / "base.yaml").write_text(f"doc_to_text: d/rows.csv\n{data}")
    (tmp_path / "own.yaml").write_text("include: base.yaml\ntask: own\n")
    with pytest.warns(UserWarning, match="away") if named == "away" else nullcontext():
        folder = made("--task own.yaml")
    base = read(folder, "data/tasks/base.yaml")
    assert base["doc_to_text"] == "d/rows.csv"
    if named != "away":
        place = str(base["dataset_kwargs"]["data_files"]).strip("[']")
        (copy,) = folder.glob(place)
        assert place.startswith("data/tasks/documents/") and copy.read_text() == rows


@pytest.mark.parametrize("has_git", [True, False])
def test_dvc_is_told_whether_git_is_there(made, tmp_path, has_git):
    if has_git:
        (tmp_path / ".git").mkdir()
    assert ("no_scm = true" in (made() / ".dvc/config").read_text()) is not has_git


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("--target ./nowhere --draft a/b", "The model './nowhere' does not exist"),
        ("--target a/b", "needs --draft, --train-draft or both"),
        ("--target a/b --draft a/c --task nowhere.yaml", "nowhere.yaml is missing"),
        ("--target a/b --draft a/c --task no-such-task", "no task 'no-such-task'"),
        ("--target a/b --draft a/c --dtype int8", "no dtype 'int8'"),
        ("--target a/b --drafter suffix --quantise-draft int4", "Name one with --draft"),
        ("--target a/b --draft a/c --quantise-draft int2", "cannot be quantised to 'int2'"),
        ("--target a/b --draft a/c --system Briefly.", "A system text needs a chat"),
        ("--target a/b --drafter model", "no drafter 'model'"),
        ("--target a/b --drafter suffix --train-draft", "or else --drafter suffix"),
    ],
)
def test_nothing_is_written_where_something_is_missing(run, tmp_path, options, cause):
    status, _, error = run("init", tmp_path / "new", *options.split())
    assert status == 1 and cause in error
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_left_alone(run, tmp_path):
    (tmp_path / ".kept").write_text("kept")
    status, _, error = run("init", tmp_path, "--target", "a/b", "--draft", "a/c")
    assert status == 1 and "is not empty" in error
    assert [path.name for path in tmp_path.iterdir()] == [".kept"]
