"""`gistgate certify` from logs: exit status, cards, records, reports of tests and the ledger."""

import json
from xml.etree import ElementTree

import pytest

from tests.certify.runs import write_results, write_samples


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Write two runs of 300 documents for each task; the candidate gets so many wrong."""
    monkeypatch.chdir(tmp_path)

    def write(**wrong):
        for task, number in wrong.items():
            write_samples(tmp_path / "base", task, n=300)
            write_samples(tmp_path / "fast", task, n=300, wrong=range(number))
        for name in ("base", "fast"):
            write_results(tmp_path / name)
        return ["certify", "--baseline", "base", "--candidate", "fast"]

    return write


@pytest.mark.parametrize("wrong, status, beginning", [
    (0, 0, "PASS budget 5.0 points: loss 0.0, at most"),
    (60, 1, "FAIL budget 5.0 points: loss 20.0, at least"),
    (12, 3, "UNDECIDED budget 5.0 points: loss 4.0, at most"),
])  # fmt: skip
def test_the_exit_status_is_that_of_the_verdict(run, runs, tmp_path, wrong, status, beginning):
    answer = run(*runs(sums=wrong), "--budget", "0.05")
    assert answer[0] == status and answer[1].startswith(beginning)
    card = json.loads((tmp_path / "certificate-logs.json").read_text())
    assert card["sentence"].startswith(beginning) and card["tasks"][0]["losses"] == wrong
    assert card["candidate"]["model"] == "pretrained=fast"
    assert beginning in (tmp_path / "certificate-logs.md").read_text()
    lines = (tmp_path / "certificate-logs.records.jsonl").read_text().splitlines()
    assert len(lines) == 300 and json.loads(lines[0]).keys() == {
        "task", "id", "prompt", "baseline", "candidate", "differs",
    }  # fmt: skip


def test_a_card_is_computed_again_from_its_records_alone(run, runs, tmp_path):
    asked = [*runs(sums=0, products=12), "--budget", "0.05"]
    first = run(*asked)
    card = tmp_path / "certificate-logs.json"
    status, text, _ = run("certify", "--recompute", card)
    assert (status, text.replace(f"{tmp_path}/", "")) == first[:2]
    records = tmp_path / "certificate-logs.records.jsonl"
    before = records.read_text()
    records.write_text(before.replace('"candidate": 0.0', '"candidate": 1.0', 1))
    status, _, error = run("certify", "--recompute", card)
    assert status == 2 and "do not fit" in error
    records.write_text(before)
    card.write_text(card.read_text().replace('"verdict": "UNDECIDED"', '"verdict": "PASS"'))
    assert run("certify", "--recompute", card)[0] == 2


def test_a_repetition_is_free_and_gets_a_number_but_another_choice_is_a_second_look(
    run, runs, tmp_path
):
    asked = runs(sums=0, products=0)
    assert run(*asked, "--budget", "0.05")[0] == 0
    assert run(*asked, "--budget", "0.06", "--joint", "mean")[0] == 0
    assert json.loads((tmp_path / "certificate-logs-2.json").read_text())["joint"] == "mean"
    for choice in (["--task", "sums"], ["--metric", "exact_match,flexible-extract"]):
        status, _, error = run(*asked, "--budget", "0.05", *choice)
        assert status == 2 and "already been judged" in error


def test_the_error_that_tasks_share_is_on_the_card(run, runs, tmp_path):
    run(*runs(sums=0, products=0), "--task", "sums,products", "--budget", "0.05")
    card = (tmp_path / "certificate-logs.md").read_text()
    assert "divided by the 2 tasks (Bonferroni), 2.5 % for each" in card


@pytest.mark.parametrize("joint, failures", [("each", ["products", "verdict"]), ("mean", [])])
def test_a_report_of_tests_has_a_case_for_each_task_and_one_for_the_verdict(
    run, runs, joint, failures
):
    asked = runs(sums=0, products=12)
    run(*asked, "--budget", "0.05", "--joint", joint, "--junit", "report.xml")
    suite = ElementTree.parse("report.xml").getroot()
    assert [case.get("name") for case in suite] == ["sums", "products", "verdict"] or [
        case.get("name") for case in suite
    ] == ["products", "sums", "verdict"]
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == failures and suite.get("failures") == str(len(failures))


@pytest.mark.parametrize("arguments, word", [
    (["--baseline", "base", "--candidate", "http://127.0.0.1:1/v1"], "a server with a server"),
    (["--baseline", "base"], "a server with a server"),
    (["--baseline", "base", "--candidate", "absent"], "neither a file"),
    (["--baseline", "base", "--candidate", "base"], "same files"),
    (["--baseline", "base", "--candidate", "fast", "--joint", "all"], "each, mean"),
    (["--baseline", "base", "--candidate", "fast", "--task", "sum"], "'sums'"),
    (["--recompute", "absent.json"], "missing"),
    ([], "--baseline"),
])  # fmt: skip
def test_what_gives_no_verdict_ends_with_status_2(run, runs, arguments, word):
    runs(sums=0)
    status, _, error = run("certify", *arguments)
    assert status == 2 and word in error


def test_addresses_are_servers_under_these_names_too(run):
    status, _, error = run(
        "certify", "--baseline", "http://127.0.0.1:1/v1", "--candidate", "http://127.0.0.1:2/v1"
    )
    assert status == 2 and "--task" in error
