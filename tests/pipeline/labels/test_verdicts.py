"""A rollout that stops early has the outcome of the whole one."""

import pytest

from gistgate.lm_eval.task import TaskSpec, load_task
from pipeline.labels.rollouts import (
    REJOINED,
    FinishedRollout,
    Rollout,
    decided,
    rejoined_at,
)
from pipeline.labels.verdicts import AnswerJudge, Audited, Meaning, is_trustworthy
from tests.tiny import byte_tokenizer, write_task

TOKENIZER = byte_tokenizer()
REFERENCE = "One and two is three.\n#### 42"


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@pytest.fixture
def meaning(tmp_path):
    """Meaning by a task's filter: the first number behind ####."""
    tasks = write_task(tmp_path, **{'until: ["\\n", "Q:"]': 'until: ["Q:"]'})
    task = load_task(TaskSpec("sums", metric="exact_match,answer"), tasks)
    docs = [{"question": "41 + 1?", "answer": "#### 42"}]
    return Meaning(task, TOKENIZER, docs, {0: ids(REFERENCE)})


def rollout(text: str = REFERENCE) -> Rollout:
    return Rollout(0, [1], ids(text), 4, ids("b")[0], ids(REFERENCE))


def test_an_answer_that_grows_too_long_has_lost_its_meaning(meaning):
    longer = ids(REFERENCE + " and so on")
    assert meaning.same(0, longer)
    meaning.longest = 1.1
    assert meaning.same(0, ids(REFERENCE))
    assert not meaning.same(0, longer)


class Played:
    """A runner that plays texts, and stops them where the real one would."""

    def __init__(self, texts: dict[str, str], at_once: int = 2, order: int = 1) -> None:
        self.texts = texts
        self.at_once = at_once
        self.order = order
        self.written = 0

    def serve(self, source, sampling):
        while rollouts := source.take(self.at_once):
            for rollout in rollouts[:: self.order]:
                source.end(rollout, self.finished(rollout, source))

    def finished(self, rollout, source):
        whole = ids(self.texts[TOKENIZER.decode(rollout.text)])
        finish = None
        for length in range(rollout.position + 2, len(whole) + 1):
            finish = source.decided(rollout, whole[:length])
            if finish:
                break
        self.written += length
        return FinishedRollout(whole[:length], finish or "eos")


def judge_of(runner: Played, meaning: Meaning, audit: int, rejoin: int | None) -> AnswerJudge:
    return AnswerJudge(runner, meaning.same, audit, rejoin)


def verdicts(judge: AnswerJudge) -> list[bool]:
    """Verdicts on all texts of the judge's runner, the first one alone."""
    first, *later = map(rollout, judge.runner.texts)
    return judge.kept([first]) + judge.kept(later)


def rejoining(*numbers: int) -> dict[str, str]:
    """Texts that come back to the words of the reference, and their answers."""
    texts = [f"So, as one and two is three.\n#### {number}" for number in numbers]
    return {str(n): text for n, text in enumerate(texts)}


def test_verdicts_are_those_of_whole_rollouts_and_cost_less(meaning):
    texts = rejoining(42, 42, 42) | {"x": "So by another way."}
    written = []
    for audit in (len(texts), 2):
        runner = Played(texts)
        assert verdicts(judge_of(runner, meaning, audit, 6)) == [True, True, True, False]
        written.append(runner.written)
    assert written[1] < written[0]


def test_rejoining_that_misleads_an_audited_rollout_stops_none(meaning):
    """The words of the reference come back without its answer."""
    judge = judge_of(Played(rejoining(42, 7, 42, 7)), meaning, 2, 6)
    assert verdicts(judge) == [True, False, True, False]
    assert judge.rejoin is None


@pytest.mark.parametrize("at_once, order", [(1, 1), (4, 1), (4, -1)])
def test_a_verdict_does_not_depend_on_when_the_audit_ends(meaning, at_once, order):
    """Two rejoin the reference and answer otherwise: the rule keeps them, also if they end before
    the audit does.
    """
    texts = rejoining(42, 42, 7, 7)
    judge = judge_of(Played(texts, at_once, order), meaning, 2, 6)
    assert judge.kept([rollout(text) for text in texts]) == [True] * 4


@pytest.mark.parametrize("kept, trusted", [(98, False), (99, True)])
def test_one_wrong_verdict_in_a_hundred_is_the_most_that_is_trusted(kept, trusted):
    reference = list(range(20))
    start = Rollout(0, [], reference, 0, 99, reference)
    audited = [Audited(start, [99, *reference[1:]], place < kept) for place in range(100)]
    audited += [Audited(start, [99] * 20, False)] * 50  # these never rejoin
    assert is_trustworthy(audited, 8) is trusted


def test_a_rollout_that_rejoins_its_reference_is_kept():
    answer = ids("One b, and two is three.")
    assert decided(rollout(), answer, 8) == REJOINED
    assert decided(rollout(), answer, None) is None


@pytest.mark.parametrize(
    "answer, at",
    [
        ([1, 2, 9, 5, 6, 7, 8], 3),  # three tokens of the reference in a row, behind the forced 9
        ([1, 2, 9, 5, 6, 0, 8], None),  # the row is broken
        ([1, 2, 9, 7, 8, 9, 9], None),  # only two of them
    ],
)
def test_rejoining_needs_a_whole_row_behind_the_forced_token(answer, at):
    assert rejoined_at(Rollout(0, [], [1, 2], 2, 9, [1, 2, 4, 5, 6, 7, 8]), answer, 3) == at
