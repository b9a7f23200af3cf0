"""`dvc repro` that no kill can stop for good: what DVC left half-written is mended first.

    python -m pipeline.repro [ARGUMENTS OF dvc repro]

DVC writes two files in place: dvc.lock, and its list of running commands, .dvc/tmp/rwlock. A DVC that is killed
meanwhile leaves a part of one, and the next refuses to start. The lock file is restored from the copy of the last
start; what was finished since is found in DVC's cache of runs. The list only matters while its commands run. An entry
of that cache gets its name last, but DVC reads the newest file whatever its name is, so that parts of one are removed.

The documents behind `task_data` lie where DVC does not look. The fingerprint of their content goes into data/tasks,
on which every stage depends that reads the task.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import yaml
from dvc.lock import LockError, make_lock

from gistgate.errors import UserError
from gistgate.files import fingerprint, write_json, write_text
from pipeline.common.entry import leave
from pipeline.common.paths import DOCUMENTS_NOTE, PARAMS
from pipeline.common.warm import warm
from pipeline.common.yaml_file import read_yaml

TMP = Path(".dvc/tmp")
COPIES = TMP / "gistgate"
"""Copies of lock files that were whole."""


def main(arguments: list[str]) -> int:
    """Mend, then let DVC reproduce; returns DVC's exit status."""
    from dvc.cli import main as dvc

    if not Path(".dvc").is_dir():
        leave("This folder holds no DVC repository. Start again in the top folder of the project.")
    mend()
    note_documents()
    with warm():
        status: int = dvc(["repro", *arguments])
    return status


def note_documents(note: Path = DOCUMENTS_NOTE) -> None:
    """Write the fingerprint of the documents that replace the task's own, or remove the note where none do."""
    try:
        content = read_yaml(Path(os.environ.get("GISTGATE_PARAMS") or PARAMS))
    except UserError:
        return  # the first stage refuses the file
    named = content.get("task_data") if isinstance(content, dict) else None
    if isinstance(named, str) and Path(named).exists():
        write_json(note, {"fingerprint": fingerprint(Path(named))})
    else:
        note.unlink(missing_ok=True)


def mend() -> None:
    """Mend the files that a killed DVC may have left half-written, unless another DVC is at work."""
    TMP.mkdir(parents=True, exist_ok=True)
    try:
        with make_lock(str(TMP / "lock"), tmp_dir=str(TMP)):
            for path in [Path("dvc.lock"), *Path("pipeline/studies").glob("*/dvc.lock")]:
                mend_lock_file(path)
            mend_runs(cache_of_runs())
        with make_lock(str(TMP / "rwlock.lock"), tmp_dir=str(TMP)):
            mend_running(TMP / "rwlock")
    except LockError:
        return  # its owner may be writing just now, and DVC itself will say that it is busy


def mend_lock_file(path: Path) -> None:
    """Keep a copy of a whole lock file, or put the last copy (else Git's version) in place of a damaged one."""
    copy = COPIES / path
    if not path.exists():
        return
    if is_lock(path.read_bytes()):
        write_text(copy, path.read_text(encoding="utf-8"))
        return
    found = copy.read_bytes() if copy.exists() else committed(path)
    if is_lock(found):
        write_text(path, found.decode())
        print(f"{path} was half-written; its last whole version is back.", file=sys.stderr)
    else:
        path.unlink()
        print(f"{path} was half-written and is removed; finished stages come from DVC's cache.", file=sys.stderr)


def committed(path: Path) -> bytes:
    """A file as the last commit holds it; empty where there is none."""
    return subprocess.run(["git", "show", f"HEAD:./{path.as_posix()}"], capture_output=True).stdout


def is_lock(content: bytes) -> bool:
    """Whether this is the content of a whole lock file; DVC's own schema takes some beginnings of one as well."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from voluptuous import Invalid

    try:
        found = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        COMPILED_LOCKFILE_SCHEMA(found)
    except (yaml.YAMLError, Invalid, UnicodeDecodeError):
        return False
    if not isinstance(found, dict) or not content.endswith(b"\n"):
        return False
    stages = (found.get("stages") or {}).values()
    return all(
        map(has_checksum, (entry for stage in stages for key in ("deps", "outs") for entry in stage.get(key, [])))
    )


def has_checksum(entry: dict[str, Any]) -> bool:
    """Whether a file of a stage in a lock file has the checksum that it names."""
    return entry.get("hash", "md5") in entry


def cache_of_runs() -> Path:
    """The folder in which DVC looks up what it has run before; the default where DVC cannot read its configuration."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            return Path(repo.stage_cache.cache_dir)
    except DvcException:
        return Path(".dvc/cache/runs")  # DVC itself will say what is wrong


def mend_runs(folder: Path) -> None:
    """Remove entries that were never renamed, and folders without an entry, which DVC cannot read either.

    Other projects may be writing into a cache that lies elsewhere, so that such a cache is left alone.
    """
    if not folder.resolve().is_relative_to(Path(".dvc").resolve()):
        return
    for path in folder.glob("*/*/.*.tmp"):
        path.unlink()
    for path in folder.glob("*/*/"):
        if not any(path.iterdir()):
            path.rmdir()


def mend_running(path: Path) -> None:
    """Remove the list of running commands where it is damaged or names none that runs."""
    if not path.exists():
        return
    try:
        found = json.loads(path.read_bytes())
        is_needed = any(is_alive(entry["pid"], path.stat().st_mtime) for entry in entries(found))
    except (ValueError, TypeError, AttributeError, KeyError):
        is_needed = False
    if not is_needed:
        path.unlink()


def entries(found: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Every command that is listed as reading or writing."""
    yield from found.get("write", {}).values()
    for readers in found.get("read", {}).values():
        yield from readers


def is_alive(number: int, written: float) -> bool:
    """Whether a process that was there when the list was written still runs; numbers of ended ones are used again."""
    try:
        begun: float = psutil.Process(number).create_time()
    except psutil.Error:
        return False
    return begun <= written + 1.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
