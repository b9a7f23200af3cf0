"""A rollout that stops early has the outcome of the whole one."""

from __future__ import annotations

import pytest

from gistgate.lm_eval.task import Task, TaskSpec, find_task
from pipeline.labels.labelling import AnswerJudge, Meaning, is_trustworthy
from pipeline.labels.rollouts import ANSWERED, REJOINED, FinishedRollout, Rollout, decided
from tests.tiny import byte_tokenizer, write_task

TOKENIZER = byte_tokenizer()
REFERENCE = "One and two is three.\n#### 42"
OTHER = "Ten less two.\n#### 8"


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module")
def meaning_of(tmp_path_factory):
    """Meaning by one of the task's two filters: the first number behind ####, or the last number of the text."""

    def made(metric: str) -> Meaning:
        folder = tmp_path_factory.mktemp("task")
        tasks = write_task(folder, **{'until: ["\\n", "Q:"]': 'until: ["Q:"]'})
        task = Task(find_task("sums", None, tasks), TaskSpec("sums", metric=metric))
        docs = [{"question": "41 + 1?", "answer": "#### 42"}, {"question": "7 + 1?", "answer": "#### 8"}]
        return Meaning(task, TOKENIZER, docs, {0: ids(REFERENCE), 1: ids(OTHER)})

    return made


def rollout(text: str = REFERENCE, problem: int = 0) -> Rollout:
    return Rollout(problem, [1], ids(text), 4, ids("b")[0], ids(REFERENCE))


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
    assert meaning_of("exact_match,answer").is_given(rollout(), ids(text)) is given


@pytest.mark.parametrize("text", ["42", "#### 42\n", "#### 42\nThat is all.\n\n"])
def test_an_answer_that_is_the_last_number_is_never_given(meaning_of, text):
    assert not meaning_of("exact_match,loose").is_given(rollout(), ids(text))


@pytest.mark.parametrize("metric", ["exact_match,answer", "exact_match,loose"])
@pytest.mark.parametrize(
    "text",
    [f"{REFERENCE}\nOr was it\n#### 7", "So it is.\n#### 43\nNo, it is #### 42.", "Nothing.", "#### 42,0 #### 1"],
)
def test_the_outcome_where_the_answer_is_given_is_that_of_the_whole_text(meaning_of, metric, text):
    meaning, whole = meaning_of(metric), ids(text)
    verdict = meaning.same(0, whole)
    stops = [n for n in range(len(whole)) if meaning.is_given(rollout(), whole[:n])]
    assert all(meaning.same(0, whole[:n]) == verdict for n in stops)
    assert bool(stops) == (metric.endswith("answer") and "####" in text)


class Played:
    """A runner that plays texts, and stops them where the real one would."""

    def __init__(self, texts: dict[str, str], at_once: int = 2, order: int = 1) -> None:
        self.texts, self.at_once, self.order, self.written = texts, at_once, order, 0

    def serve(self, source, sampling=None):
        while taken := source.take(self.at_once):
            for rollout in taken[:: self.order]:
                source.end(rollout, self.one(rollout, source))

    def one(self, rollout, source):
        whole = ids(self.texts[TOKENIZER.decode(rollout.text)])
        for length in range(rollout.position + 2, len(whole) + 1):
            if finish := source.decided(rollout, whole[:length]):
                self.written += length
                return FinishedRollout(whole[:length], finish)
        self.written += len(whole)
        return FinishedRollout(whole, "eos")


TEXTS = {
    f"{start}{tail}": f"{start} by another way.\n#### {number}\n{tail * 9}"
    for start in ("So", "And", "Then")
    for number, tail in (("42", "x"), ("8", "y"), ("7", "z"))
}


def test_verdicts_are_those_of_whole_rollouts_and_cost_less(meaning_of):
    meaning, found, written = meaning_of("exact_match,answer"), [], []
    for audit in (len(TEXTS), 2):
        runner = Played(TEXTS)
        judge = AnswerJudge(runner, meaning.same, meaning.is_given, audit=audit, rejoin=None)
        rollouts = [rollout(text) for text in TEXTS]
        found.append(judge.kept(rollouts[:1]) + judge.kept(rollouts[1:]))
        written.append(runner.written)
    assert found[0] == found[1] == [number == "42" for _ in range(3) for number in ("42", "8", "7")]
    assert written[1] < written[0]


def test_the_audit_gives_up_a_way_of_stopping_that_is_wrong(meaning_of):
    """A test that calls every answer given, and words that rejoin the reference without its answer."""
    meaning = meaning_of("exact_match,answer")
    numbers = {"a": 42, "b": 7, "c": 42, "d": 7}
    texts = {text: f"So, as one and two is three.\n#### {number}" for text, number in numbers.items()}
    judge = AnswerJudge(Played(texts), meaning.same, lambda _rollout, _answer: True, audit=2, rejoin=6)
    assert judge.kept([rollout(text) for text in texts]) == [True, False, True, False]
    assert judge.given is None and judge.rejoin is None


@pytest.mark.parametrize("kept, trusted", [(98, False), (99, True)])
def test_one_wrong_verdict_in_a_hundred_is_the_most_that_is_trusted(kept, trusted):
    reference = list(range(20))
    one = Rollout(0, [], reference, 0, 99, reference)
    audited = [(one, [99, *reference[1:]], place < kept) for place in range(100)]
    audited += [(one, [99] * 20, False)] * 50  # these never rejoin
    assert is_trustworthy(audited, 8) is trusted


def test_a_rollout_that_rejoins_its_reference_is_kept(meaning_of):
    answer = ids("One b, and two is three.")
    assert decided(rollout(), answer, 8, None) == REJOINED
    assert decided(rollout(), answer, None, lambda _rollout, _answer: True) == ANSWERED
    assert decided(rollout(), answer, None, None) is None


@pytest.mark.parametrize("at_once, order", [(1, 1), (4, 1), (4, -1)])
def test_a_verdict_does_not_depend_on_when_the_audit_ends(meaning_of, at_once, order):
    """Two rejoin the reference and answer otherwise: the rule keeps them, also if they end before the audit does."""
    meaning = meaning_of("exact_match,answer")
    numbers = {"a": 42, "b": 42, "c": 7, "d": 7}
    texts = {text: f"So, as one and two is three.\n#### {number}" for text, number in numbers.items()}
    judge = AnswerJudge(Played(texts, at_once, order), meaning.same, meaning.is_given, audit=2, rejoin=6)
    assert judge.kept([rollout(text) for text in texts]) == [True] * 4
