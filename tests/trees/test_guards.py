"""Guards and trees: a greedy tree is closed with all its paths and counts once, a sampled one is
lossless anyway.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from gistgate.core.block import Block, Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.guard import CLOSED, Guard, Verdict
from gistgate.core.request import Generation, Row
from gistgate.core.rule import Rule
from gistgate.rules import make_rule
from tests.architectures import BATCH, greedy, pair
from tests.compiled.test_fall_back import Weary, strange
from tests.trees.growing import tree_drafter

NUM = 24
LOOSE: list[tuple[str, dict[str, Any]]] = [
    ("prob", {"r": 1e-3}),
    ("typical", {"superset": False, "greedy": "raw", "scale": 0.1}),
    ("ensemble", {"w": 0.2, "superset": False, "replacement": "argmax_nu"}),
    ("fsd", {"threshold": 0.05, "reduced": False}),
    ("random", {"rate": 0.9}),
]


class ClosingGuard(Guard):
    """A guard that closes every row and keeps what it was asked."""

    id = "closing"

    def __init__(self) -> None:
        self.told: list[tuple[int, int, int]] = []
        """Of every question the paths, their rows, and the tokens of the longest path."""

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        self.told.append((len(rows), len({row.index for row in rows}), block.draft_ids.shape[1]))
        return [CLOSED] * len(rows)


def answers(
    rule: Rule, *guards: Any, batch: Any = BATCH, sampling: Sampling | None = None
) -> list[Generation]:
    target, draft = pair("llama", noise=0.1)
    decoder = Decoder(target, tree_drafter(draft, nodes=12), rule, 5, guards=guards)
    return decoder.generate(batch, max_new_tokens=NUM, sampling=sampling)


def texts(rows: Sequence[Generation]) -> list[list[int]]:
    return [row.ids for row in rows]


@pytest.mark.parametrize(("rule_id", "settings"), LOOSE)
def test_a_closed_row_writes_the_greedy_text_whichever_path_is_best(
    rule_id: str, settings: dict[str, Any]
):
    rule, guard = make_rule(rule_id, **settings), ClosingGuard()
    closed, free = answers(rule, guard), answers(rule)
    strict = [greedy("llama", tuple(prompt), NUM) for prompt in BATCH]
    assert texts(closed) == strict != texts(free) and any(row.statistics.loose for row in free)
    assert {why for row in closed for why in row.reasons} == {Reason.STRICT, Reason.OWN}
    assert any(paths > rows for paths, rows, _ in guard.told), (
        "some row was asked about with several paths"
    )


def test_a_round_of_a_tree_counts_once():
    rows = answers(make_rule("prob", r=1e-3), strange())
    assert texts(rows) == [greedy("llama", tuple(prompt), NUM) for prompt in BATCH]
    for row in rows:
        assert row.statistics.extra["domain_far"] == 1
        assert row.statistics.extra["domain_rounds"] == row.statistics.forwards


def test_the_loop_guard_closes_the_rounds_behind_its_alarm():
    """Every row for itself; from then on each round counts once, and what it keeps is there because
    of the guard.
    """
    rule, guard = make_rule("prob", r=1e-3), Weary(window=math.inf)
    together = answers(rule, guard)
    for row, prompt in zip(together, BATCH, strict=True):
        [alone] = answers(rule, guard, batch=[prompt])
        assert (alone.ids, alone.reasons, alone.statistics.extra) == (
            row.ids,
            row.reasons,
            row.statistics.extra,
        )
        ends = [place + 1 for place, why in enumerate(row.reasons) if why == Reason.OWN]
        noticed = next(end for end in ends if end > 3)
        behind = row.reasons[noticed:]
        assert set(behind) == {Reason.LOOP, Reason.OWN} and Reason.LOOP not in row.reasons[:noticed]
        rounds = behind.count(Reason.OWN) + (behind[-1] != Reason.OWN)
        assert row.statistics.extra["loop_rounds"] == rounds > 1
        own = "loop_alarms" if Reason.LOOSE in row.reasons else "loop_target"
        assert row.statistics.extra[own] == 1
    assert any(row.statistics.loose for row in together)


@pytest.mark.parametrize("rule_id", ["exact", "traversal"])
def test_sampled_trees_are_not_guarded(rule_id: str):
    """No guard is asked about a tree, and texts and reasons stay; a round without a draft is
    none.
    """
    rule, sampling, guard = make_rule(rule_id), Sampling(1.0), ClosingGuard()
    free = [(row.ids, row.reasons) for row in answers(rule, sampling=sampling)]
    for guards in ([guard, strange()], [Weary(window=math.inf)]):
        guarded = answers(rule, *guards, sampling=sampling)
        assert [(row.ids, row.reasons) for row in guarded] == free
        assert {why for row in guarded for why in row.reasons} == {Reason.STRICT, Reason.OWN}
        for row in guarded:
            counted = row.statistics.extra
            assert counted.keys().isdisjoint({"loop_alarms", "domain_loose"})
            assert counted.get("loop_rounds", 0) <= 1 and counted.get("domain_rounds", 0) <= 1
    assert all(length == 0 for *_, length in guard.told)
