"""Fingerprints of code: what changes them, and which published files are stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from gistgate.files import write_json
from pipeline.common import code
from pipeline.common.closure import file_of, imports, tree_of


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of two modules, of which one imports the other."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").write_text("")
    (tmp_path / "pipeline/a.py").write_text('"""A."""\nfrom pipeline import b\n\nx = b.y\n')
    (tmp_path / "pipeline/b.py").write_text("y = 1\n")
    return tmp_path


def fingerprint(root: Path) -> str:
    for cached in (code.code_fingerprint, code.bare, file_of, imports, tree_of):
        cached.cache_clear()
    return code.code_fingerprint("pipeline.a", root=root)


def test_comments_and_docstrings_do_not_count_and_imported_code_does(project: Path):
    before = fingerprint(project)
    (project / "pipeline/a.py").write_text('"""Another."""\n\nfrom pipeline import b  # b\n\nx = b.y\n')
    assert fingerprint(project) == before
    (project / "pipeline/b.py").write_text("y = 2\n")
    assert fingerprint(project) != before


def test_a_published_file_is_stale_when_its_code_changed_is_gone_or_is_not_known(project: Path):
    results = project / "results"
    present = {"modules": ["pipeline.a"], "fingerprint": fingerprint(project)}
    for name, entry in {
        "fresh": present, "changed": {**present, "fingerprint": "0"}, "gone": {**present, "modules": ["pipeline.c"]},
    }.items():  # fmt: skip
        write_json(results / f"{name}.json", {"value": 1, "code": entry})
    write_json(results / "old.json", {"value": 1})
    write_json(results / "looks.json", {"looks": [], "draws": {}, "head": ""})
    found = {Path(path).stem: why for path, why in code.stale((results,), project).items()}
    assert set(found) == {"changed", "gone", "old"}
    assert "other code than the present pipeline.a" in found["changed"]
    assert "pipeline.c, which does not exist" in found["gone"]
    assert "names no code" in found["old"]


def test_what_a_stage_publishes_is_not_stale(tmp_path: Path):
    for cached in (code.code_fingerprint, code.bare, file_of, imports, tree_of):
        cached.cache_clear()
    code.write_result(tmp_path / "new.json", {"value": 1}, "pipeline.common.code", "pipeline.common.paths")
    assert code.stale((tmp_path,)) == {}
