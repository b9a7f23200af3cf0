"""One answer as a page shows it: its tokens, its counters, and strict decoding of the same prompt for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gistgate.decoding.decoder import Decoder
from gistgate.observing.race import strict_of
from gistgate.observing.trace import TracedToken, trace
from gistgate.request.statistics import Statistics

STRICT = "strict"
"""Name of the run that strict decoding makes."""


@dataclass(frozen=True)
class Run:
    """A traced answer."""

    name: str
    """Heading of the answer, such as the rule with its setting."""
    tokens: Sequence[TracedToken]
    statistics: Statistics


def record(decoder: Decoder, ids: Sequence[int], tokenizer: Any, name: str | None = None, **request: Any) -> Run:
    """Decode one prompt and return the traced answer; `request` goes to `Decoder.generate`.

    Raises:
        UserError: the request is refused by `Decoder.generate`.
    """
    answer, tokens = trace(decoder, ids, tokenizer, **request)
    return Run(rule_name(decoder.rule) if name is None else name, tokens, answer.statistics)


def strict_run(decoder: Decoder, ids: Sequence[int], tokenizer: Any, **request: Any) -> Run:
    """Decode one prompt as `record` does, with the same drafter and K but without loose accepts."""
    return record(strict_of(decoder, decoder.drafter), ids, tokenizer, STRICT, **request)


def rule_name(rule: Any) -> str:
    """The rule's id and the value of its knob."""
    knob = rule.knob
    return str(rule.id) if knob is None else f"{rule.id}, {knob} {getattr(rule, knob):g}"


def numbers(statistics: Statistics) -> dict[str, str]:
    """What a reader compares, formatted; seconds are those of this one run."""
    seconds = statistics.seconds.get("total", 0.0)
    return {
        "tokens": str(statistics.tokens),
        "target forwards": str(statistics.forwards),
        "mean accepted length (tau)": f"{statistics.mean_accepted_length:.2f}",
        "loose tokens per hundred": f"{statistics.loose_per_100:.1f}",
        "seconds": f"{seconds:.2f}",
        "tokens per second": f"{statistics.tokens / seconds:.1f}" if seconds else "–",
    }
