"""Kinds of damage: functions that change one file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], object]
"""Changes the file that it is given."""


def cut(share: float) -> Damage:
    """Only the first part stays."""
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def flip(share: float, bit: int) -> Damage:
    """One bit is turned over."""

    def change(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[min(int(share * len(content)), len(content) - 1)] ^= 1 << bit
        path.write_bytes(bytes(content))

    return change


def content(value: bytes) -> Damage:
    """Something else stands in the file."""
    return lambda path: path.write_bytes(value)


def grown(size: int) -> Damage:
    """A file with a huge hole at its end; it occupies no space on the disk."""
    return lambda path: os.truncate(path, size)


def link(target: str) -> Damage:
    """A symbolic link to `target`, seen from the folder of the file."""

    def change(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return change


def moved(path: Path) -> None:
    """The file lies outside its folder, undamaged, and a link leads there."""
    outside = path.parent.parent / f"outside-{path.parent.name}-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def pipe(path: Path) -> None:
    """A pipe that nobody writes to: a reader would wait for ever."""
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    """A folder in place of the file."""
    path.unlink()
    path.mkdir()


def copied(other: str) -> Damage:
    """The file of another folder."""
    return lambda path: path.write_bytes((path.parent.parent / other / path.name).read_bytes())


def edited(change: Callable[[Any], object], *, resealed: bool = True) -> Damage:
    """A JSON value is changed, and its checksum taken away: what somebody does who edits the file by hand."""

    def damage(path: Path) -> None:
        value = json.loads(path.read_text())
        if resealed:
            value.pop("checksum", None)
        replaced = change(value)
        path.write_text(json.dumps(replaced if isinstance(replaced, list) else value))

    return damage


def put(place: str, value: Any) -> Damage:
    """A value at a dotted place of a JSON file; a number in the place is an index, `...` takes the key away."""

    def change(root: Any) -> None:
        *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
        for part in path:
            root = root[part]
        if value is ...:
            del root[last]
        else:
            root[last] = value

    return edited(change)


def put_yaml(place: str, value: Any) -> Damage:
    """The same for YAML."""

    def damage(path: Path) -> None:
        root = whole = yaml.safe_load(path.read_text())
        *parts, last = place.split(".")
        for part in parts:
            root = root[part]
        root[last] = value
        path.write_text(yaml.safe_dump(whole))

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    """Tensors of a safetensors file are changed."""

    def damage(path: Path) -> None:
        found = {name: tensor.clone() for name, tensor in load_file(path).items()}
        change(found)
        save_file(found, path)

    return damage


def header(change: Callable[[dict[str, Any]], object], length: int | None = None) -> Damage:
    """The header of a safetensors file is changed; `length` is a lie about its length."""

    def damage(path: Path) -> None:
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        entries = json.loads(raw[8 : 8 + size])
        change(entries)
        text = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + raw[8 + size :])

    return damage
