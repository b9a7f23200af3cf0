"""One problem on its walk: the text as far as it is sure, and the steps in front of it that are not judged yet."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gistgate.request.rows import Memory
from pipeline.labels.mismatches import stamped
from pipeline.labels.rollouts import Rollout
from pipeline.labels.schema import Policy
from pipeline.labels.tables import Table, num_rows, picked


@dataclass(eq=False)
class Step:
    """A mismatch that a scout has met, and whose draft token it has forced."""

    record: Table
    """One row."""
    rollout: Rollout | None = None
    """What shows whether it does harm, once that was begun."""
    kept: bool | None = None
    """Whether it keeps the meaning, once that is known."""


@dataclass
class Walk:
    """One problem on its way."""

    problem: int
    prompt: list[int]
    reference: list[int]
    """The target's own answer; every answer behind a forced token is compared with it."""
    memory: Memory
    """What both models know of the prompt and of what the last scout wrote."""
    keep: int
    """Tokens of the memory's text, prompt included, that the next scout goes on from."""
    added: list[int] = field(default_factory=list)
    """What it puts behind them: the target's own token where the draft's did harm."""
    steps: list[Step] = field(default_factory=list)
    """Those that no outcome has settled yet, in the order of their places."""
    walked: list[Table] = field(default_factory=list)
    at_end: bool = False
    """Whether the scout's text is complete."""

    @property
    def answer(self) -> list[int]:
        """The answer as far as it was scouted; whole when the walk is over."""
        return self.memory.text[len(self.prompt) :]

    @property
    def over(self) -> bool:
        """Whether every mismatch of a complete text is judged."""
        return self.at_end and not self.steps

    def scouted(self, met: Table, memory: Memory, may_go_on: bool) -> None:
        """Take over what a scout has met on its way from `keep`, and the text that it wrote."""
        self.memory, self.keep, self.added, self.at_end = memory, len(memory.text), [], not may_go_on
        rows = torch.arange(num_rows(met) if met else 0)
        self.steps += [Step(picked(met, rows[n : n + 1])) for n in rows.tolist()]

    def begin(self, step: Step) -> Rollout:
        """The rollout behind a step."""
        position, token = int(step.record["position"]), int(step.record["draft_id"])
        step.rollout = Rollout(self.problem, self.prompt, self.answer, position, token, self.reference)
        return step.rollout

    def settle(self) -> None:
        """Go over the steps whose outcome is known; behind one that does harm the walk takes another way."""
        while self.steps and self.steps[0].kept is not None:
            step = self.steps.pop(0)
            known = torch.tensor([step.kept], dtype=torch.int8)
            self.walked.append({**stamped(step.record, self.problem, Policy.SEQUENTIAL), "greedy_kept": known})
            if not step.kept:
                self.keep = len(self.prompt) + int(step.record["position"])
                self.added, self.at_end = [int(step.record["target_id"])], False
                self.steps.clear()
