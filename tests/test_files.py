"""Files are whole or absent, and damage is told in a sentence."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core import files
from gistgate.core.utils import UserError

WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: files.write_text(path, "new"),
    "json": lambda path: files.write_json(path, {"new": 1}),
    "lines": lambda path: files.write_json_lines(path, [{"new": 1}]),
    "tensors": lambda path: files.save_tensors(path, {"new": torch.ones(3)}),
}
READERS = {
    "text": files.read_text,
    "json": files.read_json,
    "lines": files.read_json_lines,
    "t": files.load_tensors,
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A folder with one old file."""
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate/stale").write_text("old")
    return tmp_path / "gate"


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError()]
)
def test_a_writer_that_fails_half_way_leaves_what_was_there(gate: Path, error: BaseException):
    def half(part: Path) -> None:
        part.mkdir()
        (part / "a").write_text("ne")
        raise error

    with pytest.raises(UserError if isinstance(error, OSError) else type(error)) as caught:
        files.write_atomic(gate, half)
    assert names(gate.parent) == ["gate"] and names(gate) == ["stale"]
    told = "gate could not be written (No space left on device). Free some space"
    assert not isinstance(error, OSError) or told in str(caught.value)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_on_renaming_keeps_the_old_file(
    gate: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="Free some space"):
        WRITERS[kind](gate / "stale")
    assert (gate / "stale").read_text() == "old" and names(gate) == ["stale"]


@pytest.mark.parametrize("kind", WRITERS)
def test_an_existing_file_is_replaced_and_folders_are_made(tmp_path: Path, kind: str):
    path = tmp_path / "a" / "b" / "data"
    WRITERS[kind](path)
    first = path.read_bytes()
    path.write_text("old")
    WRITERS[kind](path)
    assert path.read_bytes() == first and names(path.parent) == ["data"]


def test_a_folder_replaces_a_folder_which_comes_back_when_its_successor_is_not_renamed(
    gate: Path, monkeypatch: pytest.MonkeyPatch
):
    rename = Path.replace

    def interrupted(one: Path, other: Path) -> Path:
        return full() if one.suffix == ".part" else rename(one, other)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(UserError):
        files.write_atomic(gate, lambda part: part.mkdir())
    assert names(gate.parent) == ["gate"] and names(gate) == ["stale"]
    monkeypatch.setattr(Path, "replace", rename)
    files.write_atomic(gate, lambda part: part.mkdir())
    assert names(gate.parent) == ["gate"] and names(gate) == []


@pytest.mark.parametrize("rows", [[], [{"text": "ä\u2028b\x85c\nd\re\x1ff"}, {"text": ""}]])
def test_lines_come_back_as_they_were(tmp_path: Path, rows: list[dict[str, Any]]):
    files.write_json_lines(tmp_path / "rows", rows)
    assert files.read_json_lines(tmp_path / "rows") == rows


def test_equal_values_give_equal_bytes(tmp_path: Path):
    files.write_json(tmp_path / "a", {"b": 1, "a": [1.5, None, "ü"]})
    files.write_json(tmp_path / "b", {"a": [1.5, None, "ü"], "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a", float("nan"))
    assert files.read_json(tmp_path / "a") == {"a": [1.5, None, "ü"], "b": 1}


def test_tensors_come_back_also_from_views_and_one_by_one(tmp_path: Path):
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"t": whole.T, "part": whole[:, 1:3], "none": torch.zeros(0, 4), "half": whole.half()}
    files.save_tensors(tmp_path / "x", tensors, {"note": "n"})
    loaded = files.load_tensors(tmp_path / "x")
    assert loaded.keys() == tensors.keys() and all(
        torch.equal(loaded[name], tensors[name]) for name in tensors
    )
    assert list(files.load_tensors(tmp_path / "x", ("half",))) == ["half"]
    with pytest.raises(UserError, match="is damaged"):
        files.load_tensors(tmp_path / "x", ("z",))


@pytest.mark.parametrize("kind", READERS)
def test_a_missing_file_names_its_path_and_the_remedy_and_a_folder_is_no_file(
    tmp_path: Path, kind: str
):
    with pytest.raises(UserError, match=r"absent is missing. Check the path"):
        READERS[kind](tmp_path / "absent")
    with pytest.raises(UserError):
        READERS[kind](tmp_path)


@pytest.mark.parametrize(
    "kind, content, sentence",
    [
        ("text", b"\xfa\xff\xfe", "cannot be read as text"),
        ("json", b'{"a": ', "is not valid JSON"),
        ("lines", b'{"a": 1}\n{"a": \n{"a": 3}\n', "line 2, is not valid JSON"),
        ("t", b"", "is damaged"),
        ("t", b"\x00" * 100, "is damaged"),
    ],
)
def test_damage_is_told_in_a_sentence(tmp_path: Path, kind: str, content: bytes, sentence: str):
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as caught:
        READERS[kind](path)
    assert str(path) in str(caught.value)


def test_contents_reach_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def flush(handle: int) -> None:
        calls.append(("flush", Path(f"/proc/self/fd/{handle}").readlink().name))
        fsync(handle)

    def rename(path: Path, to: Path) -> Path:
        calls.append(("rename", path.name))
        return replace(path, to)

    def write(part: Path) -> None:
        (part / "inner").mkdir(parents=True)
        (part / "inner" / "a").write_text("a")

    monkeypatch.setattr("os.fsync", flush)
    monkeypatch.setattr(Path, "replace", rename)
    files.write_atomic(tmp_path / "folder", write)
    part = next(name for call, name in calls if call == "rename")
    assert calls[-2:] == [("rename", part), ("flush", tmp_path.name)]
    assert sorted(calls[:-2]) == sorted([("flush", "a"), ("flush", "inner"), ("flush", part)])


@pytest.mark.parametrize("name", ["gate", "."])
def test_a_file_never_takes_the_place_of_a_folder(
    gate: Path, name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(gate.parent)
    with pytest.raises(UserError, match="Name a file"):
        files.write_text(name, "new")
    assert names(gate) == ["stale"] and names(gate.parent) == ["gate"]
