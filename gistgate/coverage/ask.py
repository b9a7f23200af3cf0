"""What a user wishes and what a decoder is asked, without anything that takes long to import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class Unknown:
    """The value of what nobody knows; it is compared with nothing."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Any = Unknown()
Settings = dict[str, Any]
"""Settings of a rule, by their names."""


@dataclass(frozen=True)
class Ask:
    """What a decoder is asked: how tokens are drawn, and how prompts are put and answers end."""

    temperature: float = UNKNOWN
    chat: bool = UNKNOWN  # whether prompts are wrapped in the chat template
    system: str | None = UNKNOWN
    num_fewshot: Any = UNKNOWN  # solved examples in a prompt: their number, or how they are put
    arguments: Mapping[str, Any] = UNKNOWN  # of the chat template
    stops: list[str] = UNKNOWN  # texts that end answers


@dataclass(frozen=True)
class Wish:
    """What a user says about the choice; None and empty where the user says nothing."""

    rule: str | None = None  # rule id, or the name of a preset
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the rule
    block: int | None = None  # K
    drafter: str | None = None
    budget: float | None = None
    confidence: float | None = None
    # Whether the user names the certificate; then it may be about any score.
    names_certificate: bool = False


def stops_of(stops: Sequence[str], tokenizer: Any) -> list[str]:
    """The texts that end answers, without that of the end token, which ends them by its id."""
    return sorted({*stops} - {"", getattr(tokenizer, "eos_token", None)})
