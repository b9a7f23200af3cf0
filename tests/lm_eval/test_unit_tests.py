"""Tasks whose answers are programs: consent, verdicts, sameness, and lm-eval's own names for the
metric.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.core.utils import UserError
from gistgate.lm_eval import __main__ as command
from gistgate.lm_eval import task as tasks
from gistgate.lm_eval.settings import check_examples, check_samples
from gistgate.lm_eval.task import load_task
from gistgate.tasks import code as code_tasks
from gistgate.tasks.code import own_code_eval, program_of
from gistgate.tasks.task import TASKS, TaskSpec
from tests.tiny import write_rows

ROOT = Path(__file__).parents[2]
NAME = "python-functions"
WORDS = {"prompt": "Write `double(x)`.", "tests": "assert double(3) == 6", "entry_point": "double"}
HEAD = {**WORDS, "prompt": 'from math import prod\n\ndef double(x):\n    """Twice x."""\n'}
RIGHT, LONGER, WRONG = (
    "def double(x):\n    return 2 * x",
    "def double(x):\n    return x + x",
    "def double(x): return x",
)


@pytest.fixture
def data(tmp_path):
    """A folder with documents."""
    for split in ("train", "test"):
        write_rows(tmp_path / f"{split}.jsonl", [WORDS, HEAD])
    return str(tmp_path)


@pytest.fixture
def task(data, monkeypatch):
    monkeypatch.chdir(ROOT)
    return load_task(TaskSpec(NAME, data=data, allow_code=True), TASKS)


def test_without_consent_nothing_is_loaded_or_run(data, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(
        tasks.ConfigurableTask, "download", lambda *_, **__: pytest.fail("was loaded")
    )
    monkeypatch.setattr(code_tasks, "runs", lambda *_: pytest.fail("was run"))
    for name in (NAME, "mbpp"):
        with pytest.raises(
            UserError, match=f"'{name}' runs programs .* `allow_code: true` .* --allow-code"
        ):
            load_task(TaskSpec(name, data=data), TASKS)


def test_code_tasks_are_the_score(task):
    assert task.metric == "tests_passed,none"
    assert [task.score(WORDS, text) for text in (RIGHT, WRONG, "", "return 2 * x")] == [1, 0, 0, 0]
    for language in ("python", "python3", "Python", "py", ""):
        assert task.score(WORDS, f"Here it is:\n```{language}\n{RIGHT}\n```\nIt doubles.") == 1
    assert task.score(WORDS, f"{RIGHT}\n```\nIt doubles.") == 1  # the prompt began the block
    assert task.score(WORDS, f"Here it is:\n```python\n{RIGHT}") == 1  # the limit cut the block off


def test_the_head_of_a_function_may_be_completed_or_repeated(task):
    assert task.score(HEAD, "    return prod([2, x])\n") == 1
    assert task.score(HEAD, "def double(x):\n    return prod([2, x])\n") == 1
    assert program_of(WORDS, RIGHT) == RIGHT


@pytest.mark.parametrize(
    "text, reference, same",
    [
        (RIGHT, RIGHT, True),
        (LONGER, RIGHT, True),
        (WRONG, RIGHT, False),
        (RIGHT, WRONG, True),
        (WRONG, WRONG, True),
        (WRONG, WRONG + "  # no", None),
        (RIGHT, "", None),
    ],
)
def test_a_text_that_passes_no_fewer_tests_keeps_the_meaning(task, text, reference, same):
    assert task.same_meaning(WORDS, text, reference) is same


HUMANEVAL = """
include: {folder}/humaneval.yaml
task: heads
training_split: test
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}/rows.jsonl}}}}
"""


def test_lm_evals_own_metric_runs_here_without_the_hub(tmp_path, monkeypatch):
    """HumanEval's form: its metric `pass_at_k` asks `code_eval` of the hub, and its results call it
    pass@1.
    """
    import lm_eval.tasks.humaneval as package

    row = {**HEAD, "test": "def check(candidate):\n    assert candidate(3) == 6\n"}
    write_rows(tmp_path / "rows.jsonl", [row])
    folder = Path(next(iter(package.__path__)))
    (tmp_path / "heads.yaml").write_text(HUMANEVAL.format(folder=folder, data=tmp_path))
    task = tasks.load_task(TaskSpec("heads", allow_code=True), tmp_path)
    assert [task.score(row, text) for text in ("    return 2 * x", "    return x")] == [1, 0]
    assert task.same_meaning(row, "    return 2 * x", "    return x + x") is True
    assert task.same_meaning(row, "    return x", "    return x + x") is False


def test_eval_asks_once(monkeypatch, capsys):
    import lm_eval.__main__ as harness

    def refused() -> None:
        if "--confirm_run_unsafe_code" not in sys.argv:
            raise ValueError(
                "Attempted to run task: mbpp which is unsafe. Set confirm_run_unsafe_code=True to"
                " run it."
            )

    monkeypatch.setattr(harness, "cli_evaluate", refused)
    monkeypatch.setattr(sys, "argv", ["gistgate eval", "run"])
    with pytest.raises(SystemExit):
        command.main()
    assert "The task 'mbpp' runs programs that the model writes" in capsys.readouterr().err
    arguments: list[Any] = ["gistgate eval", "run", "--allow-code"]
    monkeypatch.setattr(sys, "argv", arguments)
    command.main()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--log_samples", "--output_path"),
        ("--tasks none", "Tasks not found: none"),
        ("--chat", "Write --apply_chat_template."),
        ("--log-samples", "Write --log_samples."),
        ("--draft-revision=v1", "Write --model_args draft_revision=VALUE."),
        ("--num_fewshot -1", "Write the number of solved examples."),
        ("--limit 0", "Write a number above 0"),
        ("--output_path /dev/null/out", "takes no file"),
    ],
)
def test_options_that_lm_eval_refuses_are_one_sentence(monkeypatch, capsys, options, sentence):
    arguments = ["gistgate eval", "run", "--model", "gistgate", "--tasks", "gsm8k"]
    monkeypatch.setattr(sys, "argv", [*arguments, *options.split()])
    with pytest.raises(SystemExit) as left:
        command.main()
    error = capsys.readouterr().err
    assert left.value.code == 1 and sentence in error.splitlines()[-1]


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ("absent.json", "names no task"),
        ({"sms": [0]}, "Did you mean 'sums'"),
        ({"sums": [3]}, "numbered from 0 to 2"),
        ({"sums": []}, "numbered from 0 to 2"),
    ],
)
def test_chosen_documents_that_the_run_has_not_are_refused(samples, sentence):
    tasks = {"sums": SimpleNamespace(eval_docs=[{}, {}, {}])}
    check_samples({"sums": [0, 2]}, tasks)
    with pytest.raises(UserError, match=sentence):
        check_samples(samples, tasks)


def test_more_examples_than_a_task_has_are_refused():
    sampler = SimpleNamespace(fewshot_docs=lambda: [{}, {}, {}])
    tasks = {"sums": SimpleNamespace(sampler=sampler, get_config={"num_fewshot": None}.get)}
    check_examples(3, tasks)
    with pytest.raises(UserError, match="above the 3 documents that 'sums' has"):
        check_examples(4, tasks)


def test_several_programs_of_a_task_count_as_pass_at_k():
    """Of n programs c pass: k drawn ones hold one of these with a chance of 1 - C(n - c, k) / C(n,
    k).
    """
    import evaluate

    programs, tests = (
        [[RIGHT, WRONG, WRONG, WRONG], [RIGHT, RIGHT, WRONG, WRONG]],
        [WORDS["tests"]] * 2,
    )
    usual = evaluate.load
    with own_code_eval():
        found, _ = evaluate.load("code_eval").compute(
            references=tests, predictions=programs, k=[1, 2, 8]
        )
    assert evaluate.load is usual  # the metric is replaced for a while only
    assert found == pytest.approx({"pass@1": (1 / 4 + 2 / 4) / 2, "pass@2": (3 / 6 + 5 / 6) / 2})
