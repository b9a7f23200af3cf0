"""The benchmark of trees says what is wrong with a model that it cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from gistgate.errors import UserError
from pipeline.studies.trees import bench


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_a_model_is_one_sentence(made: bool, tmp_path: Path):
    folder = tmp_path / "target"
    if made:
        folder.mkdir()
    with pytest.raises(UserError, match=f"The model {folder} could not be read .*Run `dvc repro pair`"):
        bench.main(str(folder), 1)
