"""The options of `gistgate calibrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gistgate.certificates.fixed_sequence import Stop, check_stop
from gistgate.certificates.looks import level
from gistgate.errors import UserError


@dataclass(frozen=True)
class Options:
    """The options of the command; its help texts say what each one means."""

    task: str
    budget: float = 0.02
    confidence: float = 0.95
    gate: str | None = None
    rule: str | None = None
    target: str | None = None
    gguf: str | None = None
    draft: str | None = None
    draft_gguf: str | None = None
    quantise_draft: str | None = None
    stop_drafting: str | None = None
    draft_vocabulary: str | None = None
    drafter: str | None = None
    settings: Sequence[str] = ()
    block: int | None = None
    prompts: int | None = None
    development: int = 300
    stop: Stop = "lost"
    score: str = "task"
    judge: str | None = None
    task_data: str | None = None
    allow_code: bool = False
    chat: bool | None = None
    system: str | None = None
    num_fewshot: int | None = None
    metric: str | None = None
    max_new_tokens: int | None = None
    out: Path | None = None
    batch_size: int = 32
    seed: int = 0
    draw: int = 1
    looks: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.budget < 1 and 0.5 <= self.confidence < 1):
            raise UserError(
                f"A budget of {self.budget:g} at confidence {self.confidence:g} cannot be certified. "
                "The budget lies in (0, 1), the confidence in [0.5, 1)."
            )
        level(self.confidence, self.looks)  # refuses what no number of prompts can reach
        check_stop(self.stop)
        if self.gate is None and (self.out is None or self.target is None):
            raise UserError(
                "Without --gate, say where the certificate goes (--out) and which model decodes (--target)."
            )

    @property
    def folder(self) -> Path:
        """Where the certificate goes."""
        return self.out or Path(self.gate or ".")
