"""Draft and gate, whether they come as objects or as names; names are loaded once per target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import cached_file

from gistgate.certificates.certificate import CERTIFICATE_FILE
from gistgate.drafters import DRAFTERS, ModelDrafter
from gistgate.drafters.base import Drafter
from gistgate.errors import UserError
from gistgate.gates.gate import CONFIG_FILE, WEIGHTS_FILE, Gate

T = TypeVar("T")

LOADED: WeakKeyDictionary[PreTrainedModel, dict[Any, Any]] = WeakKeyDictionary()
"""What was loaded for a target; `generate` is called once per batch, and loading takes longer than a batch."""


def load_draft(draft: PreTrainedModel | str | Path | None, target: PreTrainedModel) -> PreTrainedModel | None:
    """The draft model; one that is named is loaded in the target's dtype to its device.

    Raises:
        UserError: it cannot be loaded.
    """
    if not isinstance(draft, str | Path):
        return draft
    name = str(draft)

    def load() -> PreTrainedModel:
        try:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=target.dtype)
        except (OSError, ValueError) as error:
            raise UserError(f"The draft '{name}' could not be loaded ({error}). Check draft_model=.") from error
        return model.to(target.device).eval()

    return once(target, ("draft", name, changed(name), target.dtype, target.device), load)


def load_gate(
    gate: Gate | str | Path | None, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: Any
) -> Gate | None:
    """The gate, checked against its partners.

    Raises:
        UserError: it cannot be found or read, or it was trained for others.
    """
    if gate is None:
        return None
    partners = (id(draft), id(tokenizer))
    if isinstance(gate, str | Path):
        name = str(gate)
        key = ("gate", name, changed(name), *partners)
        return once(target, key, lambda: Gate.load(gate_folder(name), target, draft, tokenizer))
    given = gate

    def checked() -> Gate:
        given.check(target, draft, tokenizer)
        return given

    return once(target, ("gate", id(gate), *partners), checked)


def once(target: PreTrainedModel, key: tuple[Any, ...], load: Callable[[], T]) -> T:
    """What `load` returned when it was first called for this target and key."""
    known = LOADED.setdefault(target, {})
    if key not in known:
        known[key] = load()
    value: T = known[key]
    return value


def changed(name: str) -> tuple[int, ...]:
    """When configuration and certificate in a folder were written, in nanoseconds; empty for what is no folder."""
    files = [Path(name) / file for file in (CONFIG_FILE, CERTIFICATE_FILE)]
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


def gate_folder(name: str) -> Path:
    """The gate's folder; a hub id is fetched.

    Raises:
        UserError: neither a folder nor on the hub.
    """
    if Path(name).is_dir():
        return Path(name)
    try:
        found = [cached_file(name, file) for file in (CONFIG_FILE, WEIGHTS_FILE)]
        cached_file(name, CERTIFICATE_FILE, _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError) as error:
        raise UserError(f"The gate '{name}' is neither a folder nor a reachable hub id. Check gate=.") from error
    return Path(str(found[0])).parent


def make_drafter(drafter: str, draft: PreTrainedModel | None) -> Drafter:
    """The drafter of that id.

    Raises:
        UserError: there is no such drafter, or it has no model.
    """
    if drafter not in DRAFTERS:
        raise UserError(f"There is no drafter '{drafter}'. Known: {', '.join(DRAFTERS)}.")
    with_model = issubclass(DRAFTERS[drafter], ModelDrafter)
    if with_model and draft is None:
        raise UserError("There is no draft. Pass draft_model=<model, folder or hub id>, or drafter='lookup'.")
    made: Drafter = DRAFTERS[drafter](draft) if with_model else DRAFTERS[drafter]()
    return made
