"""What the tables show of a method or a gate for which nothing is certified: it decodes strictly."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.report.gates import refused
from pipeline.report.tables import at_own_k, hollow, lengths
from tests.certificates.proofs import point, proof
from tests.pipeline.report.made_up import LENGTHS


@pytest.mark.parametrize(
    ("bound", "shown"), [(0.04, ("2.0 (1.0)", "41.5 (40.0)")), (None, ("1.0 (1.0)", "40.0 (40.0)"))]
)
def test_lengths_are_those_of_the_answers_that_users_get(bound: float | None, shown: tuple[str, str]) -> None:
    """The refused setting's answers were capped more often, and nobody is served them."""
    method: dict[str, Any] = {"certified_bound": bound, "certificates": {"0.1": LENGTHS}}
    assert lengths(method, 0.1) == shown


@pytest.mark.parametrize(("accuracy", "said"), [(0.04, True), (0.5, False)])
def test_bounds_that_promise_nothing_are_said_to(accuracy: float, said: bool) -> None:
    """A target that solves 4 % of the prompts cannot lose 5 points."""
    summary = {"headline_budget": 0.05, "plain": {"accuracy": 0.9}, "methods": {"exact": {"accuracy": accuracy}}}
    assert bool(hollow(summary)) is said


def test_methods_that_were_timed_at_another_k_are_named() -> None:
    """A refused rule at the K of strict decoding would look faster than a certified one that accepts as much."""
    methods = {"judge": {"block": 8, "timed_block": 4}, "fsd": {"block": 8, "timed_block": 8}, "old": {"block": 8}}
    assert at_own_k(methods) == (
        " Strict decoding and methods without a certificate are timed at the K of strict decoding: judge 4."
    )
    assert at_own_k({"old": {"block": 8}}) == ""


def test_a_refused_gate_has_neither_loss_nor_length() -> None:
    found = refused(proof(point(0.03, certified=False, bound=0.08)))
    assert found[1:4] == ("8.0, so that it decodes strictly", "–", "–")
