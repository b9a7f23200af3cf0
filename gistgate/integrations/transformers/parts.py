"""Draft, gate and segment probes as objects or names; what is named is loaded once for each target."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel
from transformers.utils import cached_file

from gistgate.build.models import load_draft
from gistgate.build.wishes import Wishes
from gistgate.certificates.certificate import CERTIFICATE_FILE
from gistgate.errors import UserError
from gistgate.gates.gate import CONFIG_FILE, WEIGHTS_FILE, Gate

T = TypeVar("T")

LOADED: WeakKeyDictionary[PreTrainedModel, OrderedDict[Any, Any]] = WeakKeyDictionary()
"""What was loaded for a target; `generate` is called once per batch, and loading takes longer than a batch."""
MOST = 16
"""Parts that are kept for a target; a server that makes partners anew for each request would keep all of them."""
TURN = RLock()
"""Two threads load nothing twice."""


def loaded_parts(wishes: Wishes, target: PreTrainedModel, tokenizer: Any) -> Wishes:
    """The wishes with models, gates and probes in place of their names.

    Raises:
        UserError: a part cannot be found or read, or it was trained for others.
    """
    draft, lighter = wishes.draft, wishes.lighter
    if isinstance(draft, str | Path):
        name = draft
        key: tuple[Any, ...] = ("draft", str(draft), changed(draft), *lighter.values(), target.dtype, target.device)
        draft = once(target, key, lambda: load_draft(name, target, tokenizer, **lighter))
    elif draft is not None:  # made lighter before anything is compared with it
        draft = load_draft(draft, target, tokenizer, **lighter)
    partners = (id(draft), id(tokenizer))
    gate = wishes.gate
    if gate is not None:
        key = ("gate", str(gate), changed(gate), *partners) if isinstance(gate, str | Path) else (id(gate), *partners)
        gate = once(target, key, lambda: checked_gate(wishes.gate, target, draft, tokenizer), gate, draft, tokenizer)
    segments = wishes.segments
    if isinstance(segments, str | Path) and draft is not None and tokenizer is not None:
        from gistgate.build.segments import load_segments

        place = segments
        key = ("segments", str(place), changed(place), *partners)
        loading = partial(load_segments, folder_of(place), target, draft, tokenizer)
        segments = once(target, key, loading, draft, tokenizer)
    return replace(wishes, draft=draft, gate=gate, segments=segments)


def checked_gate(
    gate: Gate | str | Path, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: Any
) -> Gate:
    """The gate, checked against its partners; a loaded one loses a certificate that does not hold here, with a warning.

    Raises:
        UserError: the gate cannot be found or read, or it was trained for others.
    """
    if isinstance(gate, str | Path):
        return Gate.load(folder_of(gate), target, draft, tokenizer, elsewhere=True)
    gate.check(target, draft, tokenizer)
    broken = None if gate.proof is None else gate.proof.mismatch(gate, target, draft, tokenizer)
    if broken is not None:
        warnings.warn(broken, stacklevel=2)
        gate = copy(gate)
        gate.proof = None
    return gate


def once(target: PreTrainedModel, key: tuple[Any, ...], load: Callable[[], T], *partners: Any) -> T:
    """What `load` returned when it was first called for this target and key.

    `partners`, whose ids are in the key, are kept: another object could get the id of one that is gone.
    """
    with TURN:
        known = LOADED.setdefault(target, OrderedDict())
        if key not in known:
            known[key] = load(), partners
        known.move_to_end(key)
        while len(known) > MOST:
            known.popitem(last=False)
        value: T = known[key][0]
    return value


def changed(name: str | Path) -> tuple[int, ...]:
    """When configuration and certificate in a folder were written, in nanoseconds; empty for what is no folder."""
    files = [Path(name) / file for file in (CONFIG_FILE, CERTIFICATE_FILE)]
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


def folder_of(name: str | Path) -> Path:
    """The folder of a gate or of probes; a hub id is fetched.

    Raises:
        UserError: the name is neither a folder nor on the hub.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        found = [cached_file(str(name), file) for file in (CONFIG_FILE, WEIGHTS_FILE)]
        cached_file(str(name), CERTIFICATE_FILE, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise UserError(f"The gate '{name}' is neither a folder nor a reachable hub id. Check the name.") from error
    return Path(str(found[0])).parent
