"""A judge compares answers blind and in both orders; what it says is kept, counted and refused."""

import asyncio
import re
from pathlib import Path
from typing import Any, cast

import pytest

from gistgate.certify.answers import Served
from gistgate.certify.card import Card
from gistgate.certify.endpoint import Endpoint
from gistgate.certify.judge import Judge, preference
from gistgate.cli.certify import Options
from gistgate.cli.servers import compare
from gistgate.core.files import read_json_lines, write_json_lines
from gistgate.core.utils import UserError
from tests.certify.scripted import Script, serving

NUMBERS = range(40)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("[[A]]", "[[B]]"), 1.0),
        (("Not [[A]], but [[b]]", "[[A]]"), -1.0),
        (("[[A]]", "[[A]]"), 0.0),
        (("[[A]]", "[[C]]"), 0.0),
        (("[[C]]", "[[tie]]"), 0.0),
        (("[[A]]", "the first"), None),
        ((), 0.0),
    ],
)
def test_only_a_verdict_of_both_orders_counts(words, value):
    assert preference(words) == value


class LongerIsBetter:
    """An endpoint that prefers the longer answer."""

    url = "http://127.0.0.1/v1"

    async def answer(self, prompt: Any, *_: Any) -> Served:
        [a, b] = re.findall(r"<(.*?)>", prompt[0]["content"])
        return Served("[[A]]" if len(a) > len(b) else "[[B]]", 1, False)


@pytest.mark.parametrize(
    ("baseline", "candidate", "value"),
    [("four", "{b}", 1.0), ("a", "four", -1.0), ("four", "four", 0.0)],
)
def test_the_judge_reads_both_orders(baseline, candidate, value):
    judge = Judge(cast(Endpoint, LongerIsBetter()), "{question} <{a}> <{b}>")
    pair = (Served(baseline, 1, False), Served(candidate, 1, False))
    _, answer = asyncio.run(judge.judged("1?", pair))
    assert preference(answer.judge) == value
    with pytest.raises(UserError, match="lacks {b}"):
        Judge(cast(Endpoint, LongerIsBetter()), "{question} <{a}>")


def certified(folder: Path, says: str, **changes: Any) -> Card:
    """The card of a candidate with other words, to a judge that says the same in both orders."""
    write_json_lines(folder / "own.jsonl", [{"prompt": f"{n} + 1?"} for n in NUMBERS])
    answers = Script(texts=dict.fromkeys(NUMBERS, "Four."))
    judge = Script(texts=dict.fromkeys(NUMBERS, says))
    with serving(Script()) as first, serving(answers) as second, serving(judge) as third:
        options = Options(
            strict=first,
            loose=second,
            judge=third,
            file=str(folder / "own.jsonl"),
            budget=0.3,
            prompts=len(NUMBERS),
            stop="planned",
            out=folder,
            ledger=folder / "judged.json",
            **changes,
        )
        return compare(options)[0]


def test_the_card_names_the_judge_and_the_records_keep_its_words(tmp_path):
    card = certified(tmp_path, "Both. [[A]]")
    assert (card.verdict, card.loss, card.design["claim"]) == ("PASS", 0.0, "judge")
    assert card.scope["judge"]["model"] == "adder"
    assert card.scope["judge"]["without verdict"] == 0
    [file] = tmp_path.glob("*.records.jsonl")
    rows = read_json_lines(file)
    assert len(rows) == len(NUMBERS)
    assert rows[0]["judge"] == ["Both. [[A]]"] * 2


def test_a_judge_without_verdicts_is_refused(tmp_path):
    with pytest.raises(UserError, match="said no verdict about 100%"):
        certified(tmp_path, "I like both.")
    with pytest.raises(UserError, match="needs one, and no other"):
        certified(tmp_path, "[[C]]", claim="agreement")
