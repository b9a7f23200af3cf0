"""Requests of several threads take turns at a target.

Decoding hangs hooks on the target, exchanges its attention function for a while and fills memories of the compiled
engine, so that two requests at once would read each other's states.
"""

from __future__ import annotations

from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

TURNS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()
"""The lock of each target. A thread may ask the same target again while it decodes, as an observer does."""
GUARD = Lock()
"""Whoever asks for a lock first makes it."""


def turn(target: PreTrainedModel) -> Any:
    """A context in which no other thread decodes with this target."""
    with GUARD:
        return TURNS.setdefault(target, RLock())
