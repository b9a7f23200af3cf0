"""Artefacts of a run: which there are, whether each can be read, and how two runs differ."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatch
from pathlib import Path

from safetensors import safe_open

ARTEFACTS = ("data", "models", "reports")
"""Folders that the stages write."""
TIMED: tuple[str, ...] = ()
"""Artefacts that hold measured seconds."""


def files(folder: Path) -> list[Path]:
    """Every artefact that a reader would take for whole: hidden temporary files are not meant to be read."""
    found = [path for top in ARTEFACTS for path in sorted((folder / top).rglob("*")) if path.is_file()]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def hashes(folder: Path) -> dict[str, str]:
    """Relative names and contents of all artefacts."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files(folder)}


def differing(calm: Path, rough: Path) -> list[str]:
    """Artefacts that two runs do not share byte for byte, those apart that hold measured seconds."""
    one, other = hashes(calm), hashes(rough)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name) and not timed(name))


def timed(name: str) -> bool:
    """Whether an artefact holds measured seconds, or figures made of them."""
    return any(fnmatch(name, pattern) for pattern in TIMED)


def unreadable(folder: Path) -> list[str]:
    """Artefacts that are there and cannot be read."""
    found = []
    for path in files(folder):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="pt") as file:
                    list(file.keys())
            elif path.suffix in (".json", ".jsonl"):
                lines = path.read_text().split("\n") if path.suffix == ".jsonl" else [path.read_text()]
                _ = [json.loads(line) for line in lines if line]
        except Exception as error:
            found.append(f"{path}: {error}")
    return found
