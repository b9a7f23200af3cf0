"""Options of `gistgate certify` from a file, under present and earlier names, and its help."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gistgate.cli.certify import Options
from gistgate.cli.main import app


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder `ci` with two runs and certify.yaml, below the folder of the command."""
    monkeypatch.chdir(tmp_path)
    ci = tmp_path / "ci"
    ci.mkdir()
    for name in ("old", "new"):
        rows = "".join(f"{number},{int(number > 9)}\n" for number in range(500))
        (ci / f"{name}.csv").write_text(f"id,score\n{rows}")
    return ci


def certify(*arguments: str, **entries: object) -> tuple[int, str]:
    """The status and output of the command with these entries in its file."""
    Path("ci/certify.yaml").write_text(yaml.safe_dump(entries))
    result = CliRunner().invoke(app, ["certify", "ci/certify.yaml", *arguments])
    return result.exit_code, " ".join(re.sub("[│╭╰─╮╯]", " ", result.output).split())


def test_a_file_has_paths_of_its_own_folder_and_the_command_line_overrides_it(folder):
    entries = {"baseline": "old.csv", "candidate": "new.csv", "budget": 0.02, "out": "cards"}
    status, said = certify(**entries)
    assert status == 0 and said.startswith("PASS budget 2.0 points")
    assert json.loads((folder / "cards/certificate-logs.json").read_text())["budget"] == 0.02
    assert certify("--budget", "0.001", **entries)[0] == 3


def test_earlier_names_of_options_still_work(folder):
    entries = {"strict": "old.csv", "ledger": "judged.json", "claim": None}
    status, said = certify("--loose", "ci/new.csv", **entries)
    assert status == 0 and (folder / "judged.json").is_file(), said


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"bugdet": 0.1}, "unknown option 'bugdet'. Did you mean 'budget'?"),
        ({"budget": "small"}, "Invalid value for '--budget'"),
    ],
)
def test_a_wrong_entry_of_a_file_is_named(folder, entries, words):
    status, said = certify(**entries)
    assert status == 2 and words in said


@pytest.mark.parametrize("text", ["- budget", "budget: [", ""])
def test_a_file_that_holds_no_options_is_refused(folder, text):
    (folder / "certify.yaml").write_text(text)
    result = CliRunner().invoke(app, ["certify", "ci/certify.yaml"])
    assert result.exit_code == 2 and "certify.yaml" in result.output


def test_entries_may_be_mappings_lists_or_one_of_several(folder, monkeypatch):
    taken: list[Options] = []
    monkeypatch.setattr("gistgate.cli.certify.verdict_of", lambda o, _: taken.append(o) or "PASS")
    body = {"top_k": 1, "seed": None}
    certify(**{"baseline_body": body, "same-model": "other", "chat": False, "file": "-"})
    [options] = taken
    assert json.loads(options.strict_body) == body and options.same_model == ["other"]
    assert options.chat is False and options.file == "-"


def test_the_example_of_the_documentation_is_read(folder, monkeypatch):
    taken: list[Options] = []
    monkeypatch.setattr("gistgate.cli.certify.verdict_of", lambda o, _: taken.append(o) or "PASS")
    page = (Path(__file__).parents[2] / "docs/certify.md").read_text()
    [text] = [part for part in page.split("```") if part.startswith("yaml\n# certify.yaml")]
    status, said = certify(**yaml.safe_load(text.removeprefix("yaml")))
    assert status == 0, said
    assert taken[0].file == "ci/prompts.jsonl" and taken[0].keep_texts and taken[0].time == 30


def test_help_begins_with_what_is_required_and_cuts_no_word(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(app, ["certify", "--help"]).output
    names = re.findall(r"^│ (--[\w-]+)", text, re.M)
    assert names[1:5] == ["--baseline", "--candidate", "--file", "--task"]
    assert "…" not in text and len(names) == len(set(names))
