"""Which changes make a look at calibration prompts another choice: everything that can change a
gate or a setting.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gistgate.core.files import read_json
from pipeline.outcomes import choice_of
from pipeline.params import Params, read_params
from tests.pipeline.parameters import parameters

ROOT = Path(__file__).parents[2]

GATE = {"rule": "autojudge", "after": "models/heads/logistic", "knob": "risk", "grid": [0.1, 0.2]}
PARAMS = {"methods": {"autojudge": GATE}, "task": "sums", "pair": "mine", "task_data": "documents"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Params:
    """A project with files of a pair, of a task that includes another, and of the task's
    documents.
    """
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "models/pairs/mine.yaml": "draft: {quantise: int4}\n",
        "data/tasks/sums.yaml": "include: common.yaml\n",
        "data/tasks/common.yaml": "metric: exact\n",
        "documents/train.jsonl": '{"question": "1 + 1"}\n',
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    return parameters(**PARAMS)


@pytest.mark.parametrize(
    ("block", "changes"),
    [
        ("prompts", {"train": 640}),
        ("prompts", {"test": 8}),
        ("engine", {"rollouts": "vllm"}),
        ("label", {"rollouts": 5}),
        ("decoding", {"block": 4}),
        ("world", {"skew": 0.0}),
        ("label", {"longest": 1.1}),
        ("calibrate", {"growth": 0.05}),
        ("calibrate", {"fluency": 0.05}),
    ],
)
def test_what_changes_a_gate_or_a_text_is_another_choice(
    project: Params, block: str, changes: dict[str, Any]
):
    other = replace(project, **{block: replace(getattr(project, block), **changes)})
    assert choice_of(other, "autojudge") != choice_of(project, "autojudge")


@pytest.mark.parametrize(
    "name",
    [
        "models/pairs/mine.yaml",
        "data/tasks/sums.yaml",
        "data/tasks/common.yaml",
        "documents/train.jsonl",
    ],
)
def test_the_files_of_pair_task_and_data_belong_to_the_choice(project: Params, name: str):
    before = choice_of(project, "autojudge")
    Path(name).write_text(Path(name).read_text() + "more: 1\n")
    assert choice_of(project, "autojudge") != before


def test_what_only_measures_belongs_to_no_choice(project: Params):
    decoding = replace(project.decoding, workers=7, strict_block=2, prompt_memory_mb=1)
    before = choice_of(project, "autojudge")
    Path("documents").rename("elsewhere")
    same = replace(
        project,
        decoding=decoding,
        benchmark=replace(project.benchmark, prompts=7),
        task_data="elsewhere",
    )
    assert choice_of(same, "autojudge") == before


def test_the_published_looks_are_those_of_the_own_parameters(monkeypatch):
    """A machine on which a datastore has other bytes repeats them by this; a new parameter must not
    change it.
    """
    params = read_params(ROOT / "params.yaml")
    choices = {row["choice"] for row in read_json(ROOT / "docs/results/judged.json")["looks"]}
    monkeypatch.chdir(ROOT)
    assert {choice_of(params, name) for name in params.methods} <= choices
