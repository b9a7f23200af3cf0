"""Two servers that think before they answer: what is scored, shown and refused."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gistgate.certify.card import Card
from gistgate.cli.certify import Options
from gistgate.cli.servers import compare
from gistgate.core.files import write_json_lines
from gistgate.core.utils import UserError
from tests.certify.scripted import Script, serving

NUMBERS = range(60)


def certified(folder: Path, strict: Script, loose: Script, **changes: Any) -> Card:
    """The certificate of one script against another, about chats with a known answer."""
    rows = [{"prompt": f"{n} + 1?", "answer": n + 1} for n in NUMBERS]
    write_json_lines(folder / "own.jsonl", rows)
    with ExitStack() as servers:
        asked = {
            "strict": servers.enter_context(serving(strict)),
            "loose": servers.enter_context(serving(loose)),
            "file": str(folder / "own.jsonl"),
            "chat": True,
            "budget": 0.2,
            "prompts": len(NUMBERS),
            "out": folder,
            "ledger": folder / "judged.json",
        }
        return compare(Options(**{**asked, **changes}))[0]


def test_a_number_in_a_thought_is_no_answer(tmp_path):
    texts: dict[int, str | None] = {n: f"<think>{n + 1:03}</think>I do not know." for n in NUMBERS}
    card = certified(tmp_path, Script(), Script(texts=texts))
    assert card.verdict != "PASS"
    assert card.candidate["answers"]["score"] == 0
    assert card.candidate["answers"]["unfinished thoughts"] == 0
    assert card.candidate["answers"]["thought characters"] == 3
    assert card.baseline["answers"]["thought characters"] is None


def test_the_card_says_how_many_thoughts_have_no_end(tmp_path):
    texts: dict[int, str | None] = {n: f"<think>{n + 1}</think>{n + 1}" for n in NUMBERS}
    half = {**texts, **{n: f"<think>Is it {n + 1}?" for n in NUMBERS if n % 5 == 0}}
    card = certified(tmp_path, Script(texts=texts), Script(texts=half), stop="planned", budget=0.4)
    assert card.tasks[0]["losses"] == 12
    assert card.candidate["answers"]["unfinished thoughts"] == pytest.approx(0.2)
    assert card.baseline["answers"]["unfinished thoughts"] == 0


def test_answers_without_an_end_are_taken_for_thoughts(tmp_path):
    cut = Script(
        texts={n: f"Okay. Is it {n + 1}? Hmm," for n in NUMBERS},
        reasons=dict.fromkeys(NUMBERS, "length"),
    )
    with pytest.raises(UserError, match="does not end 100% of its answers"):
        certified(tmp_path, Script(), cut)


def test_thoughts_may_grow_by_a_share(tmp_path):
    short: dict[int, str | None] = dict.fromkeys(NUMBERS, "<think>aaaa</think>bbbb")
    long: dict[int, str | None] = dict.fromkeys(NUMBERS, "<think>aaaaaaaa</think>b")
    sides = (Script(texts=short, tokens=8), Script(texts=long, tokens=9))
    card = certified(tmp_path, *sides, claim="thoughts", budget=0.5, max_new_tokens=10)
    assert card.loss == pytest.approx(1.0)
    assert card.verdict != "PASS"
