"""What a published file says about its code: that of the copy of the project which ran, not that of the root."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.common.closure import ROOT, closure
from pipeline.common.code import code_fingerprint
from pipeline.report import origin as module

MODULE = "pipeline.common.paths"


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of one module with what it imports, beside a clean working tree."""
    monkeypatch.setattr(module, "commit", lambda: "0123456789ab")
    for path in [*closure(MODULE), Path("pipeline/__init__.py"), Path("pipeline/common/__init__.py")]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tmp_path / path)
    return tmp_path


def test_a_copy_with_the_same_code_has_the_commit_of_the_working_tree(copy: Path):
    assert module.origin([MODULE], copy) == module.origin([MODULE])
    assert module.origin([MODULE])["code"]["commit"] == "0123456789ab"


def test_a_copy_with_other_code_is_named_by_its_own_fingerprint_and_no_clean_commit(copy: Path):
    place = copy / "pipeline/common/paths.py"
    place.write_text(place.read_text() + "OTHER = 1\n")
    found = module.origin([MODULE], copy)["code"]
    assert found["fingerprint"] == code_fingerprint(MODULE, root=copy) != code_fingerprint(MODULE)
    assert found["commit"] == "0123456789ab+"


def test_a_line_says_that_the_code_changed_meanwhile():
    code = {"modules": [MODULE], "fingerprint": "f", "commit": "0123456789ab", "changed": ["pipeline/common/paths.py"]}
    assert "Made while pipeline/common/paths.py changed" in module.line({"code": code})


def test_a_commit_is_named_as_changed_where_its_sources_were_and_not_where_commands_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    files = [tmp_path / name for name in ("pipeline/a.py", "pipeline/studies/dvc.lock", "benchmarks/results/b.json")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], check=True)
    for file in files[1:]:
        file.write_text("2")
    assert not module.commit().endswith("+")
    files[0].write_text("2")
    assert module.commit().endswith("+")
