"""Files that are either whole or absent: everything is written beside its place, flushed, and
renamed into it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gistgate.core.utils import UserError

if TYPE_CHECKING:
    from torch import Tensor


POINTER = "version https://git-lfs.github.com/spec/"
"""How the small file begins that Git LFS puts in the place of a file until it is fetched."""
GZIP = b"\x1f\x8b"
OTHER_FORMATS = {  # by the first bytes of a file
    b"PK\x03\x04": ("a ZIP archive or a workbook", "Unpack it, or export it as CSV."),
    b"PAR1": ("a Parquet table", "Export it as JSON lines."),
    b"SQLite format 3\0": ("an SQLite database", "Export it as CSV."),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "Unpack it."),
    b"\xff\xfe": ("UTF-16", "Save it as UTF-8."),
    b"\xfe\xff": ("UTF-16", "Save it as UTF-8."),
    b"{\0": ("UTF-16", "Save it as UTF-8."),
}


def write_atomic(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file (or folder) beside `path`, then rename it into place."""
    path = Path(path)
    if not path.name:  # "." or "/"
        raise UserError(f"'{path}' cannot be replaced. Name a file or a folder in it.")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    aside = part.with_suffix(".old")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(part)
        for entry in [*part.rglob("*"), part]:
            flush(entry)
        if path.is_dir():
            if not part.is_dir():
                raise UserError(
                    f"{path} is a folder, and a file would take its place. Name a file, there or"
                    " elsewhere."
                )
            path.replace(aside)  # folders cannot be replaced by renaming
        part.replace(path)
        flush(path.parent)
    except OSError as error:
        raise UserError(
            f"{path} could not be written ({error.strerror or error}). Free some space or check the"
            " permissions; nothing that was there before is lost."
        ) from error
    finally:
        if aside.exists() and not path.exists():  # an interruption between the two renames
            aside.replace(path)
        for leftover in (part, aside):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def check_folder(folder: Path, option: str = "--out") -> None:
    """Refuse a folder that takes no file, before anything is asked or computed; `option` names
    another one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"1")
    except OSError as error:
        raise UserError(
            f"{folder} takes no file ({error.strerror}). Name another folder ({option}), or mend"
            " that."
        ) from error


def flush(path: Path) -> None:
    """Let a file or a folder's list of names reach the disk, in case of a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some file systems cannot flush a folder
            raise
    finally:
        os.close(handle)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    write_atomic(path, lambda part: part.write_text(text, encoding="utf-8"))


def as_json(value: Any, indent: int | None = None) -> str:
    """A line or, indented, lines of JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(
        value,
        indent=indent,
        sort_keys=True,
        ensure_ascii=False,
        allow_nan=False,
    )
    return text + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_text(path, as_json(value, indent=2))


def write_json_lines(path: str | Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_text(path, "".join(map(as_json, rows)))


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file, perhaps compressed by gzip, without the mark that some editors put first.

    Raises:
        UserError: the file is missing, or no text.
    """
    try:
        content = Path(path).read_bytes()
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        refuse_other_format(path, content)
        text = TextIOWrapper(BytesIO(content), encoding="utf-8-sig").read()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. Check the path, or write the file again.") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise UserError(f"{path} is no file. Correct the path.") from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(
            f"{path} cannot be read as text ({error}). Save it as UTF-8, or restore it."
        ) from error
    if text.startswith(POINTER):
        raise UserError(f"{path} is a pointer of Git LFS, not the file. Run `git lfs pull` there.")
    return text


def refuse_other_format(path: str | Path, content: bytes) -> None:
    """Refuse a file that is no text, by its first bytes."""
    for mark, (name, remedy) in OTHER_FORMATS.items():
        if content.startswith(mark):
            raise UserError(f"{path} is {name}, not a text in UTF-8. {remedy}")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; UserError where it is missing or damaged."""
    return parsed(read_text(path), str(path))


def parsed(text: str, where: str) -> Any:
    """What a JSON text says; UserError names where a damaged one stands."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(
            f"{where} is not valid JSON ({error}). Restore it or write it again."
        ) from error


def read_sealed(
    path: str | Path,
    kind: str,
    remedy: str,
    version: int | None = None,
    key: str = "format_version",
) -> tuple[dict[str, Any], str | None]:
    """A JSON object without its checksum, and the checksum, for `check_sealed`.

    Files of older versions have no checksum, which is None.

    Raises:
        UserError: an object of another `kind`, such as the configuration of a model, or of another
            version.
    """
    value = read_json(path)
    if not isinstance(value, dict) or (version is not None and key not in value):
        raise UserError(f"{path} is not that of a {kind}. Name the folder of one.")
    if version not in (None, value.get(key)):
        raise UserError(f"{path} has format version {value[key]}, not {version}. {remedy}")
    return value, value.pop("checksum", None)


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """Read one JSON object per line; UserError where the file is missing or a line is damaged."""
    # Not splitlines: JSON leaves other line ends, such as U+2028, inside its strings as they are.
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [parsed(line, f"{path}, line {number},") for number, line in lines if line.strip()]


def save_tensors(
    path: str | Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as safetensors, whole or not at all, readable like any other new file."""
    from safetensors.torch import save

    values = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = save(values, metadata)
    write_atomic(path, lambda part: part.write_bytes(content))


def load_tensors(path: str | Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, or those with these names.

    Raises:
        UserError: the file is missing or damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names or file.keys()}
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing. Check the path, or write the file again.") from error
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}). Delete it and write it again.") from error


def fingerprint(*parts: Any) -> str:
    """A short hash of settings (anything that JSON can say), files and folders (as Path).

    It does not depend on where these lie.
    """
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, Path):
            digest.update(json.dumps(part, sort_keys=True, default=repr).encode())
            continue
        for path in sorted([part, *part.rglob("*")]):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.relative_to(part).as_posix().encode() + b"\0")
                with path.open("rb") as file:
                    hashlib.file_digest(file, lambda: digest)  # updates it piece by piece
    return digest.hexdigest()[:16]


def write_sealed(path: str | Path, value: dict[str, Any], *parts: Any) -> None:
    """Write a JSON object with a checksum of it and of further parts.

    A part is, for instance, the fingerprint of a file beside it.
    """
    write_json(path, {**value, "checksum": checksum(value, *parts)})


def checksum(value: Any, *parts: Any) -> str:
    """A hash of a value as JSON gives it back, and of further parts."""
    return fingerprint(json.loads(json.dumps(value)), *parts)


def check_sealed(path: Path, sealed: str | None, value: Any, *parts: Any) -> None:
    """Refuse content that differs from what was written with the checksum `sealed`.

    Files of older versions have none.
    """
    if sealed not in (None, checksum(value, *parts)):
        raise UserError(
            f"{path} is not what was written: its checksum differs, so a value or a file beside it"
            " was changed. Restore the folder or write it again."
        )


def named_files(settings: Mapping[str, Any]) -> list[Path]:
    """The files that settings of a rule name: their content decides, not their place."""
    paths = [Path(value) for value in settings.values() if isinstance(value, str)]
    return [path for path in paths if path.is_file()]
