"""What `gistgate certify` leaves of two servers: cards, records, kept answers, exit statuses."""

import gzip
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gistgate.core.files import write_json_lines
from tests.certify.scripted import Script, serving

ASKED = ("--control", "0", "--file", "own.jsonl", "--budget", "0.2", "--prompts", "60")
HALF = frozenset(range(0, 60, 2))


@pytest.fixture
def certify(run, tmp_path, monkeypatch):
    """Call the command line for two scripts; returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(60)]
    write_json_lines(tmp_path / "own.jsonl", rows)

    def called(strict: Script, loose: Script, *options: Any) -> Any:
        with serving(strict) as first, serving(loose) as second:
            sides = ("--baseline", first, "--candidate", second)
            return run("certify", *sides, *ASKED, *options)

    return called


@pytest.fixture
def servers(certify, run):
    """Two servers that stay; returns a way to certify them, and their scripts."""
    scripts = (Script(), Script(wrong=frozenset({3, 4})))
    with serving(scripts[0]) as first, serving(scripts[1]) as second:
        sides = ("--baseline", first, "--candidate", second)
        yield lambda *options: run("certify", *sides, *ASKED, *options), scripts


@pytest.mark.parametrize("wrong, status, verdict", [
    (frozenset(), 0, "PASS"), (HALF, 1, "FAIL"), (frozenset(range(0, 60, 7)), 3, "UNDECIDED"),
])  # fmt: skip
def test_the_exit_status_is_that_of_the_verdict(certify, wrong, status, verdict):
    answer = certify(Script(), Script(wrong=wrong), "--stop", "planned", "--junit", "report.xml")
    assert answer[0] == status and f"\n{verdict} budget 20.0 points: loss " in answer[1]
    suite = ElementTree.parse("report.xml").getroot()
    assert suite.get("failures") == ("0" if status == 0 else "2")
    if status == 3:
        assert re.search(r"about [\d,]+ prompts would do", answer[1])


def test_cards_get_numbers_and_kept_answers_repeat_the_look(servers):
    certified, scripts = servers
    first = certified()
    assert first[0] == 0
    asked = len(scripts[0].asked)
    refused = certified()
    assert refused[0] == 2 and "--resume repeats this look" in refused[2]
    assert "Only 0 fresh prompts are left" in refused[2]
    repeated = certified("--resume", "--concurrent", "1")
    assert repeated[0] == 0
    cards = [json.loads(Path(f"served-certificate{end}.json").read_text()) for end in ("", "-2")]
    assert cards[0]["tasks"] == cards[1]["tasks"] and cards[1]["looks"] == 1
    # Nothing of the look is asked again, but for requests that were under way.
    assert len(scripts[0].asked) <= asked + 10


def test_a_folder_that_takes_nothing_is_said_before_the_first_request(certify, tmp_path):
    (tmp_path / "file").write_text("")
    strict = Script()
    status, _, error = certify(strict, Script(), "--out", "file")
    assert status == 2 and "--out" in error and not strict.asked


def test_a_restart_without_resume_moves_the_answers_aside(servers):
    certified, scripts = servers
    scripts[1].statuses[59] = 401
    assert certified("--stop", "planned")[0] == 2
    del scripts[1].statuses[59]
    assert "moved to" in certified("--stop", "planned")[2]
    answers = sorted(Path(".gistgate").glob("answers-*.jsonl"))
    assert len(answers) == 2 and answers[0].stat().st_size > 1000


@pytest.mark.parametrize("options", [
    ["--claim", "score"],
    ["--claim", "score", "--scorer", "f1"],
    ["--claim", "agreement"],
    ["--claim", "length", "--max-new-tokens", "40"],
    ["--temperature", "0.5", "--samples", "2", "--stop", "lost"],
])  # fmt: skip
def test_a_card_is_computed_again_from_its_records_alone(certify, run, options):
    first = certify(Script(), Script(wrong=frozenset({3})), *options)
    status, text, _ = run("certify", "--recompute", "served-certificate.json")
    assert first[0] in STATUSES and status == first[0] and text in first[1]
    records = Path("served-certificate.records.jsonl")
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert rows[0].keys() >= {"prompt", "baseline", "candidate", "tokens", "finishes"}
    assert "texts" not in rows[0] and rows[0]["id"].startswith("own.jsonl, line ")
    rows[0]["candidate"] /= 3
    write_json_lines(records, rows)
    status, _, error = run("certify", "--recompute", "served-certificate.json")
    assert status == 2 and "do not fit" in error


STATUSES = (0, 1, 3)


def test_a_prompt_that_a_server_refuses_is_named_and_may_be_left_out(servers):
    certified, scripts = servers
    scripts[1].statuses[7] = 400
    status, _, error = certified("--stop", "planned")
    assert status == 2 and "own.jsonl, line 8 was refused" in error and "--skip-refused" in error
    status, text, _ = certified("--stop", "planned", "--skip-refused", "1")
    assert status == 0 and "left out: 1" in text
    card = json.loads(Path("served-certificate.json").read_text())
    assert card["tasks"][0]["n"] == 59 and card["refused"][0]["place"] == "own.jsonl, line 8"


def test_the_page_is_whole_and_shows_examples_only_where_texts_are_kept(certify):
    certify(Script(), Script(wrong=frozenset({3}), texts={4: "<b>5</b>"}))
    page = Path("served-certificate.html").read_text()
    assert "This card has no prompts and answers" in page and "It is so." not in page
    assert "<script" not in page and not re.search(r"(src|href)=\"(?!data:,)", page)
    certify(
        Script(), Script(wrong=frozenset({3}), texts={4: "<b>5</b>"}), "--keep-texts", "--stop",
        "planned", "--ledger", "second.json",
    )  # fmt: skip
    page = Path("served-certificate-2.html").read_text()
    assert "&lt;b&gt;5&lt;/b&gt;" in page and "<b>5</b>" not in page
    assert page.index("line 4") < page.index("line 5")  # the lost one first
    assert '<svg class="bar"' in page and "budget 20.0 points" in page


PROMPTS = [f"{n} + 1?" for n in range(30)]
LINES = "".join(json.dumps({"prompt": prompt}) + "\r\n" for prompt in PROMPTS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lines", "\n".join(PROMPTS).encode()),
        ("lines", json.dumps(PROMPTS, indent=1).encode()),
        ("lines.jsonl", f"\ufeff{LINES}".encode()),
        ("lines.jsonl.gz", gzip.compress(LINES.encode())),
    ],
)
def test_a_watch_reads_what_a_comparison_reads(certify, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    answer = certify(Script(), Script(), "--watch", "--file", name)
    assert answer[0] == 0 and f"the last in {name}, " in answer[1]


def test_a_watch_names_a_file_that_is_no_text(certify, tmp_path):
    (tmp_path / "lines").write_bytes("für 1 + 1?".encode("latin-1"))
    answer = certify(Script(), Script(), "--watch", "--file", "lines")
    assert answer[0] == 2 and "Save it as UTF-8" in answer[2]


@pytest.mark.parametrize("script, status, word", [
    (Script(statuses={3: 400}), 0, "own.jsonl, line 4 was refused and is left out"),
    (Script(statuses={30: 401}), 2, "tests showed the budget kept"),
    (Script(wrong=frozenset(range(60))), 1, "is lost"),
    (Script(statuses=dict.fromkeys(range(60), 400)), 2, "No prompt was tested"),
])  # fmt: skip
def test_a_watch_has_a_status_for_each_end(certify, script, status, word):
    answer = certify(Script(), script, "--watch")
    assert answer[0] == status and word in answer[2]
