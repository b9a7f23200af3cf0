"""YAML files as plain data; `pipeline.common.entry` reads them where nothing that checks types is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from gistgate.errors import UserError
from gistgate.files import read_text

MOST_YAML = 1 << 20
"""Largest YAML file that is read, in bytes."""


class PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few nested ones stand for more data than a memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(None, None, "aliases are not read; write the value out", event.start_mark)
        return super().compose_node(parent, index)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file; an empty file is an empty block.

    Raises:
        UserError: the file is missing or no YAML.
    """
    text = read_text(path, MOST_YAML)
    try:
        content = yaml.load(text, Loader=PlainLoader)
        json.dumps(content, default=str).encode()
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        problem = " ".join(str(error).split())[:300]
        raise UserError(f"{path} is not valid YAML ({problem}). Mend the line it names.") from error
    return {} if content is None else content
