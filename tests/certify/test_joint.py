"""The error of both joint verdicts in simulation, and rows, verdicts and needs of known tables."""

import numpy as np
import pytest

from gistgate.certificates.bounds import BETTING, EXACT, exact_bound
from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certify import claims, joint
from gistgate.certify.claims import Claim
from gistgate.certify.joint import Design, enough, judged, points
from gistgate.certify.paired import Record
from gistgate.core.utils import UserError

REPETITIONS = 1000
BUDGET = 0.1


def records_of(task, differences):
    """Records of a task with these differences, the baseline being right where it has to be."""
    return [
        Record(task, str(place), "", 1.0 if d >= 0 else 1 + d, 1 - d if d >= 0 else 1.0, d != 0)
        for place, d in enumerate(np.asarray(differences, float).tolist())
    ]


def judge(tables, how="each", budget=BUDGET, confidence=0.95):
    """The verdict about tasks by name."""
    records = [record for task, d in tables.items() for record in records_of(task, d)]
    return judged(records, dict.fromkeys(tables, "score"), budget, confidence, how)


@pytest.fixture
def by_counts(monkeypatch):
    """The exact bound of a table is computed once, whatever the order of its documents."""
    known = {}

    def remembered(settings, *arguments, **options):
        ((decoded,),) = settings
        d = decoded.differences
        table = ((d > 0).sum(), (d < 0).sum(), len(d))
        if table not in known:
            known[table] = fixed_sequence(settings, *arguments, **options)
        return known[table]

    monkeypatch.setattr(claims, "fixed_sequence", remembered)
    monkeypatch.setattr(claims, "RESOLUTION", 2e-3)  # of the lower bound, which bets


def test_both_joint_verdicts_err_in_5_of_100_runs_at_most(by_counts):
    """Two tasks lose the budget, so that each and their mean do; three standard errors of 1,000
    runs are allowed.
    """
    random = np.random.default_rng(0)
    chances = [BUDGET + 0.02, 0.02, 1 - BUDGET - 0.04]
    false_verdicts = {"each PASS": 0, "each FAIL": 0, "mean PASS": 0, "mean FAIL": 0, "rows": 0}
    for _ in range(REPETITIONS):
        rows = []
        for task in ("a", "b"):
            d = random.choice([1.0, -1.0, 0.0], 30, p=chances)
            rows.append(joint.tested(records_of(task, d), "score", Claim(BUDGET), 0.975, Design()))
        for how in ("each", "mean"):
            verdict = joint.joined(rows, BUDGET, 0.95, how)
            if verdict.verdict != "UNDECIDED":
                false_verdicts[f"{verdict.how} {verdict.verdict}"] += 1
        false_verdicts["rows"] += any(row.bound < BUDGET for row in rows)
    limit = REPETITIONS * 0.05 + 3 * (REPETITIONS * 0.05 * 0.95) ** 0.5
    assert max(false_verdicts.values()) <= limit
    assert false_verdicts["rows"] > 0


def test_one_task_has_the_whole_error_and_several_share_it():
    d = [1] * 3 + [-1] * 2 + [0] * 295
    alone = judge({"a": d})
    assert alone.bound == pytest.approx(exact_bound(3, 2, 300, 0.05), abs=2e-6)
    assert alone.rows[0].confidence == pytest.approx(0.95)
    both = judge({"a": d, "b": d})
    assert both.rows[0].confidence == pytest.approx(0.975)
    assert both.bound == pytest.approx(exact_bound(3, 2, 300, 0.025), abs=2e-6)
    assert both.bound > alone.bound


def test_scores_of_right_or_wrong_have_the_exact_bound_and_others_bet():
    assert judge({"a": [1, 0, 0] * 40}).rows[0].bound_kind == EXACT
    assert judge({"a": [0.5, 0, 0] * 40}).rows[0].bound_kind == BETTING


@pytest.mark.parametrize("tables, how, verdict", [
    ({"a": [0] * 300, "b": [0] * 300}, "each", "PASS"),
    ({"a": [0] * 300, "b": [1] * 90 + [0] * 210}, "each", "FAIL"),
    ({"a": [0] * 300, "b": [1] * 24 + [0] * 276}, "each", "UNDECIDED"),
    ({"a": [0] * 300, "b": [1] * 24 + [0] * 276}, "mean", "PASS"),
    ({"a": [1] * 60 + [0] * 240, "b": [1] * 90 + [0] * 210}, "mean", "FAIL"),
])  # fmt: skip
def test_verdicts_of_each_and_of_the_mean(tables, how, verdict):
    shuffled = {}
    for task, d in tables.items():
        shuffled[task] = np.random.default_rng(0).permutation(d)
    decided = judge(shuffled, how)
    assert decided.verdict == verdict
    assert decided.sentence.startswith(f"{verdict} budget 10.0 points")


def test_the_sentence_reads_forwards():
    d = np.random.default_rng(0).permutation([1.0] * 9 + [0.0] * 91)
    open_verdict = judge({"a": d})
    assert open_verdict.verdict == "UNDECIDED" and open_verdict.needed > 100
    assert open_verdict.sentence == (
        f"UNDECIDED budget 10.0 points: loss 9.0, at most {points(open_verdict.bound, up=True)}"
        f" at 95 %; about {open_verdict.needed:,} prompts would do"
    )
    lost = judge({"a": [1.0] * 50 + [0.0] * 50})
    assert lost.verdict == "FAIL" and f"at least {points(lost.lower, up=False)}" in lost.sentence
    assert enough("UNDECIDED", 0.1, 0.2, 0.1, 100) is None
    assert (points(0.01231, up=True), points(0.01239, up=False), points(-0.002)) == (
        "1.24",
        "1.23",
        "-0.2",
    )


def test_a_baseline_without_anything_to_lose_is_refused():
    nothing = [Record("a", str(place), "", 0.0, 0.0, False) for place in range(300)]
    with pytest.raises(UserError, match="nothing to lose"):
        judged(nothing, {"a": "score"}, BUDGET, 0.95, "each")


def test_more_tasks_than_the_error_suffices_for_are_refused():
    with pytest.raises(UserError, match="Name fewer tasks"):
        judge({str(task): [0] for task in range(300)})
