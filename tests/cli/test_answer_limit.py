"""`gistgate doctor` says how many answers reached the limit of tokens, for people and for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gistgate.models.loading import load_target


def test_doctor_says_that_cut_answers_tell_no_limit(run: Any, pair: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tom has\nAnna has five\n")
    arguments = ("doctor", pair / "target", prompts, "--draft", pair / "draft", "--max-new-tokens", 24)
    status, out, _ = run(*arguments)
    assert status == 0 and "2 of 2 answers reached the limit of 24 tokens" in out and "--max-new-tokens 96" in out
    found = json.loads(run(*arguments, "--json")[1])["lengths"]
    assert (found["answers"], found["cut"], found["longest"], found["limit"]) == (2, 2, 0, 24)
    assert found["advice"] in out


def test_doctor_ends_answers_at_the_texts_of_the_task(run: Any, pair: Path, tmp_path: Path) -> None:
    prompts, target = tmp_path / "prompts.txt", load_target(str(pair / "target"))
    prompts.write_text("Tom has\n")
    written = run("generate", pair / "target", "Tom has", "--draft", pair / "draft", "--max-new-tokens", 24)[1]
    assert len(target.encode(written)) > 20
    found = run(
        "doctor", pair / "target", prompts, "--draft", pair / "draft", "--max-new-tokens", 24, "--stop", written[18:20],
        "--json",
    )  # fmt: skip
    assert json.loads(found[1])["lengths"]["cut"] == 0
