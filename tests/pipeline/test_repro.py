"""What a killed DVC left half-written is mended before the next one starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.lock import make_lock

from pipeline import repro

ROOT = Path(__file__).parents[2]
WHOLE = """schema: '2.0'
stages:
  one:
    cmd: echo one > one.txt
    outs:
    - path: one.txt
      hash: md5
      md5: 5bbf5a52328e7439ae6e719dfe712200
      size: 4
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with DVC's own folder and a whole lock file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n")
    (tmp_path / "dvc.lock").write_text(WHOLE)
    return tmp_path


TORN = [0, 7, WHOLE.index("md5\n"), WHOLE.index("d5\n"), WHOLE.index("      hash"), WHOLE.index("fe712200")]
"""Lengths of beginnings; DVC's schema takes the last three, and DVC then fails or believes half a checksum."""


@pytest.mark.parametrize("length", TORN)
def test_a_torn_lock_file_gives_way_to_its_last_copy(repository: Path, length: int):
    repro.mend()
    (repository / "dvc.lock").write_text(WHOLE[:length])
    repro.mend()
    assert (repository / "dvc.lock").read_text() == WHOLE


def test_a_shorter_list_of_outputs_can_be_read_and_is_left_to_dvc(repository: Path):
    repro.mend()
    shorter = WHOLE[: WHOLE.index("      size")]
    (repository / "dvc.lock").write_text(shorter)
    repro.mend()
    assert (repository / "dvc.lock").read_text() == shorter


def test_a_torn_lock_file_without_a_copy_is_taken_from_git(repository: Path):
    for words in (
        ["init", "-q"],
        ["add", "-f", "dvc.lock"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *words], check=True)
    (repository / "dvc.lock").write_text("schema: '2")
    repro.mend()
    assert (repository / "dvc.lock").read_text() == WHOLE


def test_a_torn_lock_file_that_nobody_kept_is_removed(repository: Path, capsys: pytest.CaptureFixture[str]):
    (repository / "dvc.lock").write_text("schema: '2")
    repro.mend()
    assert not (repository / "dvc.lock").exists()
    assert "dvc.lock was half-written and is removed" in capsys.readouterr().err


def test_a_run_that_was_never_renamed_is_removed_from_the_cache(repository: Path):
    entry = repository / ".dvc/cache/runs/ab/abcd/whole"
    entry.parent.mkdir(parents=True)
    entry.write_text(WHOLE)
    (entry.parent / ".Xy-z.tmp").write_text(WHOLE[:30])
    for name in ("empty", "torn"):
        (entry.parents[1] / name).mkdir()
    (entry.parents[1] / "torn/.Xy-z.tmp").write_text("")
    (entry.parents[1] / "no folder").write_text("")
    repro.mend()
    assert {path.name for path in entry.parents[1].rglob("*")} == {"abcd", "whole", "no folder"}


def test_a_cache_that_others_may_share_is_left_alone(repository: Path, tmp_path_factory: pytest.TempPathFactory):
    shared = tmp_path_factory.mktemp("shared")
    (repository / ".dvc/config").write_text(f"[core]\n    no_scm = true\n[cache]\n    dir = {shared}\n")
    young = shared / "runs/ab/abcd/.Xy-z.tmp"
    young.parent.mkdir(parents=True)
    young.write_text("")
    repro.mend()
    assert repro.cache_of_runs() == shared / "runs" and young.exists()


def test_a_damaged_configuration_is_left_to_dvc(repository: Path):
    (repository / ".dvc/config").write_text("[core")
    repro.mend()
    assert (repository / ".dvc/config").read_text() == "[core"


@pytest.mark.parametrize(
    "text", ["", '{"write": {"/a": {"pid"', "[1]", '{"write": 3}', '{"write": {"/a": {"pid": 4194305, "cmd": "c"}}}']
)
def test_a_list_of_commands_that_is_torn_or_of_ended_ones_is_removed(repository: Path, text: str):
    path = repository / ".dvc/tmp/rwlock"
    path.write_text(text)
    repro.mend()
    assert not path.exists()


def test_a_number_that_another_process_has_now_blocks_nobody(repository: Path):
    path = repository / ".dvc/tmp/rwlock"
    path.write_text(json.dumps({"read": {"/a": [{"pid": os.getpid(), "cmd": "dvc repro"}]}}))
    os.utime(path, (0, 0))  # the list is older than the process with this number
    repro.mend()
    assert not path.exists()


def test_a_command_that_runs_stays_listed(repository: Path):
    path = repository / ".dvc/tmp/rwlock"
    path.write_text(json.dumps({"read": {"/a": [{"pid": os.getpid(), "cmd": "dvc repro"}]}}))
    repro.mend()
    assert path.exists()


def test_nothing_is_touched_while_another_dvc_holds_its_lock(repository: Path):
    (repository / "dvc.lock").write_text("schema: '2")
    code = "import sys; from pipeline import repro; repro.mend()"
    with make_lock(".dvc/tmp/lock", tmp_dir=".dvc/tmp"):
        subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (repository / "dvc.lock").read_text() == "schema: '2"


def test_outside_of_a_repository_a_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        repro.main([])


@pytest.mark.slow
def test_dvc_itself_refuses_what_the_command_mends(tmp_path: Path):
    """DVC's own answer to all three, so that this module can go when DVC no longer needs it."""
    (tmp_path / "dvc.yaml").write_text("stages:\n  one:\n    cmd: cat in > out\n    deps: [in]\n    outs: [out]\n")
    (tmp_path / "in").write_text("text")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DVC_NO_ANALYTICS": "1"}

    def run(*words: str) -> int:
        return subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, env=environment).returncode

    assert run("dvc", "init", "--no-scm", "-q") == 0 and run("pipeline.repro") == 0
    whole = (tmp_path / "dvc.lock").read_text()
    for path in (tmp_path / "dvc.lock", tmp_path / ".dvc/tmp/rwlock"):
        path.write_text("")
        assert run("dvc", "repro") != 0
        assert run("pipeline.repro") == 0
    (entry,) = (tmp_path / ".dvc/cache/runs").glob("*/*/*")
    for spoil in (lambda: entry.with_name(".a.tmp").write_text("cmd: cat in > out\n"), entry.unlink):
        (tmp_path / "dvc.lock").unlink()
        spoil()
        assert run("dvc", "repro") != 0
        assert run("pipeline.repro") == 0
    assert (tmp_path / "dvc.lock").read_text() == whole


def test_documents_that_dvc_does_not_see_are_noted_where_it_looks(repository: Path):
    folder, note = repository / "documents", repository / "data/tasks/documents.json"
    folder.mkdir()
    (folder / "train.jsonl").write_text("{}\n")
    (repository / "params.yaml").write_text(f"task_data: {folder}\n")
    repro.note_documents()
    first = note.read_text()
    (folder / "train.jsonl").write_text('{"question": "1 + 1?"}\n')
    repro.note_documents()
    assert note.read_text() != first
    (repository / "params.yaml").write_text("task_data: null\n")
    repro.note_documents()
    repro.note_documents()
    assert not note.exists()
