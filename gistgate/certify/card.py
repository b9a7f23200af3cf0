"""The card: what a comparison says, as JSON and for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import gistgate
from gistgate.certificates.calibration import task_scope
from gistgate.certificates.fixed_sequence import Verdicts
from gistgate.certify.claims import CLAIMS
from gistgate.certify.comparison import Comparison

CARD_FILE = "served-certificate.json"


@dataclass(frozen=True)
class ServedCertificate:
    """One test of one claim about the loose server against the strict one."""

    strict: dict[str, Any]
    """Address, model and request settings of the reference, and what it reports of itself."""
    loose: dict[str, Any]
    """The same of the server that was tested."""
    scope: dict[str, Any]
    """Task, prompts and prompting."""
    budget: float
    """Largest mean loss in the unit of the score, share of changed answers, or growth of the mean
    length."""
    confidence: float
    """Probability with which the claim holds, over the draw of the prompts."""
    n: int
    """Prompts that were compared."""
    losses: int
    """Prompts on which the loose server scored lower, answered otherwise or wrote more."""
    gains: int
    """Prompts on which it scored higher or wrote less."""
    differing: int
    """Prompts with different answers, scored alike or not."""
    loss: float
    """Mean of strict - loose score, share of changed answers, or growth of the mean length."""
    bound: float
    """One-sided upper bound on that."""
    bound_kind: str
    """Which bound it is."""
    certified: bool
    """Whether the bound keeps the budget."""
    strict_answers: dict[str, float | None]
    """Shares cut at the longest length and before, mean tokens and mean score."""
    loose_answers: dict[str, float | None]
    refusal: str | None = None
    """Why nothing is certified and what would help; None after a success."""
    made: str = ""
    """Date in UTC."""
    claim: str = "score"
    """One of `CLAIMS`."""
    task: str = ""
    """Its name."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """What every request says, unless `extra` says otherwise."""
    version: str = ""
    """Of GistGate."""

    @classmethod
    def of(cls, comparison: Comparison, verdicts: Verdicts) -> ServedCertificate:
        """What the test said."""
        task = comparison.task
        answered = comparison.answered
        endpoints = comparison.endpoints
        budget = comparison.plan.budget
        verdicts = comparison.claim.shown(verdicts, answered)
        refusal = verdicts.refusal(budget)
        return cls(
            strict={**endpoints.strict.described(), "reported": endpoints.strict.reported},
            loose={**endpoints.loose.described(), "reported": endpoints.loose.reported},
            **verdicts.bound(budget).entries,
            scope=task_scope(task, [task.question(prompt.doc) for prompt in answered]),
            budget=budget,
            confidence=comparison.plan.confidence,
            certified=refusal is None,
            strict_answers=comparison.means(0),
            loose_answers=comparison.means(1),
            differing=sum(prompt.is_differing for prompt in answered),
            refusal=refusal,
            made=datetime.now(UTC).date().isoformat(),
            claim=comparison.claim.id,
            task=task.name,
            sampling={
                "temperature": endpoints.temperature,
                "max_tokens": task.max_new_tokens,
                "stop": list(task.stops),
                "samples": endpoints.samples,
                "seed": endpoints.seed,
            },
            version=gistgate.__version__,
        )

    @property
    def sentence(self) -> str:
        """The verdict for people."""
        claim = CLAIMS[self.claim]
        quantity, worse, better = claim.words
        strict, loose = (f"{side['model']} at {side['url']}" for side in (self.strict, self.loose))
        verdict = "Certified" if self.certified else "Not certified"
        temperature = self.sampling["temperature"]
        sampled = f" at temperature {temperature}, on average over samples" if temperature else ""
        return (
            f"{verdict} at {100 * self.confidence:.4g} %: {loose}"
            f" {claim.promise.format(100 * self.budget)} {strict}{sampled}; {quantity}"
            f" {self.loss:.2%}, at most {self.bound:.2%} ({self.losses} {worse}, {self.gains}"
            f" {better}, {self.differing} in other words, of {self.n} prompts)."
        )

    @property
    def card(self) -> str:
        """The sentence and all entries as a page of Markdown."""
        entries = asdict(self)
        strict = {**entries.pop("strict"), **entries.pop("strict_answers")}
        loose = {**entries.pop("loose"), **entries.pop("loose_answers")}
        lines = [f"# {self.sentence}", "", "| | strict | loose |", "|---|---|---|"]
        rows = [f"| {name} | {in_cell(strict[name])} | {in_cell(loose[name])} |" for name in strict]
        facts = [f"- {name}: {in_cell(entry)}" for name, entry in entries.items()]
        return "\n".join([*lines, *rows, "", *facts, ""])


def in_cell(value: Any) -> str:
    """A value as JSON that no table takes for the end of a cell."""
    return json.dumps(value, ensure_ascii=False).replace("|", "&#124;")
