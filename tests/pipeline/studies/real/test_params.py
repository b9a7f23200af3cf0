"""A study of a pretrained pair names the pair and the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gistgate.errors import UserError
from gistgate.files import write_json
from pipeline.studies.real.params import read_study

BOTH = {"pair": "a", "task": "b"}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [({"task": "b"}, "pair"), ({"pair": "a"}, "task"), ({**BOTH, "task": None}, "task"), ({}, "pair")],
)
def test_a_study_without_one_of_them_is_refused(changes: dict[str, Any], missing: str, tmp_path: Path):
    write_json(path := tmp_path / "study.yaml", {"changes": changes})
    with pytest.raises(UserError, match=f"study.yaml lacks the key 'changes.{missing}'. Add it"):
        read_study(path)


def test_the_file_that_it_is_like_may_name_them(tmp_path: Path):
    write_json(tmp_path / "base.yaml", {"changes": BOTH})
    write_json(tmp_path / "study.yaml", {"like": "base.yaml", "changes": {"task": "c"}})
    assert read_study(tmp_path / "study.yaml").changes == {"pair": "a", "task": "c"}
