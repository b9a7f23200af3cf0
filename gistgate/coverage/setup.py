"""What decodes, in values that can be compared: hashes, ids and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedModel

from gistgate.core.files import fingerprint, named_files
from gistgate.core.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.ask import UNKNOWN, Ask, Settings

LIBRARY = "this library's"
"""Any engine of this library, of which some give the same ids."""


def is_server(engine: Any) -> bool:
    """Whether a certificate names an engine that serves models rather than one of this library."""
    return str(engine).startswith("vllm ")


@dataclass(frozen=True)
class Setup:
    """What decodes: models, tokenizer, gate, rule and drafter, with their settings."""

    target: dict[str, Any] = UNKNOWN  # entries of `model_scope`
    draft: dict[str, Any] = UNKNOWN
    tokenizer: str = UNKNOWN  # hash of the vocabulary
    encoding: str = UNKNOWN  # hash of the ids of a probing text
    template: str = UNKNOWN  # hash of the chat template
    ends: list[int] = UNKNOWN  # token ids that end answers
    gate: str | None = UNKNOWN  # `gate_hash`; None without a gate
    rule: str = UNKNOWN  # rule id
    settings: Settings = UNKNOWN  # all settings of the rule, the knob included
    rule_data: str = UNKNOWN  # hash of the files that the settings name
    drafter: str = UNKNOWN  # drafter id
    drafter_data: str | None = UNKNOWN  # hash of the texts that the drafter reads
    drafting: dict[str, Any] | None = UNKNOWN  # what else decides its proposals (`Drafter.binding`)
    block: int = UNKNOWN  # K, drafted tokens per round
    engine: str = UNKNOWN
    guards: list[str] = UNKNOWN  # ids

    @classmethod
    def of(
        cls,
        target: PreTrainedModel | None = None,
        draft: PreTrainedModel | None = None,
        tokenizer: Any = None,
        gate: Any = None,
        **values: Any,
    ) -> Setup:
        """The setup of loaded parts; those that are left out are unknown. Where the target is
        loaded this library decodes.
        """
        if target is not None:
            values["target"] = model_scope(identify_model(target))
            values.setdefault("engine", LIBRARY)
        if draft is not None:
            values["draft"] = model_scope(identify_model(draft))
        if tokenizer is not None:
            values |= tokenizer_scope(tokenizer, ("encoding", "template"))
        if target is not None and tokenizer is not None:
            values["ends"] = eos_ids(target, tokenizer)
        if gate is not None:
            values["gate"] = gate_hash(gate)
        return cls(**values)


def known_fields(value: Setup | Ask) -> dict[str, Any]:
    """The fields of a setup or an ask that are known."""
    values = {item.name: getattr(value, item.name) for item in fields(value)}
    return {name: entry for name, entry in values.items() if entry is not UNKNOWN}


def files_behind(settings: Mapping[str, Any]) -> str:
    """The hash of the files that settings of a rule name."""
    files = named_files(settings)
    if not files:
        texts = [f"{name}={value}" for name, value in settings.items() if isinstance(value, str)]
        raise UserError(
            f"The file that the certified rule reads is not here ({', '.join(texts) or 'none'})."
            " Start where its path begins."
        )
    return fingerprint(*files)
