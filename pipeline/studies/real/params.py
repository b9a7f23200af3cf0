"""pipeline/studies/real/params.yaml: the pair and task of `make real`, and what differs from params.yaml."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from pipeline.common.paths import STUDIES
from pipeline.common.reading import Count, block, build
from pipeline.common.yaml_file import read_yaml
from pipeline.smoke import merged

FILE = STUDIES / "real/params.yaml"


@block
class ProposeParams:
    """How K is measured."""

    blocks: tuple[Count, ...] = (2, 3, 4, 5, 6)
    """K that are tried, in tokens."""
    prompts: Count = 4
    """Training prompts that are decoded with every K, in prompts."""
    max_new_tokens: Count = 48
    """Longest answer of the measurement, in tokens."""


@block
class RealParams:
    """One pair with one task."""

    changes: dict[str, Any]
    """What differs from params.yaml, block by block; null takes a key away."""
    folders: dict[str, str] = field(default_factory=dict)
    """Folder of each role (`target`, `draft`) below the folder of models that the command line names."""
    rules: tuple[str, ...] = ()
    """Rules of the large table that are compared as well, by id."""
    propose: ProposeParams | None = None
    """How K is measured; None keeps decoding.block and decoding.strict_block."""


def read_study(path: Path) -> RealParams:
    """The file of a study; what it leaves out stands in the file that its key `like` names, beside it.

    Raises:
        UserError: a file is missing or no YAML, holds an unknown key or a wrong type, or names no pair or task.
    """
    content = read_yaml(path)
    if isinstance(content, dict) and "like" in content:
        base = read_yaml(path.parent / str(content["like"]))
        changes = laid_over(base.get("changes") or {}, content.get("changes") or {})
        own = {name: value for name, value in content.items() if name not in ("like", "changes")}
        content = {**merged(base, own), "changes": changes}
    study = build(RealParams, content, file=str(path))
    if missing := [key for key in ("pair", "task") if not isinstance(study.changes.get(key), str)]:
        raise UserError(
            f"{path} lacks the key 'changes.{missing[0]}'. Add it: a study is about one pair with one task."
        )
    return study


def laid_over(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes` put in, block by block; null stays, because it takes a key of params.yaml away."""
    blocks = {key: laid_over(base.get(key) or {}, value) for key, value in changes.items() if isinstance(value, dict)}
    return {**base, **changes, **blocks}
