"""Mutants of the core: what mutmut is told, what its verdicts mean, and which files the result speaks about."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import mutants
from gistgate.errors import UserError
from gistgate.files import read_json

FILE = "gistgate/certificates/bernstein.py"
OTHER = "gistgate/certificates/tango.py"
SHOWN = """# gistgate.certificates.bernstein.x_bernstein_sequence__mutmut_3: survived
--- gistgate/certificates/bernstein.py
+++ gistgate/certificates/bernstein.py
@@ -4,7 +4,7 @@
     Args:
-    t = np.arange(1, len(x) + 1)
+    t = np.arange(2, len(x) + 1)
     mean = (0.5 + x.cumsum()) / (t + 1)
"""
CODES = {"a": 1, "b": 0, "c": 33, "d": -24, "e": 3, "f": -11}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's copy in which mutmut is made up."""
    monkeypatch.setattr(mutants, "OUTPUT", tmp_path / "mutants.json")
    monkeypatch.setattr(mutants, "COPIES", tmp_path / "copies")
    monkeypatch.setattr(mutants, "copy_project", lambda place, changes: (place / "tests").mkdir(exist_ok=True))
    monkeypatch.setattr(mutants, "version", lambda _name: "3.8.1")
    return tmp_path


def finished(codes: dict[str, int | None]) -> Any:
    """A run of mutmut that leaves these exit statuses."""

    def run(place: Path, verb: str, *arguments: str, **_streams: Any) -> subprocess.CompletedProcess[str]:
        for file in (FILE, OTHER) if verb == "run" else ():
            path = place / "mutants" / f"{file}.meta"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"exit_code_by_key": codes}))
        return subprocess.CompletedProcess(arguments, 0, stdout=SHOWN)

    return run


def test_survivors_stand_with_line_and_change(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mutants, "mutmut", finished(CODES))
    mutants.main([FILE])
    found = read_json(mutants.OUTPUT)
    row = found["files"][FILE]
    assert {key: row[key] for key in ("mutants", "killed", "timeout", "survived", "untested")} == {
        "mutants": 6, "killed": 3, "timeout": 1, "survived": 1, "untested": 1,
    }  # fmt: skip
    assert [one["verdict"] for one in row["survivors"]] == ["survived", "untested"]
    file, line = row["survivors"][0]["at"].split(":")
    assert (mutants.ROOT / file).read_text().splitlines()[int(line) - 1].strip() == "t = np.arange(1, len(x) + 1)"
    assert row["survivors"][0]["change"].endswith("-> t = np.arange(2, len(x) + 1)")
    assert found["total"]["mutants"] == 6 and FILE not in found["unchecked"] and len(found["unchecked"]) > 20
    assert "gistgate.certificates.bernstein" in found["code"]["modules"]
    assert not any(mutants.COPIES.iterdir())


def test_a_judged_file_is_skipped_until_it_changes(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mutants, "mutmut", finished(CODES))
    monkeypatch.setattr(mutants, "core", lambda: [FILE])
    mutants.main()
    monkeypatch.setattr(mutants, "judge", lambda *_: pytest.fail("judged again"))
    mutants.main()
    with pytest.raises(pytest.fail.Exception, match="judged again"):
        mutants.main([FILE])
    monkeypatch.setattr(mutants, "fingerprint", lambda _path: "another source")
    assert mutants.recorded() == {}


def test_the_files_of_a_folder_are_judged_in_one_run(place: Path, monkeypatch: pytest.MonkeyPatch):
    """Their tests run once to learn which of them reach which function."""
    run, runs = finished({"a": 1}), []

    def counted(place: Path, verb: str, *arguments: str, **streams: Any) -> subprocess.CompletedProcess[str]:
        if verb == "run":
            runs.append((place / "setup.cfg").read_text())
        return run(place, verb, *arguments, **streams)

    monkeypatch.setattr(mutants, "mutmut", counted)
    mutants.main([OTHER, FILE])
    assert len(runs) == 1 and f"only_mutate=\n    {FILE}\n    {OTHER}\nalso_copy" in runs[0]
    found = read_json(mutants.OUTPUT)
    assert set(found["files"]) == {FILE, OTHER} and found["total"]["killed"] == 2


def test_an_unfinished_run_keeps_its_copy_and_says_where_to_look(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mutants, "mutmut", finished({**CODES, "g": None}))
    with pytest.raises(UserError, match="did not finish gistgate/certificates/bernstein.py"):
        mutants.main([FILE])
    assert not mutants.OUTPUT.exists() and any(mutants.COPIES.iterdir())


def test_unknown_files_and_a_missing_tool_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="no file of the core. Did you mean 'gistgate/certificates/bernstein.py'"):
        mutants.main(["gistgate/certificates/bernsteen.py"])

    def missing(_name: str) -> str:
        raise mutants.PackageNotFoundError

    monkeypatch.setattr(mutants, "version", missing)
    with pytest.raises(UserError, match="mutmut is not installed"):
        mutants.main([FILE])


def test_every_file_of_the_core_exists_and_has_tests(tmp_path: Path):
    for name in ("tests", "pipeline", "gistgate", "mutants"):
        (tmp_path / name).mkdir()
    for file in mutants.core():
        assert (mutants.ROOT / file).is_file()
        said = mutants.settings([file], tmp_path)
        assert f"only_mutate=\n    {file}\nalso_copy=\n    pipeline\n    tests\n" in said
    assert all((mutants.ROOT / path).exists() for paths in mutants.TESTS.values() for path in paths)


@pytest.mark.skipif(not (mutants.ROOT / mutants.OUTPUT).exists(), reason="no mutants are published")
def test_the_published_counts_are_those_of_the_files():
    found = read_json(mutants.ROOT / mutants.OUTPUT)
    for row in found["files"].values():
        assert row["mutants"] == sum(row[name] for name in ("killed", "timeout", "survived", "untested"))
        assert len(row["survivors"]) == row["survived"] + row["untested"]
    assert found["total"]["mutants"] == sum(row["mutants"] for row in found["files"].values())


def test_the_page_of_reliability_says_what_the_file_says():
    found, page = read_json(mutants.ROOT / mutants.OUTPUT), (mutants.ROOT / "docs/reliability.md").read_text()
    total, files = found["total"], len(found["files"])
    noticed = total["killed"] + total["timeout"]
    assert f"Of {total['mutants']:,} changes in {files} files the tests notice {noticed:,}." in page
