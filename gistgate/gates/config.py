"""What a gate folder's config.json holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gistgate.errors import UserError
from gistgate.identity import ModelIdentity, TokenizerIdentity
from gistgate.typed import dataclass_from

FORMAT_VERSION = 2
"""Version of the folder's layout that this code reads and writes."""


@dataclass(frozen=True)
class GateConfig:
    """Everything about a gate except its weights. Equal trainings give equal bytes: no dates, no machine."""

    head: dict[str, Any]
    """{"type": id of gistgate.gates.heads.HEADS, ...its sizes}."""
    features: dict[str, int]
    """Feature id -> width, in the order in which the head reads them."""
    target: ModelIdentity
    """The model whose states the gate reads."""
    draft: ModelIdentity | None
    """The model whose drafts it judged; None for a drafter without a model."""
    tokenizer: TokenizerIdentity
    """The tokenizer of both."""
    map: dict[str, Any] = field(default_factory=lambda: {"type": "platt", "num_knots": 0})
    """{"type": id of gistgate.gates.calibration.MAPS, "num_knots": its size}."""
    labels: dict[str, Any] = field(default_factory=dict)
    """How the training labels came about."""
    prompting: dict[str, Any] = field(default_factory=dict)
    """Few-shot examples, chat template and system text the gate was trained under."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Parameters, library versions and hashes of the data."""
    problems: str = ""
    """Hashes of the problems that it was trained on, with spaces between: no certificate may be judged on these."""
    format_version: int = FORMAT_VERSION
    """Layout of the folder."""

    def as_json(self) -> dict[str, Any]:
        """What config.json holds. `features` becomes a list, because JSON objects have no order."""
        value = asdict(self)
        value["features"] = [{"id": name, "size": size} for name, size in self.features.items()]
        return value

    @classmethod
    def from_json(cls, value: Any, where: str) -> GateConfig:
        """Read what `as_json` wrote; `where` names the file in messages.

        Raises:
            UserError: another format version, or a key that is missing, unknown or of another kind.
        """
        version = value.get("format_version") if isinstance(value, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"{where} has format version {version}, this gistgate reads {FORMAT_VERSION}. "
                "Install the version that wrote it, or train and calibrate the gate again: what is certified stands in "
                "certificate.json."
            )
        try:
            draft = value.get("draft")
            config: GateConfig = dataclass_from(
                cls,
                {
                    **value,
                    "features": widths(value["features"]),
                    "head": with_type(value["head"]),
                    "map": with_type(value["map"]),
                    "target": dataclass_from(ModelIdentity, value["target"]),
                    "draft": None if draft is None else dataclass_from(ModelIdentity, draft),
                    "tokenizer": dataclass_from(TokenizerIdentity, value["tokenizer"]),
                },
            )
            return config
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{where} is no gate configuration: {reason}. Restore it or train the gate again."
            ) from error


def widths(listed: Any) -> dict[str, int]:
    """The features of config.json as id -> width; ValueError where an id stands twice or a width is below 1."""
    found: dict[str, int] = {}
    for item in listed:
        if item["id"] in found or type(item["size"]) is not int or item["size"] < 1:
            raise ValueError(f"the feature '{item['id']}' stands twice or has the width {item['size']!r}")
        found[item["id"]] = item["size"]
    return found


def with_type(value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a head's or map's description, whose sizes are small numbers; KeyError when it does not say its type.

    Raises:
        ValueError: a size is no number.
    """
    for name, size in dict(value).items():
        if name != "type" and (isinstance(size, bool) or not isinstance(size, int | float)):
            raise ValueError(f"the size '{name}' is {size!r}, but it has to be a number")
    if not isinstance(value["type"], str):
        raise ValueError(f"the type is {value['type']!r}, but it has to be a text")
    return dict(value)
