"""Artefacts of a run: which there are, whether each can be read, and how two runs differ."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

ARTEFACTS = ("data", "models", "reports")
"""Folders that the stages write."""
TIMED = ("seconds", "labels_per_hour", "tokens_per_second", "speed", "machine", "load")
"""Keys of JSON files that hold measured seconds, or figures made of them."""
SPENT = ("slots", "slots_used", "idle_share_of_slots")
"""Keys of JSON files that say how batches were filled: after an interruption fewer answers are shared."""
CHOSEN = ("transformers_assisted", "transformers_lookup")
"""Entries of such files whose K a clock chooses: transformers' speculation gets the fastest of several."""
DRAWN = ("reports/figures/speed.png", "reports/index.html")
"""Artefacts that show such figures, and hold nothing else that other artefacts lack."""


def files(folder: Path) -> list[Path]:
    """Every artefact that a reader would take for whole: hidden temporary files are not meant to be read."""
    found = [path for top in ARTEFACTS for path in sorted((folder / top).rglob("*")) if path.is_file()]
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def hashes(folder: Path) -> dict[str, str]:
    """Relative names and contents of all artefacts; of reports only what no clock decides."""
    found = {str(path.relative_to(folder)): path for path in files(folder)}
    return {name: hashlib.sha256(content(name, path)).hexdigest() for name, path in found.items() if name not in DRAWN}


def content(name: str, path: Path) -> bytes:
    """The bytes of an artefact; a report in JSON without its measured seconds and its slots, of labels' costs the
    number alone."""
    if name.startswith("reports/labels/"):  # what an interrupted start has spent was spent
        return str(json.loads(path.read_text())["labels"]).encode()
    if not name.startswith("reports/") or path.suffix != ".json":
        return path.read_bytes()
    return json.dumps(untimed(json.loads(path.read_text())), sort_keys=True).encode()


def untimed(value: Any) -> Any:
    """A JSON value without the keys of `TIMED` and `SPENT`, and without the K of `CHOSEN`."""
    if isinstance(value, dict):
        return {key: untimed(unchosen(key, part)) for key, part in value.items() if key not in (*TIMED, *SPENT)}
    return [untimed(part) for part in value] if isinstance(value, list) else value


def unchosen(key: str, entry: Any) -> Any:
    """An entry without its K if a clock has chosen it; benchmark.json holds more of it, summary.json the K alone."""
    if key not in CHOSEN:
        return entry
    return {name: part for name, part in entry.items() if name != "block"} if isinstance(entry, dict) else None


def differing(calm: Path, rough: Path) -> list[str]:
    """Artefacts that two runs do not share byte for byte, measured seconds apart."""
    one, other = hashes(calm), hashes(rough)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


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
