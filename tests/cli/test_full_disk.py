"""A disk that fills up: one sentence, status 2, and nothing that was paid for is lost."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from gistgate.core.files import write_json_lines
from tests.certify.runs import write_results, write_samples
from tests.certify.scripted import Script, serving

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
ASKED = ("--control", "0", "--file", "own.jsonl", "--budget", "0.2", "--prompts", "60")


class Disk:
    """A disk that takes no file with such an end, and `room` lines of answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = ""
        self.room = 10**6
        replace = Path.replace
        open_file = Path.open

        def replaced(path: Path, target: Path) -> Path:
            if self.end and target.name.endswith(self.end):
                raise FULL
            return replace(path, target)

        def opened(path: Path, mode: str = "r", **changes: Any) -> Any:
            if mode == "a":
                self.room -= 1
                if self.room < 0:
                    raise FULL
            return open_file(path, mode, **changes)

        monkeypatch.setattr(Path, "replace", replaced)
        monkeypatch.setattr(Path, "open", opened)


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """A disk with room, whose folder is the working folder."""
    monkeypatch.chdir(tmp_path)
    return Disk(monkeypatch)


@pytest.fixture
def servers(run, tmp_path):
    """Two servers that stay; returns a way to certify them, and the first script."""
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(60)]
    write_json_lines(tmp_path / "own.jsonl", rows)
    strict = Script()
    with serving(strict) as first, serving(Script()) as second:
        sides = ("--baseline", first, "--candidate", second)
        yield lambda *options: run("certify", *sides, *ASKED, *options), strict


@pytest.mark.parametrize(
    "end", [".records.jsonl", ".md", ".html", "certificate.json", "judged.json"]
)
def test_a_card_is_whole_or_absent_and_a_rerun_asks_nothing_again(servers, disk, end):
    certified, strict = servers
    disk.end = end
    status, _, error = certified("--stop", "planned")
    assert status == 2 and error.splitlines()[-1].endswith("nothing that was there before is lost.")
    assert "(No space left on device)" in error and "The answers to 60 prompts are kept" in error
    assert not [*Path().glob("served-certificate*"), *Path().glob(".*.part")]
    disk.end = ""
    status, text, _ = certified("--stop", "planned", "--resume")
    assert (status, len(strict.asked)) == (0, 60) and "card: served-certificate.json" in text


def test_answers_that_fit_are_kept(servers, disk):
    certified, strict = servers
    disk.room = 30
    status, _, error = certified("--stop", "planned", "--concurrent", "1")
    assert status == 2 and "takes no further answers (No space left on device)" in error
    asked = len(strict.asked)
    assert asked < 60
    disk.room = 10**6
    assert certified("--stop", "planned", "--resume")[0] == 0
    assert len(strict.asked) <= 60 + 60 - 29 and len(strict.asked) - asked == 60 - 29


def test_a_report_that_cannot_be_written_leaves_verdict_and_card(servers, disk):
    certified, _ = servers
    disk.end = "report.xml"
    status, text, error = certified("--junit", "report.xml")
    assert status == 2 and "PASS" in text and "card: served-certificate.json" in text
    assert "report.xml could not be written (No space left on device)" in error


def test_a_card_of_logs_is_written_by_a_rerun(run, disk, tmp_path):
    for name in ("base", "fast"):
        write_samples(tmp_path / name)
        write_results(tmp_path / name)
    asked = ("certify", "--baseline", "base", "--candidate", "fast", "--budget", "0.05")
    disk.end = ".html"
    status, _, error = run(*asked)
    assert status == 2 and "certificate-logs.html could not be written" in error
    assert not [*Path().glob("certificate-logs*")]
    disk.end = ""
    assert run(*asked)[0] == 0
    disk.end = "report.xml"
    status, text, _ = run(
        "certify", "--recompute", "certificate-logs.json", "--junit", "report.xml"
    )
    assert status == 2 and text.startswith("PASS")
