"""Drafters by id. A new drafter is one file and one line in DRAFTERS."""

from __future__ import annotations

from typing import Any

from gistgate.drafters.lookup import PromptLookup
from gistgate.drafters.model import ModelDrafter

DRAFTERS: dict[str, Any] = {
    "model": ModelDrafter,
    "lookup": PromptLookup,
}
