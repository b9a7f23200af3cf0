"""What a datastore folder's config.json holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gistgate.errors import UserError
from gistgate.identity import ModelIdentity, TokenizerIdentity
from gistgate.typed import dataclass_from

FORMAT_VERSION = 1
"""Version of the folder's layout that this code reads and writes."""


@dataclass(frozen=True)
class DatastoreConfig:
    """Everything about a datastore except its tensors. Equal builds give equal bytes: no dates, no machine."""

    target: ModelIdentity
    """The model whose states the keys are."""
    tokenizer: TokenizerIdentity
    """The tokenizer of the stored tokens."""
    layer: str
    """Which state: "post", "pre" or "layer:i"."""
    num_keys: int
    """N, stored states."""
    key_size: int
    """P, width of a key."""
    files: dict[str, int] = field(default_factory=dict)
    """Bytes of every other file of the folder, by name: a truncated one is refused before it is read."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Which prompts the states come from, and how many."""
    format_version: int = FORMAT_VERSION
    """Layout of the folder."""

    def as_json(self) -> dict[str, Any]:
        """What config.json holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str) -> DatastoreConfig:
        """Read what `as_json` wrote; `where` names the file in messages.

        Raises:
            UserError: another format version, or a key that is missing, unknown or of another kind.
        """
        version = value.get("format_version") if isinstance(value, dict) else None
        if version != FORMAT_VERSION:
            raise UserError(
                f"{where} has format version {version}, this gistgate reads {FORMAT_VERSION}. Build the datastore "
                "again, or install the version that wrote it."
            )
        try:
            parts = {"target": dataclass_from(ModelIdentity, value["target"])}
            parts["tokenizer"] = dataclass_from(TokenizerIdentity, value["tokenizer"])
            config: DatastoreConfig = dataclass_from(cls, {**value, **parts})
        except (KeyError, TypeError, ValueError) as error:
            reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(f"{where} is no datastore configuration: {reason}. Build the datastore again.") from error
        return config
