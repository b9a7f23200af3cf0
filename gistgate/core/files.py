"""Files that are either whole or absent: everything is written beside its place, flushed, and renamed into it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gistgate.core.utils import UserError

# ---- What has to reach the disk before a new file takes its name: a loss of power then leaves the old or the new one.


UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""What file systems answer that cannot flush a folder."""


def flush_all(path: Path) -> None:
    """Flush a file, or every file and folder of a folder, to the disk; a rename behind this moves whole contents."""
    if path.is_dir():
        for folder, _, names in os.walk(path):
            for name in names:
                flush(Path(folder, name))
            flush_folder(Path(folder))
    else:
        flush(path)


def flush(path: Path) -> None:
    """Flush the content of one file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: Path) -> None:
    """Flush the names in a folder, where the file system can do so."""
    try:
        flush(path)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def make_folder(path: Path) -> None:
    """Create a folder and those above it, and flush the names of the new ones."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        flush_folder(one.parent)


# ---- What a file has to be before anybody reads it: a regular file of bounded size, and strict JSON.


MOST_TEXT = 1 << 30
"""Largest text file that is read, in bytes."""
MOST_JSON = 1 << 26
"""Largest file with one JSON value, in bytes."""
CACHES = re.compile(r"/blobs/[0-9a-f]{40,64}$|/files/md5/[0-9a-f]{2}/[0-9a-f]{30}$")
"""Where links of the hub's cache and of DVC's cache lead to."""


def check_regular(path: str | Path, most: int | None = None) -> None:
    """Refuse what is no regular file, links followed, and what is larger than `most` bytes.

    A missing file passes, because its reader has a sentence of its own.

    Raises:
        UserError: which of the two it is.
    """
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be opened ({error}). Restore it or write it again.") from error
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path} is no regular file. Restore it or write it again.")
    if most is not None and found.st_size > most:
        raise UserError(
            f"{path} has {found.st_size} bytes, and a file of its kind has at most {most}. Restore it or write it "
            "again."
        )


def inside(folder: str | Path, name: str) -> Path:
    """The file `name` of a folder that somebody else may have written.

    Raises:
        UserError: the name leads out of the folder, or the file is a link to somewhere else than a download cache.
    """
    folder = Path(folder)
    path = folder / name
    if Path(name).name != name or name in ("", ".", ".."):
        raise UserError(f"{folder} names the file {name!r}, which leads out of the folder. Restore the folder.")
    try:
        leads_out = path.is_symlink() and path.resolve().parent != folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{path} cannot be opened ({error}). Restore the folder.") from error
    if leads_out and not CACHES.search(path.resolve().as_posix()):
        raise UserError(f"{path} is a link that leads out of its folder. Put the file itself there.")
    return path


def strict_json(text: str) -> Any:
    """The value of a JSON text, as the standard has it: no NaN, no key twice, no half characters.

    Raises:
        ValueError: what is wrong with the text.
    """
    try:
        value = json.loads(text, parse_constant=refuse_constant, object_pairs_hook=unique)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair cannot be encoded
    return value


def refuse_constant(name: str) -> Any:
    """Refuse NaN and the infinities, which Python's reader takes and JSON does not know."""
    raise ValueError(f"{name} is no number")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The entries of an object; the same key twice is an error, because readers differ about which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key '{next(name for name in names if names.count(name) > 1)}' stands twice")
    return found


def write_atomic(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file (or folder) beside `path`, then rename it into place.

    Raises:
        UserError: the disk is full, the place cannot be written, or a file would take the place of a folder; `path`
            keeps what it held.
    """
    path = Path(path)
    if not path.name:  # "." or "/"
        raise UserError(f"'{path}' cannot be replaced. Name a file or a folder in it.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        make_folder(path.parent)
        write(part)
        flush_all(part)
        put(part, path)
        flush_folder(path.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} could not be written ({getattr(error, 'strerror', None) or error}). Free some space or check the "
            "permissions; nothing that was there before is lost."
        ) from error
    finally:
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


def put(part: Path, path: Path) -> None:
    """Rename `part` to `path`; a folder that stands there makes way, and comes back when that fails."""
    if not path.is_dir():
        part.replace(path)
        return
    if not part.is_dir():
        raise UserError(
            f"{path} is a folder, and a file would take its place. Name a file, in that folder or elsewhere."
        )
    aside = part.with_suffix(".old")
    try:
        path.replace(aside)
        part.replace(path)
    except BaseException:  # an interruption as well, in front of either or behind both
        if aside.exists() and not path.exists():
            aside.replace(path)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    write_atomic(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON with sorted keys, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_json_lines(path: str | Path, rows: list[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_text(
        path, "".join(json.dumps(row, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    )


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """Read a UTF-8 file of at most `most` bytes.

    Raises:
        UserError: the file is missing, too large or not text.
    """
    check_regular(path, most)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. Check the path, or write the file again.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}). Restore it or write it again.") from error


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: the file is missing or damaged.
    """
    text = read_text(path, MOST_JSON)
    try:
        return strict_json(text)
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}). Restore it or write it again.") from error


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Read one JSON object per line.

    Raises:
        UserError: the file is missing or a line is damaged; the line's number is named.
    """
    rows = []
    # Not splitlines: JSON leaves other line ends, such as U+2028, inside its strings as they are.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line:
            continue
        try:
            rows.append(strict_json(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}, is not valid JSON ({error}). Write the file again.") from error
    return rows


def save_tensors(path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors, whole or not at all; as readable for others as any other new file."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

    def save(part: Path) -> None:
        part.touch()
        mode = part.stat().st_mode
        save_file(contiguous, part, metadata=metadata)
        part.chmod(mode)  # safetensors leaves the file to its owner alone, and a server may be another user

    write_atomic(path, save)


def load_tensors(path: str | Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read a safetensors file into memory: all tensors, or those with these names.

    Raises:
        UserError: the file is missing or damaged.
    """
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in (file.keys() if names is None else names)}
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. Check the path, or write the file again.") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}). Delete it and write it again.") from error


def checksum(value: Any, *parts: Any) -> str:
    """A hash of a value as JSON gives it back, and of further parts."""
    return fingerprint(json.loads(json.dumps(value)), *parts)


def check_sealed(path: Path, found: Any, value: Any, *parts: Any) -> None:
    """Refuse content that differs from what was written with the checksum `found`; None is from an older version.

    This notices damage. It does not notice a forgery, whose author can compute the checksum as well.

    Raises:
        UserError: they differ.
    """
    if found is not None and found != checksum(value, *parts):
        raise UserError(
            f"{path} is not what was written: its checksum differs, so a value or a file beside it was changed. "
            "Restore the folder or write it again."
        )


def fingerprint(*parts: Any) -> str:
    """A short hash of settings (anything that JSON can say), files and folders (as Path), in that order.

    Of a folder the relative names and the contents of its files count, but not where the folder lies.
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            for path in sorted(path for path in (part.rglob("*") if part.is_dir() else [part]) if is_written(path)):
                digest.update(path.relative_to(part).as_posix().encode() + b"\0")
                with path.open("rb") as file:
                    while chunk := file.read(1 << 20):
                        digest.update(chunk)
        else:
            digest.update(json.dumps(part, sort_keys=True, default=repr).encode())
    return digest.hexdigest()[:16]


def is_written(path: Path) -> bool:
    """Whether a path is a file that somebody wrote, and not one that Python compiled from it."""
    return path.is_file() and path.suffix != ".pyc"


def named_files(settings: Mapping[str, Any]) -> list[Path]:
    """The files that settings of a rule name: their content decides, not their place."""
    paths = [Path(value) for value in settings.values() if isinstance(value, str)]
    return [path for path in paths if path.is_file()]
