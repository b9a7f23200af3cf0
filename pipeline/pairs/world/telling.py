"""Tell a problem: its question and its worked solution, in GSM8K's form with `#### answer` at the end."""

from __future__ import annotations

import random
from collections.abc import Callable

from pipeline.pairs.world.lexicon import SITES
from pipeline.pairs.world.problem import Problem, Step
from pipeline.pairs.world.style import Style


class Teller:
    """Writes texts in one style; with ornaments or without."""

    def __init__(self, style: Style, ornaments: bool) -> None:
        self.style = style
        self.ornaments = ornaments

    def question(self, problem: Problem, rng: random.Random) -> str:
        """The question: start, one sentence per step, what is asked."""
        say = self._speaker(problem, rng)
        sentences = [say("q_start", stored=say("q_stored") if self.ornaments else "")]
        if self.ornaments:
            sentences.append(say("q_meeting"))
        for i, step in enumerate(problem.steps):
            when = f"On {step.day}" if self.ornaments else ("First", "Then", "Next", "Later")[i]
            sentences.append(say(f"q_step.{step.operation}", when=when, amount=step.amount))
        return " ".join([*sentences, say("q_ask")])

    def solution(self, problem: Problem, rng: random.Random) -> str:
        """The worked solution; its last line is `#### answer`."""
        say = self._speaker(problem, rng)
        stored = say("stored") if self.ornaments else ""
        sentences = [f"{say('opener')} {say('have')}{stored}."]
        befores = [problem.start, *problem.totals]
        for step, before, after in zip(problem.steps, befores, problem.totals, strict=False):
            sentences.append(self._step(say, step, before, after))
        return " ".join([*sentences, say("final", after=problem.answer)]) + f"\n#### {problem.answer}"

    def _step(self, say: Callable[..., str], step: Step, before: int, after: int) -> str:
        fill = {"amount": step.amount, "day": step.day, "before": before, "after": after}
        detail = say("detail", **fill) if self.ornaments else ""
        action = f"{say('connective')}{detail} {say('subject')} {say(f'verb.{step.operation}', **fill)}"
        return f"{action}{say('link')} {say(f'equation.{step.operation}', **fill)}{say('tail')}."

    def _speaker(self, problem: Problem, rng: random.Random) -> Callable[..., str]:
        facts = vars(problem)

        def say(site: str, **fill: object) -> str:
            return self.style.choose(site, rng, SITES[site]).format(**{**facts, **fill})

        return say
