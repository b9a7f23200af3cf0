"""What is read from logs, how samples are paired, and what is refused by name."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gistgate.certify.logs import read_run
from gistgate.certify.paired import paired
from gistgate.core.utils import UserError
from tests.certify.runs import write_results, write_samples

FIXTURES = Path(__file__).with_name("inspect")


def test_the_first_metric_and_filter_count_unless_the_user_names_others(tmp_path):
    path = write_samples(tmp_path, n=4, wrong={1})
    write_results(tmp_path)
    run = read_run(str(path), None)
    log = run.tasks["sums"]
    assert log.metric == "exact_match,strict-match" and run.model == f"pretrained={tmp_path.name}"
    assert [sample.score for sample in log.samples.values()] == [1, 0, 1, 1]
    log = read_run(str(tmp_path), "exact_match,flexible-extract").tasks["sums"]
    assert [sample.score for sample in log.samples.values()] == [1, 1, 1, 1]


def test_samples_of_earlier_versions_and_compressed_ones_are_read(tmp_path):
    path = write_samples(tmp_path, n=4, wrong={1})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    later = ("metrics", "filter", "doc_hash", "prompt_hash", "target_hash")
    old = [{name: value for name, value in row.items() if name not in later} for row in rows]
    path.unlink()
    text = "".join(json.dumps(row) + "\n" for row in old)
    (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(text.encode()))
    filters = [{"name": name} for name in ("strict-match", "flexible-extract")]
    write_results(tmp_path, configs={"sums": {"filter_list": filters}})
    log = read_run(str(tmp_path), None).tasks["sums"]
    assert log.metric == "exact_match,strict-match"
    assert [sample.score for sample in log.samples.values()] == [1, 0, 1, 1]
    log = read_run(str(tmp_path), "exact_match,flexible-extract").tasks["sums"]
    assert [sample.score for sample in log.samples.values()] == [1, 1, 1, 1]


@pytest.mark.parametrize("place, wish, word", [
    ("samples", "f2", "no metric 'f2'"),
    ("samples", "exact_match,none", "no filter 'none'"),
    ("samples", "words", "scores from 0 to 1"),
    ("empty", None, "neither samples"),
    ("absent", None, "neither a file"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_remedy(tmp_path, place, wish, word):
    write_samples(tmp_path / "samples", n=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=word):
        read_run(str(tmp_path / place), wish)


def test_two_files_of_a_task_in_a_folder_are_refused_by_name(tmp_path):
    write_samples(tmp_path, n=2)
    later = write_samples(tmp_path / "model", n=2, date="2026-11-30T10-00-00.000001")
    with pytest.raises(UserError, match=later.name):
        read_run(str(tmp_path), None)


def test_metrics_of_which_less_is_better_are_refused(tmp_path):
    write_samples(tmp_path, n=2)
    write_results(tmp_path, higher_is_better={"sums": {"exact_match": False}})
    with pytest.raises(UserError, match="Lower values"):
        read_run(str(tmp_path), None)


def test_records_do_not_lie_in_the_order_of_the_documents(tmp_path):
    """An order by difficulty would break the assumption of bets."""
    for name in ("a", "b"):
        write_samples(tmp_path / name, n=50)
    records = paired(read_run(str(tmp_path / "a"), None), read_run(str(tmp_path / "b"), None))
    ids = [record.id for record in records]
    assert sorted(ids, key=int) == [str(number) for number in range(50)] and ids != sorted(
        ids, key=int
    )


@pytest.mark.parametrize("changes, word", [
    ({"n": 3}, "in one run only: '3'"),
    ({"shots": 0}, "other prompts"),
    ({"target_hash": "0"}, "not the same text"),
    ({"task": "products"}, "no samples of 'sums'"),
    ({"metrics": ["words", "exact_match"], "words": 1}, "words,strict-match"),
])  # fmt: skip
def test_what_does_not_pair_is_named_and_refused(tmp_path, changes, word):
    write_samples(tmp_path / "baseline", n=4)
    write_samples(tmp_path / "candidate", **{"n": 4, **changes})
    runs = [read_run(str(tmp_path / name), None) for name in ("baseline", "candidate")]
    with pytest.raises(UserError, match=word):
        paired(*runs)


def test_few_shot_examples_and_metrics_of_the_results_have_to_agree(tmp_path):
    for name, shots in (("baseline", 5), ("candidate", 0)):
        write_samples(tmp_path / name, n=2)
        write_results(tmp_path / name, **{"n-shot": {"sums": shots}})
    runs = [read_run(str(tmp_path / name), None) for name in ("baseline", "candidate")]
    with pytest.raises(UserError, match="differ in n-shot: 5 and 0"):
        paired(*runs)


def test_tasks_are_chosen_by_name_or_pattern(tmp_path):
    for name in ("baseline", "candidate"):
        for task in ("mmlu_law", "mmlu_art", "sums"):
            write_samples(tmp_path / name, task, n=2)
    runs = [read_run(str(tmp_path / name), None) for name in ("baseline", "candidate")]
    assert {record.task for record in paired(*runs, ["mmlu_*"])} == {"mmlu_law", "mmlu_art"}
    with pytest.raises(UserError, match="no task 'sum'.*'sums'"):
        paired(*runs, ["sum"])


@pytest.mark.parametrize("name, text", [
    ("t.csv", 'id,score,text,task\na,1,"two\nlines",x\nb,0.5,,y\n'),
    ("t.tsv", f'id\tscore\ttext\ttask\na\tTrue\t{"x" * 140_000}\tx\nb\t0.5\t\ty\n'),
    ("t.jsonl", '{"id": "a", "score": 1, "text": "two\\nlines", "task": "x"}\n'
                '{"id": "b", "score": 0.5, "task": "y"}\n'),
    ("german.csv", '\ufeffid;score;text;task\r\na;1;"two\nlines, twice";x\r\nb;0.5;;y\r\n'),
    ("t.json", '[{"id": "a", "score": true, "text": "two\\nlines", "task": "x"},'
               '{"id": "b", "score": 0.5, "task": "y"}]'),
])  # fmt: skip
def test_tables_are_csv_or_json(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    for place in (path, packed):
        run = read_run(str(place), None)
        scores = {task: log.samples for task, log in run.tasks.items()}
        assert scores["x"]["a"].score == 1 and scores["y"]["b"].score == 0.5


@pytest.mark.parametrize("content, word", [
    (b"PK\x03\x04", "ZIP archive or a workbook.*export it as CSV"),
    (b"PAR1", "Parquet table"),
    ("id,score\n".encode("utf-16"), "is UTF-16.*Save it as UTF-8"),
    (b"id,score\nM\xfcller,1\n", "Save it as UTF-8"),
    (gzip.compress(b"id,score\n" * 9)[:-9], "cannot be read as text"),
])  # fmt: skip
def test_files_of_other_formats_are_named(tmp_path, content, word):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=word):
        read_run(str(path), None)


@pytest.mark.parametrize("text, word", [
    ("id,score\na,\n", "line 2, says no score"),
    ("id,score\na,good\n", "no number"),
    ("id,score\na,100\n", "scores from 0 to 1"),
    ("id,score\na,nan\n", "'a' no score"),
    ("id,score\na,1\na,1\n", "'a' twice"),
    ("id,score\n", "no row"),
    ("id,score\na,1,b\n", "line 2, has more cells"),
    ('id,score\n"a,1\nb,1\n', "line 2, begins no row .* Close quotation marks"),
])  # fmt: skip
def test_tables_that_hold_no_scores_are_refused(tmp_path, text, word):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=word):
        read_run(str(path), None)


@pytest.fixture
def inspect_ai(monkeypatch):
    """The library where it is installed, else what the reader needs of it."""
    try:
        import inspect_ai.log  # noqa: F401
    except ModuleNotFoundError:
        monkeypatch.setitem(sys.modules, "inspect_ai", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "inspect_ai.log", SimpleNamespace(read_eval_log=stand_in))
        scores = SimpleNamespace(value_to_float=lambda: lambda value: float(value == "C"))
        monkeypatch.setitem(sys.modules, "inspect_ai.scorer", scores)
        monkeypatch.delitem(sys.modules, "gistgate.certify.inspect_logs", raising=False)


def stand_in(path, **_):
    """A log with attributes in place of keys, dictionaries of scores aside."""
    log = json.loads(
        Path(path).read_text(),
        object_hook=lambda entries: SimpleNamespace(**{"choices": None, "error": None, **entries}),
    )
    for sample in log.samples:
        scores = vars(sample.scores).items()
        sample.scores = {name: score for name, score in scores if score is not None}
    log.eval.task_args = {}
    return log


def test_inspect_ai_counts_the_mean_over_epochs(inspect_ai):
    runs = [read_run(str(FIXTURES / f"{name}.json"), None) for name in ("baseline", "candidate")]
    records = paired(*runs)
    assert runs[0].model == "mockllm/model" and runs[0].tasks["sums"].metric == "match"
    scores = {record.id: (record.baseline, record.candidate) for record in records}
    assert scores == {"1": (1, 1), "2": (1, 0.5), "3": (1, 1), "4": (1, 1)}
    assert [record.id for record in records if record.differs] == ["2"]


def test_a_later_attempt_takes_the_place_of_one_that_broke_off(inspect_ai, tmp_path):
    whole = (FIXTURES / "baseline.json").read_text()
    (tmp_path / "1.json").write_text(whole.replace('"success"', '"error"'))
    (tmp_path / "2.json").write_text(whole)
    assert len(read_run(str(tmp_path), None).tasks["sums"].samples) == 4


ERROR = '{"message": "broke", "traceback": "", "traceback_ansi": ""}'


@pytest.mark.parametrize("before, after, word", [
    ('"success"', '"cancelled"', "status 'cancelled'"),
    ('"value": "C"', '"value": "very good"', "no number"),
    ('"value": "C"', '"value": [1, 0]', "no number"),
    ('"match"', '"other"', "no score 'match'"),
    ('"epoch": 2', '"epoch": 1', "two samples with the id"),
    ('"scores": {', f'"error": {ERROR}, "scores": {{}}, "_": {{', "an error.*'1' .broke."),
])  # fmt: skip
def test_logs_of_inspect_ai_without_whole_scores_are_refused(
    inspect_ai, tmp_path, before, after, word
):
    path = tmp_path / "log.json"
    path.write_text((FIXTURES / "baseline.json").read_text().replace(before, after))
    with pytest.raises(UserError, match=word):
        read_run(str(path), "match")
