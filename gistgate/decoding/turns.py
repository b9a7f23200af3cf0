"""Requests of several threads take turns at a model.

Decoding hangs hooks on a target, exchanges the attention function of a model for a while and fills memories of the
compiled engine, so that two requests at once would read each other's states. Each copy of this code, such as an
exported folder, has locks of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

TURNS: WeakKeyDictionary[PreTrainedModel, Any] = WeakKeyDictionary()
"""The lock of each model. A thread may ask its models again while it decodes, as memories that are read ahead and the
opinion `pair` of segments do."""
GUARD = Lock()
"""Whoever asks for a lock first makes it."""


@contextmanager
def turn(models: Iterable[PreTrainedModel]) -> Iterator[None]:
    """No other thread decodes with these models. Locks are taken in one order, so that nobody waits in a circle."""
    with ExitStack() as taken:
        for model in sorted(models, key=id):
            taken.enter_context(lock_of(model))
        yield


def lock_of(model: PreTrainedModel) -> Any:
    """The lock of a model."""
    with GUARD:
        return TURNS.setdefault(model, RLock())
