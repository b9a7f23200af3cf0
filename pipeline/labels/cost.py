"""What labels cost, counted while they are made: forwards, tokens read, rollout tokens, idle slots, seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import nn

from gistgate.files import read_json, write_json
from gistgate.request.slots import Usage

REPORTS = Path("reports/labels")
"""One file for each pass of the stages `collect` and `label`."""


@dataclass
class Cost:
    """Sums over the pieces of a stage. Everything but `seconds` is a function of the data and of the way of rolling.

    After an interruption they hold what was done twice as well; of slots the interrupted part is missing.
    """

    labels: int = 0
    """Mismatches whose outcome was found by a rollout and kept as a label."""
    rollouts: int = 0
    """Continuations made, greedy and sampled, those without a label of their own included."""
    rollout_tokens: int = 0
    """Tokens that rollouts added behind their forced token."""
    target_forwards: int = 0
    """Forwards of the target, a batch each."""
    draft_forwards: int = 0
    """Forwards of the draft model, a batch each."""
    target_tokens: int = 0
    """Tokens that the target read, padding included."""
    draft_tokens: int = 0
    """Tokens that the draft model read, padding included."""
    slots: int = 0
    """Rows that the rounds of rollouts, and those in which mismatches are met, had room for."""
    slots_used: int = 0
    """Rows of these that held a text."""
    seconds: float = 0.0
    """Wall-clock time, as measured; shards that run side by side add up."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)})

    @contextmanager
    def counting(self, models: Sequence[nn.Module]) -> Iterator[None]:
        """Count the forwards of the target and the draft model, and the time, while the context is open."""

        def count(role: str) -> Any:
            def hook(_module: nn.Module, _args: Any, inputs: dict[str, Any]) -> None:
                setattr(self, f"{role}_forwards", getattr(self, f"{role}_forwards") + 1)
                setattr(self, f"{role}_tokens", getattr(self, f"{role}_tokens") + inputs["input_ids"].numel())

            return hook

        roles = zip(("target", "draft"), models, strict=False)
        handles = [model.register_forward_pre_hook(count(role), with_kwargs=True) for role, model in roles]
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds += perf_counter() - started
            for handle in handles:
                handle.remove()

    def rolled(self, tokens: int) -> None:
        """One rollout has ended that added `tokens`."""
        self.rollouts += 1
        self.rollout_tokens += max(tokens, 0)

    def use(self, usage: Usage) -> None:
        """Take in how the slots of a request were used."""
        self.slots += usage.available
        self.slots_used += usage.busy

    def as_json(self) -> dict[str, Any]:
        """The sums, and what they say of one label; None where nothing was counted."""
        return {
            **asdict(self),
            "labels_per_hour": ratio(3600 * self.labels, self.seconds),
            "rollouts_per_label": ratio(self.rollouts, self.labels),
            "rollout_tokens_per_label": ratio(self.rollout_tokens, self.labels),
            "forwards_per_label": ratio(self.target_forwards, self.labels),
            "tokens_read_per_label": ratio(self.target_tokens + self.draft_tokens, self.labels),
            "idle_share_of_slots": ratio(self.slots - self.slots_used, self.slots),
        }


def ratio(part: float, whole: float) -> float | None:
    """A quotient; None where the whole is nothing."""
    return part / whole if whole else None


class Costs:
    """The costs of a stage's shards, which wait beside these until the last one is finished."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, index: int, cost: Cost) -> None:
        """Keep the cost of one shard; called before the shard itself is written."""
        write_json(self.folder / f"cost-{index:05d}.json", asdict(cost))

    def report(self, name: str, count: int, way: dict[str, Any] | None) -> None:
        """Write the sum over all shards to reports/labels/<name>.json, with the way that greedy rollouts went."""
        parts = [Cost(**read_json(self.folder / f"cost-{index:05d}.json")) for index in range(count)]
        write_json(REPORTS / f"{name}.json", {**sum(parts, Cost()).as_json(), "greedy_rollouts": way})
