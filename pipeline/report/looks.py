"""Publish the looks behind published results: docs/results/looks.json names each of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from gistgate.certificates.looks import PUBLISHED, publish
from gistgate.errors import UserError
from gistgate.files import read_json


def publish_looks(folder: Path, where: Path, ledger: Path = PUBLISHED, methods: Collection[str] | None = None) -> int:
    """Enter the looks of all calibrations below `folder` into the published ledger; returns how many there are.

    Args:
        folder: reports of calibrations.
        where: the file that shows the results.
        ledger: the published ledger.
        methods: those whose results are shown; None: all.

    Raises:
        UserError: a calibration has no record of its look, or its prompts were published with another choice.
    """
    looks = [(path, look) for path, look in taken(folder) if methods is None or path.stem in methods]
    for path, look in looks:
        if not look:
            raise UserError(f"{path} does not say which calibration prompts it looked at. Run its stage again.")
        publish(look, where.as_posix(), ledger)
    return len(looks)


def taken(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every calibration below a folder with what it recorded about its look; those that certify nothing have none."""
    for path in sorted(folder.rglob("*.json")):
        content = read_json(path)
        certifies = isinstance(content, dict) and ("budgets" in content or content.get("calibration"))
        if certifies and path.name != "summary.json":
            yield path, content.get("look", {})
