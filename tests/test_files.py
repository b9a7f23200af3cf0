"""Files are whole or absent, and damage is told in a sentence."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core import files
from gistgate.core.utils import UserError


def writers() -> dict[str, Callable[[Path], object]]:
    return {
        "text": lambda path: files.write_text(path, "new"),
        "json": lambda path: files.write_json(path, {"new": 1}),
        "lines": lambda path: files.write_json_lines(path, [{"new": 1}]),
        "tensors": lambda path: files.save_tensors(path, {"new": torch.ones(3)}),
    }


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_writer_that_fails_half_way_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "data.txt"
    path.write_text("old")

    def half(part: Path) -> None:
        part.write_text("ne")
        full()

    with pytest.raises(UserError, match=r"data.txt could not be written \(No space left on device\)"):
        files.write_atomic(path, half)
    assert path.read_text() == "old" and names(tmp_path) == ["data.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_other_ends_leave_no_litter_either(tmp_path: Path, error: type[BaseException]):
    def half(part: Path) -> None:
        part.mkdir()
        (part / "a").write_text("ne")
        raise error

    with pytest.raises(error):
        files.write_atomic(tmp_path / "folder", half)
    assert names(tmp_path) == []


@pytest.mark.parametrize("kind", writers())
def test_a_full_disk_on_renaming_keeps_the_old_file(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "deep" / "data"
    path.parent.mkdir()
    path.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="Free some space"):
        writers()[kind](path)
    assert path.read_text() == "old" and names(path.parent) == ["data"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
@pytest.mark.parametrize("call", ["save_tensors(p, {'a': torch.ones(9999)})", "write_text(p, 'a' * 9999)"])
def test_a_write_that_the_system_refuses_is_one_sentence(tmp_path: Path, call: str):
    """The real thing, without a full disk: the process may write no more than a thousand bytes to a file."""
    path = tmp_path / "data"
    path.write_text("old")
    code = (
        "import resource, signal, torch\n"
        "from gistgate.core.files import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        f"p = {str(path)!r}\n{call}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "gistgate.core.utils.UserError" in done.stderr and "could not be written" in done.stderr
    assert path.read_text() == "old" and names(tmp_path) == ["data"]


@pytest.mark.parametrize("kind", writers())
def test_an_existing_file_is_replaced_and_folders_are_made(tmp_path: Path, kind: str):
    path = tmp_path / "a" / "b" / "data"
    writers()[kind](path)
    first = path.read_bytes()
    path.write_text("old")
    writers()[kind](path)
    assert path.read_bytes() == first and names(path.parent) == ["data"]


def test_a_folder_replaces_a_folder(tmp_path: Path):
    path = tmp_path / "gate"
    path.mkdir()
    (path / "stale").write_text("old")

    def write(part: Path) -> None:
        part.mkdir()
        (part / "fresh").write_text("new")

    files.write_atomic(path, write)
    assert names(path) == ["fresh"] and names(tmp_path) == ["gate"]


def test_a_folder_stays_when_its_successor_cannot_be_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "gate"
    path.mkdir()
    (path / "stale").write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(UserError, match="nothing that was there before is lost"):
        files.write_atomic(path, lambda part: part.mkdir())
    assert names(tmp_path) == ["gate"] and names(path) == ["stale"]


def test_a_folder_comes_back_after_an_interruption_between_two_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, rename = tmp_path / "gate", Path.replace
    path.mkdir()
    (path / "stale").write_text("old")

    def interrupted(one: Path, other: Path) -> Path:
        if one.suffix == ".part":
            raise KeyboardInterrupt
        return rename(one, other)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(path, lambda part: part.mkdir())
    assert names(tmp_path) == ["gate"] and names(path) == ["stale"]


def test_a_folder_comes_back_when_its_successor_cannot_be_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "gate"
    path.mkdir()
    (path / "stale").write_text("old")
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda a, b: full() if a.suffix == ".part" else rename(a, b))
    with pytest.raises(UserError, match="could not be written"):
        files.write_atomic(path, lambda part: part.mkdir())
    assert names(tmp_path) == ["gate"] and names(path) == ["stale"]


@pytest.mark.parametrize("rows", [[], [{"text": "ä\u2028b\x85c\nd\re\x1ff"}, {"text": ""}]])
def test_lines_come_back_as_they_were(tmp_path: Path, rows: list[dict[str, Any]]):
    files.write_json_lines(tmp_path / "rows", rows)
    assert files.read_json_lines(tmp_path / "rows") == rows


def test_equal_values_give_equal_bytes(tmp_path: Path):
    files.write_json(tmp_path / "a", {"b": 1, "a": [1.5, None, "ü"]})
    files.write_json(tmp_path / "b", {"a": [1.5, None, "ü"], "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert files.read_json(tmp_path / "a") == {"a": [1.5, None, "ü"], "b": 1}
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a", float("nan"))
    assert files.read_json(tmp_path / "a")["b"] == 1


def test_tensors_come_back_also_from_views(tmp_path: Path):
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"t": whole.T, "part": whole[:, 1:3], "none": torch.zeros(0, 4), "half": whole.half()}
    files.save_tensors(tmp_path / "x", tensors, {"note": "n"})
    loaded = files.load_tensors(tmp_path / "x")
    assert loaded.keys() == tensors.keys() and all(torch.equal(loaded[name], tensors[name]) for name in tensors)


READERS = {"text": files.read_text, "json": files.read_json, "lines": files.read_json_lines, "t": files.load_tensors}


@pytest.mark.parametrize("kind", READERS)
def test_a_missing_file_names_its_path_and_the_remedy(tmp_path: Path, kind: str):
    with pytest.raises(UserError, match=r"absent is missing. Check the path"):
        READERS[kind](tmp_path / "absent")


@pytest.mark.parametrize(
    "kind, content, sentence",
    [
        ("text", b"\xff\xfe\xfa", "cannot be read as text"),
        ("json", b"\xff\xfe\xfa", "cannot be read as text"),
        ("json", b'{"a": ', "is not valid JSON"),
        ("json", b"", "is not valid JSON"),
        ("lines", b'{"a": 1}\n{"a": \n{"a": 3}\n', "line 2, is not valid JSON"),
        ("t", b"", "is damaged"),
        ("t", b"\x00" * 100, "is damaged"),
        ("t", b"cut", "is damaged"),
    ],
)
def test_damage_is_told_in_a_sentence(tmp_path: Path, kind: str, content: bytes, sentence: str):
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as caught:
        READERS[kind](path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_truncated_tensor_file_is_damaged(tmp_path: Path, keep: float):
    path = tmp_path / "data"
    files.save_tensors(path, {"a": torch.ones(100), "b": torch.ones(10)})
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(UserError, match="is damaged"):
        files.load_tensors(path)


@pytest.mark.parametrize("kind", READERS)
def test_a_folder_is_no_file(tmp_path: Path, kind: str):
    with pytest.raises(UserError):
        READERS[kind](tmp_path)


def test_contents_reach_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def write(part: Path) -> None:
        (part / "inner").mkdir(parents=True)
        (part / "inner" / "a").write_text("a")

    calls = recorded_calls(monkeypatch)
    files.write_atomic(tmp_path / "folder", write)
    part = next(name for call, name in calls if call == "rename")
    assert calls[-2:] == [("rename", part), ("flush", tmp_path.name)]
    assert sorted(calls[:-2]) == sorted([("flush", "a"), ("flush", "inner"), ("flush", part)])


def test_a_file_system_that_flushes_no_folders_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.fsync

    def fsync(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    files.write_text(tmp_path / "data", "new")
    assert (tmp_path / "data").read_text() == "new"


def test_a_content_that_cannot_be_flushed_never_gets_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "data").write_text("old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="could not be written"):
        files.write_text(tmp_path / "data", "new")
    assert (tmp_path / "data").read_text() == "old" and names(tmp_path) == ["data"]


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Flushes and renames in their order, with the name of the file or folder; filled while files are written."""
    calls: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def flush(handle: int) -> None:
        calls.append(("flush", Path(f"/proc/self/fd/{handle}").readlink().name))
        fsync(handle)

    def rename(path: Path, to: Path) -> Path:
        calls.append(("rename", path.name))
        return replace(path, to)

    monkeypatch.setattr("os.fsync", flush)
    monkeypatch.setattr(Path, "replace", rename)
    return calls


@pytest.mark.parametrize("name", ["results", "."])
def test_a_file_never_takes_the_place_of_a_folder(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/kept.txt").write_text("kept")
    with pytest.raises(UserError, match="Name a file"):
        files.write_text(name, "new")
    assert (tmp_path / "results/kept.txt").read_text() == "kept" and names(tmp_path) == ["results"]


def test_single_tensors_can_be_read(tmp_path: Path):
    files.save_tensors(tmp_path / "a", {"x": torch.ones(2), "y": torch.zeros(3)})
    assert list(files.load_tensors(tmp_path / "a", ("y",))) == ["y"]
    with pytest.raises(UserError, match="is damaged"):
        files.load_tensors(tmp_path / "a", ("z",))
