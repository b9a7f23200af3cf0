"""Answers as the pages show them, made by hand."""

from gistgate.core.request import Statistics
from gistgate.measure.trace import TracedToken
from gistgate.measure.trace_page import Run


def answer(name: str, *tokens: tuple[str, str, float | None, float]) -> Run:
    """An answer of (text, reason, gate's probability, target's probability) tokens in two rounds of
    one second.
    """
    traced = [TracedToken(*token) for token in tokens]
    counts = {
        reason: sum(token.reason == reason for token in traced)
        for reason in ("strict", "loose", "carried", "own")
    }
    return Run(name, traced, Statistics(forwards=2, seconds={"total": 2.0}, **counts))


LOOSE = answer(
    "autojudge, risk 0.1",
    ("Tom", "strict", 0.991, 0.912),
    (" owns", "loose", 0.934, 0.081),
    (" three", "carried", 0.955, 0.877),
    (" pears", "own", None, 0.703),
)
STRICT = answer(
    "strict",
    ("Tom", "strict", None, 0.912),
    (" has", "own", None, 0.855),
    (" three", "strict", None, 0.877),
    (" pears", "own", None, 0.703),
)
