"""What the commands read: a prompt, or a file of prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gistgate.build.asking import Asked
from gistgate.errors import UserError
from gistgate.files import read_json_lines, read_text

STANDARD_INPUT = "-"
BOM = "\ufeff"
"""What some editors write in front of a text in UTF-8."""


def read_prompt(prompt: str) -> str:
    """The prompt, from standard input if it is a dash.

    Raises:
        UserError: it is no text in UTF-8.
    """
    is_named = prompt != STANDARD_INPUT
    try:
        text = prompt if is_named else sys.stdin.read()
        text.encode()  # bytes that are no text may come as half characters, which no tokenizer takes
    except UnicodeError as error:
        place = "The prompt" if is_named else "Standard input"
        raise UserError(f"{place} is no text in UTF-8 ({error}). Convert it first.") from error
    return text


def read_prompts(place: str) -> list[Asked]:
    """The prompts of a text file, one per line, of standard input, or of a .jsonl file such as the pipeline writes.

    Raises:
        UserError: the file is missing or damaged, or holds no prompt.
    """
    if place.endswith(".jsonl"):
        found = [asked_in(row, place) for row in read_json_lines(Path(place))]
    else:
        text = read_prompt(place) if place == STANDARD_INPUT else read_text(place)
        lines = text.removeprefix(BOM).split("\n")
        found = [Asked(line.removesuffix("\r")) for line in lines if line.strip()]
    if not (kept := [one for one in found if one.text]):
        raise UserError(f"{place} holds no prompt. Write one prompt per line.")
    return kept


def asked_in(row: Any, place: str) -> Asked:
    """The prompt in a row of a .jsonl file, with its ids where the row holds them.

    Raises:
        UserError: the row has no text, or its ids are none.
    """
    text, ids = (row.get("context"), row.get("ids")) if isinstance(row, dict) else (None, None)
    if not isinstance(text, str):
        raise UserError(f"{place} has lines without a text `context`. Write one prompt per line, or that key.")
    if ids is not None and not (isinstance(ids, list) and ids and all(type(one) is int and one >= 0 for one in ids)):
        raise UserError(f"{place} has lines whose `ids` are no token ids. Write whole numbers, or leave that key out.")
    return Asked(text, None if ids is None else tuple(ids))
