"""A rollout that stops early has the outcome of the whole one."""

import pytest

from gistgate.lm_eval.task import TaskSpec, load_task
from pipeline.labels.rollouts import (
    ANSWERED,
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


@pytest.fixture(scope="module")
def meaning_of(tmp_path_factory):
    """Meaning by one of the task's two filters: the first number behind ####, or the last number of
    the text.
    """
    stops = {'until: ["\\n", "Q:"]': 'until: ["Q:"]'}
    tasks = write_task(tmp_path_factory.mktemp("task"), **stops)
    docs = [
        {"question": "41 + 1?", "answer": "#### 42"},
        {"question": "7 + 1?", "answer": "#### 8"},
    ]
    references = {0: ids(REFERENCE), 1: ids("Ten less two.\n#### 8")}

    def meaning(metric: str) -> Meaning:
        task = load_task(TaskSpec("sums", metric=f"exact_match,{metric}"), tasks)
        return Meaning(task, TOKENIZER, docs, references)

    return meaning


def rollout(text: str = REFERENCE) -> Rollout:
    return Rollout(0, [1], ids(text), 4, ids("b")[0], ids(REFERENCE))


@pytest.mark.parametrize(
    "text, given",
    [
        ("One and two is", False),
        ("#### 4", False),  # a further digit would change it
        ("#### 42", False),
        ("#### 42.", False),  # decimals would
        ("#### 42\n", True),
        ("#### 42 and so", True),
        ("#### 42\n#### 8", True),  # the filter takes the first
    ],
)
def test_an_answer_is_given_once_nothing_can_change_it(meaning_of, text, given):
    """The last number of a text is never given."""
    assert meaning_of("answer").is_given(rollout(), ids(text)) is given
    assert not meaning_of("loose").is_given(rollout(), ids(text))


def test_an_answer_that_grows_too_long_has_lost_its_meaning(meaning_of):
    meaning = meaning_of("answer")
    longer = ids(REFERENCE + " and so on")
    assert meaning.same(0, longer)
    meaning.longest = 1.1
    assert meaning.same(0, ids(REFERENCE))
    assert not meaning.same(0, longer)


@pytest.mark.parametrize("metric", ["answer", "loose"])
@pytest.mark.parametrize(
    "text",
    [
        f"{REFERENCE}\nOr was it\n#### 7",
        "So it is.\n#### 43\nNo, it is #### 42.",
        "Nothing.",
        "#### 42,0 #### 1",
    ],
)
def test_the_outcome_where_the_answer_is_given_is_that_of_the_whole_text(meaning_of, metric, text):
    meaning = meaning_of(metric)
    whole = ids(text)
    stops = [n for n in range(len(whole)) if meaning.is_given(rollout(), whole[:n])]
    assert all(meaning.same(0, whole[:n]) == meaning.same(0, whole) for n in stops)
    assert bool(stops) == (metric == "answer" and "####" in text)


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
    return AnswerJudge(runner, meaning.same, meaning.is_given, audit, rejoin)


def verdicts(judge: AnswerJudge) -> list[bool]:
    """Verdicts on all texts of the judge's runner, the first one alone."""
    first, *later = map(rollout, judge.runner.texts)
    return judge.kept([first]) + judge.kept(later)


def test_verdicts_are_those_of_whole_rollouts_and_cost_less(meaning_of):
    texts = {}
    for start in ("So", "And", "Then"):
        for number, tail in (("42", "x"), ("8", "y"), ("7", "z")):
            texts[f"{start}{tail}"] = f"{start} by another way.\n#### {number}\n{tail * 9}"
    written = []
    for audit in (len(texts), 2):
        runner = Played(texts)
        judge = judge_of(runner, meaning_of("answer"), audit, None)
        assert verdicts(judge) == [True, False, False] * 3
        written.append(runner.written)
    assert written[1] < written[0]


def rejoining(*numbers: int) -> dict[str, str]:
    """Texts that come back to the words of the reference, and their answers."""
    texts = [f"So, as one and two is three.\n#### {number}" for number in numbers]
    return {str(n): text for n, text in enumerate(texts)}


def test_the_audit_gives_up_a_way_of_stopping_that_is_wrong(meaning_of):
    """A test that calls every answer given, and words that rejoin the reference without its
    answer.
    """
    judge = judge_of(Played(rejoining(42, 7, 42, 7)), meaning_of("answer"), 2, 6)
    judge.given = lambda _rollout, _answer: True
    assert verdicts(judge) == [True, False, True, False]
    assert judge.given is None
    assert judge.rejoin is None


@pytest.mark.parametrize("at_once, order", [(1, 1), (4, 1), (4, -1)])
def test_a_verdict_does_not_depend_on_when_the_audit_ends(meaning_of, at_once, order):
    """Two rejoin the reference and answer otherwise: the rule keeps them, also if they end before
    the audit does.
    """
    texts = rejoining(42, 42, 7, 7)
    judge = judge_of(Played(texts, at_once, order), meaning_of("answer"), 2, 6)
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
    assert decided(rollout(), answer, 8, None) == REJOINED
    assert decided(rollout(), answer, None, lambda _rollout, _answer: True) == ANSWERED
    assert decided(rollout(), answer, None, None) is None


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
