"""Fingerprints of code: what changes them, and which published files are stale."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from gistgate.files import write_json
from pipeline.common import code
from pipeline.common.closure import closure, file_of, imports, text_of, tree_of
from pipeline.common.stale import stale

CACHES = (code.code_fingerprint, code.bare, file_of, imports, text_of, tree_of)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of two modules, of which one imports the other."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__init__.py").write_text("")
    (tmp_path / "pipeline/a.py").write_text('"""A."""\nfrom pipeline import b\n\nx = b.y\n')
    (tmp_path / "pipeline/b.py").write_text("y = 1\n")
    return tmp_path


def fingerprint(root: Path) -> str:
    for cached in CACHES:
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
    found = {Path(path).stem: why for path, why in stale((results,), project).items()}
    assert set(found) == {"changed", "gone", "old"}
    assert "other code than the present pipeline.a" in found["changed"]
    assert "pipeline.c, which does not exist" in found["gone"]
    assert "names no code" in found["old"]


def test_what_a_stage_publishes_is_not_stale(tmp_path: Path):
    for cached in CACHES:
        cached.cache_clear()
    code.write_result(tmp_path / "new.json", {"value": 1}, "pipeline.common.code", "pipeline.common.paths")
    assert stale((tmp_path,)) == {}


@pytest.fixture
def started(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the root of a process that has just begun."""
    for cached in CACHES:
        cached.cache_clear()
    monkeypatch.setattr(code, "ROOT", project)
    monkeypatch.setattr(code, "STARTED", {path: text_of(path) for path in code.all_sources(project)})
    monkeypatch.setattr(code, "closure", partial(closure, root=project))
    monkeypatch.setattr(code, "code_fingerprint", partial(code.code_fingerprint, root=project))
    return project


def test_a_fingerprint_is_that_of_the_start_and_a_change_meanwhile_is_recorded(started: Path, tmp_path: Path, capsys):
    at_the_start = code.code_fingerprint("pipeline.a")
    for cached in CACHES:
        if cached is not text_of:
            cached.cache_clear()  # whatever is parsed late comes from the texts of the start
    (started / "pipeline/b.py").write_text("y = 2\n")
    written = code.made_by("pipeline.a", root=started)
    write_json(tmp_path / "results/new.json", {"value": 1, "code": written})
    assert (written["fingerprint"], written["changed"]) == (at_the_start, ["pipeline/b.py"])
    assert "pipeline/b.py changed while this was running" in capsys.readouterr().out
    assert "was made while pipeline/b.py changed" in next(iter(stale((tmp_path / "results",), started).values()))


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("b.py", "y = 1  # the same\n", []),
        ("c.py", "z = 1\n", []),
        ("b.py", "y = (\n", ["pipeline/b.py"]),
        ("b.py", None, ["pipeline/b.py"]),
    ],
)
def test_comments_other_modules_broken_files_and_lost_ones(started: Path, file: str, text: str | None, found):
    code.code_fingerprint("pipeline.a")
    place = started / "pipeline" / file
    place.unlink() if text is None else place.write_text(text)
    assert code.made_by("pipeline.a", root=started).get("changed", []) == found
