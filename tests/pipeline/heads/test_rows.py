"""Rows of features with labels: what is read, what is refused, and how problems are divided."""

import pytest
import torch

from gistgate.core.files import load_tensors, save_tensors
from gistgate.core.utils import UserError
from pipeline.labels.schema import read_rows, split_by_problem
from tests.pipeline.labels.made import WIDTH, write_features
from tests.pipeline.parameters import block

SETTINGS = block("train")


@pytest.fixture
def rows_folder(tmp_path):
    write_features(tmp_path / "strict", policy=0, problems=12)
    return tmp_path / "strict"


@pytest.mark.parametrize(
    "change, sentence",
    [
        (
            lambda t: t["h_tok:post"][7, 3].fill_(torch.nan),
            "rows-00001.safetensors: 'h_tok:post' is not finite",
        ),
        (lambda t: t.pop("scalars"), "rows-00001.safetensors lacks 'scalars'"),
    ],
)
def test_a_bad_file_is_one_sentence(rows_folder, change, sentence):
    tensors = load_tensors(file := rows_folder / "rows-00001.safetensors")
    change(tensors)
    save_tensors(file, tensors)
    with pytest.raises(UserError, match=sentence):
        read_rows([rows_folder], ["h_tok:post", "scalars"])


def test_a_run_without_any_mismatch_has_nothing_to_train_on(tmp_path):
    save_tensors(tmp_path / "rows-00000.safetensors", {"kept": torch.zeros(0)})
    with pytest.raises(UserError, match="no label at all"):
        read_rows([tmp_path], ["scalars"])


def test_features_stand_side_by_side_in_the_order_asked_for(rows_folder):
    rows, widths = read_rows([rows_folder], ["scalars", "h_tok:post"])
    assert list(widths.items()) == [("scalars", 8), ("h_tok:post", WIDTH)]
    assert torch.equal(rows.x[:, :8], rows.scalars) and rows.x.dtype == torch.float32
    assert rows.scalar("entropy").equal(rows.scalars[:, 2])


def test_no_problem_is_in_two_parts():
    problem = torch.randint(80, (1000,), generator=torch.Generator().manual_seed(0))
    parts = vars(split_by_problem(problem, SETTINGS, seed=1))
    assert sum(part.int() for part in parts.values()).eq(1).all(), (
        "every row is in exactly one part"
    )
    found = [set(problem[part].tolist()) for part in parts.values()]
    assert sum(map(len, found)) == len(set.union(*found)) == len(problem.unique())
    assert len(problem[parts["test"]].unique()) == round(0.2 * len(problem.unique()))


def test_the_split_depends_on_problems_and_seed_alone():
    problem = torch.arange(80)
    parts, doubled = (split_by_problem(p, SETTINGS, 1) for p in (problem, problem.repeat(2)))
    assert torch.equal(doubled.test, parts.test.repeat(2))
    assert not torch.equal(parts.test, split_by_problem(problem, SETTINGS, 2).test)
    with pytest.raises(UserError, match="Labels of 3 problems"):
        split_by_problem(torch.arange(3), SETTINGS, 1)
