"""The files of a new project, and the sentences where it cannot be written."""

import re
from pathlib import Path

import pytest
import yaml

from gistgate.lm_eval.task import load_task
from gistgate.tasks.task import TaskSpec
from tests.gguf_file import write_gguf
from tests.tiny import write_task

ROOT = Path(__file__).parents[2]


@pytest.fixture
def made(tmp_path, run):
    """Makes a project with these options; returns its folder."""

    def make(*options, models=("--target", "owner/target", "--draft", "owner/draft")):
        folder = tmp_path / "my gate"
        status, _, said = run("init", folder, *models, *options)
        assert status == 0, said
        return folder

    return make


def read(folder, name):
    return yaml.safe_load((folder / name).read_text())


def test_a_project_says_what_the_user_said(made):
    chat = (
        "--chat",
        "--system",
        'Be short: "yes"',
        "--template",
        "rag",
        "--task",
        "gsm8k",
        "--quantise-draft",
        "int4",
    )
    folder = made("--target-revision", "v1", "--dtype", "float16", "--device-map", "auto", *chat)
    params, told = read(folder, "params.yaml"), {"chat_template": "rag"}
    prompting = {"chat_template": True, "system": 'Be short: "yes"', "arguments": told}
    assert (params["pair"], params["task"], params["prompting"] | prompting) == (
        "my-gate",
        "gsm8k",
        params["prompting"],
    )
    assert params["prompts"]["draw"] == 1 and params["decoding"]["workers"] == 1
    assert list(params["methods"]) == ["exact", "prob-ratio", "autojudge"]
    every = re.sub("^  # ", "  ", (folder / "params.yaml").read_text(), flags=re.MULTILINE)
    assert yaml.safe_load(every)["methods"] == read(ROOT, "params.yaml")["methods"]
    pair = read(folder, "models/pairs/my-gate.yaml")
    assert pair["target"] == {
        "model": "owner/target",
        "revision": "v1",
        "dtype": "float16",
        "device_map": "auto",
    }
    assert pair["draft"] == {
        "model": "owner/draft",
        "dtype": "float16",
        "device_map": "auto",
        "quantise": "int4",
    }
    assert (folder / "requirements.txt").read_text().startswith("gistgate[pipeline]==")
    assert read(folder, "data/tasks/gsm8k.yaml")["task"] == "gsm8k"


def test_the_graph_is_the_repositorys_without_its_code(made):
    graph, own = read(made("--task", "gsm8k"), "dvc.yaml"), read(ROOT, "dvc.yaml")
    assert list(graph["stages"]) == list(own["stages"])
    for name, stage in graph["stages"].items():
        deps = stage.get("do", stage)["deps"]
        assert "requirements.txt" in deps and not [
            dep for dep in deps if dep.startswith(("gistgate", "pipeline"))
        ]
        kept = own["stages"][name].get("do", own["stages"][name])["deps"]
        assert [dep for dep in kept if not dep.startswith(("gistgate", "pipeline"))] == deps[1:]


def test_an_embedded_project_has_the_parameters_of_this_repository(made):
    params, own = read(made("--embedded", models=()), "params.yaml"), read(ROOT, "params.yaml")
    own["prompts"]["draw"] = 1  # calibration prompts of earlier draws were judged here
    own["prompting"]["num_fewshot"] = None
    assert params == own


def test_local_models_and_gguf_files_are_named_by_their_whole_path(made, tmp_path):
    (tmp_path / "models").mkdir()
    write_gguf(tmp_path / "models/target.gguf")
    folder = made(models=("--target", tmp_path / "models/target.gguf", "--drafter", "lookup"))
    pair = read(folder, "models/pairs/my-gate.yaml")
    assert (
        pair["target"]["model"] == str(tmp_path / "models")
        and pair["target"]["gguf_file"] == "target.gguf"
    )
    assert pair["drafter"] == "lookup" and "draft" not in pair
    assert (folder / "requirements.txt").read_text().startswith("gistgate[pipeline,gguf]==")


def test_an_own_task_can_be_filled_in_and_knows_a_right_answer(made, monkeypatch):
    monkeypatch.chdir(made())
    task = load_task(TaskSpec("own"), Path("data/tasks"))
    doc = task.documents("train")[0]
    assert doc.keys() == {"question", "answer"} and [
        task.score(doc, f"5 + 4 = {n}.") for n in (9, 8)
    ] == [1, 0]


def test_a_task_brings_what_it_is_made_of(made, tmp_path):
    (tmp_path / "judges").mkdir()
    (tmp_path / "own.yml").write_text("include: base.yaml\ntask: own\ntraining_split: train\n")
    (tmp_path / "base.yaml").write_text("process_results: !function judges.sums.score\n")
    (tmp_path / "judges/sums.py").write_text("def score(): ...\n")
    folder = made("--task", tmp_path / "own.yml")
    files = {
        path.relative_to(folder / "data/tasks").as_posix()
        for path in (folder / "data/tasks").rglob("*.*")
    }
    assert files == {"own.yaml", "base.yaml", "judges/sums.py"}
    assert read(folder, "params.yaml")["task"] == "own"


def test_a_task_that_no_gate_can_learn_is_refused(run, tmp_path):
    write_task(tmp_path, **{"training_split: train\n": ""})
    models = ("--target", "a/b", "--draft", "a/c")
    for task, said in (
        (tmp_path / "tasks/sums.yaml", "no training split"),
        ("hellaswag", "not an ordinary"),
    ):
        status, _, told = run("init", tmp_path / "new", *models, "--task", task)
        assert status == 1 and said in told and not (tmp_path / "new").exists()


@pytest.mark.parametrize("has_git", [True, False])
def test_dvc_is_told_whether_git_is_there(made, tmp_path, has_git):
    if has_git:
        (tmp_path / ".git").mkdir()
    assert ("no_scm = true" in (made() / ".dvc/config").read_text()) is not has_git


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--target", "./nowhere", "--draft", "a/b"], "The model './nowhere' does not exist"),
        (["--target", "a/b"], "A project needs --target and either --draft"),
        (
            ["--target", "a/b", "--draft", "a/c", "--task", "nowhere.yaml"],
            "The task file nowhere.yaml is missing",
        ),
        (["--target", "a/b", "--draft", "a/c", "--dtype", "int8"], "There is no dtype 'int8'"),
        (["--embedded", "--draft", "a/c"], "--embedded trains a pair of its own"),
        (
            ["--target", "a/b", "--drafter", "suffix", "--quantise-draft", "int4"],
            "Name one with --draft, or leave it",
        ),
        (
            ["--target", "a/b", "--draft", "a/c", "--quantise-draft", "int2"],
            "cannot be quantised to 'int2'",
        ),
        (
            ["--target", "a/b", "--draft", "a/c", "--system", "Be short."],
            "A system text needs a chat. Add --chat",
        ),
        (["--target", "a/b", "--drafter", "model"], "There is no drafter 'model' for a project"),
    ],
)
def test_nothing_is_written_where_something_is_missing(run, tmp_path, options, sentence):
    status, _, said = run("init", tmp_path / "new", *options)
    assert status == 1 and sentence in said
    assert not list(tmp_path.iterdir())


def test_a_folder_in_use_is_left_alone(run, tmp_path):
    (tmp_path / "kept.txt").write_text("kept")
    status, _, said = run("init", tmp_path, "--target", "a/b", "--draft", "a/c")
    assert status == 1 and "is not empty" in said
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]
