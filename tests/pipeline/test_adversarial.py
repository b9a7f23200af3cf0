"""Adversarial prompts are made of ordinary ones, and what a loose rule opens is counted."""

from typing import Any

import pytest

from pipeline.operating import Operating
from pipeline.stages.adversarial import Reply, compare, is_strict, variants

END, THINK = 2, 9


def prompt(question: str) -> dict[str, Any]:
    return {
        "context": f"Question: {question}\nAnswer:",
        "doc": {"question": question, "answer": "#### 4", "n": 3},
    }


def said(*ids: int, text: str = "It is 4.", finish: str = "eos") -> Reply:
    return Reply([*ids], text, finish)


def test_every_prompt_is_led_astray_in_four_ways():
    made = variants([prompt("How many?"), prompt("How much?")], ["</s>", "<think>"])
    assert [kind for kind, _ in made] == ["repeated", "contradictory", "injected", "refusing"] * 2
    texts = dict(made[:4])
    assert texts["repeated"] == "Question: How many? How many? How many?\nAnswer:"
    assert "How many? No, all of this was wrong. How much?" in texts["contradictory"]
    assert texts["injected"].count("</s>") == 2 and dict(made[4:])["injected"].count("<think>") == 2
    assert all(text.startswith("Question: ") and text.endswith("\nAnswer:") for _, text in made)


@pytest.mark.parametrize(
    ("strict", "loose", "counted"),
    [
        (said(END, text=""), said(5, 6, 7, 8, END), {"opened", "first_differing"}),
        (
            said(5, 6, 7, 8, END, text="I'm sorry, no."),
            said(5, 6, 7, 9, 8, END),
            {"opened", "protocol"},
        ),
        (said(5, 6, 7, 8, END), said(5, END, text="It"), set()),
        (said(5, THINK, 7, 8, END), said(5, 6, 7, 8, END), {"protocol"}),
        (said(5, 6, 7, 8, END), said(5, 6, 7, 4, finish="length"), {"capped"}),
    ],
)
def test_what_a_loose_rule_changes_is_counted(strict: Reply, loose: Reply, counted: set[str]):
    found = compare([strict, strict], [loose, strict], {END, THINK})
    keys = {"differing", "first_differing", "opened", "protocol", "capped"}
    assert {key for key in keys if found[key]} == counted | {"differing"} and found[
        "differing"
    ] == 1
    assert found["tokens"] - found["strict_tokens"] == len(loose.ids) - len(strict.ids)


@pytest.mark.parametrize(
    ("own", "drafter", "expected"), [("model", "lookup", False), ("suffix", "suffix", True)]
)
def test_only_the_pair_s_own_drafts_make_answers_strict_beforehand(
    own: str, drafter: str, expected: bool
):
    """Other drafts change sums, and in half precision answers: such a method is decoded like any
    other.
    """
    assert is_strict(Operating("lossless", "exact", drafter, 8), own) is expected
    assert is_strict(Operating("refused", "exact", "model", 8), own)
    assert not is_strict(Operating("loose", "prob", "model", 8), own)
