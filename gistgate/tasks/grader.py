"""What a free text is worth: (facts that it states - numbers that it invents) / facts, the slot
error rate turned round; nothing if it is no running text.

A fact is stated where the text mentions it in its own place and nowhere denies it.
"""

from collections.abc import Sequence

from gistgate.tasks.denials import denies, denies_all
from gistgate.tasks.facts import Fact, invented, mentions, plain
from gistgate.tasks.numerals import in_digits
from gistgate.tasks.prose import is_prose
from gistgate.tasks.slots import NAMES, is_misplaced, slot_of


def score(
    facts: Sequence[Fact], text: str, known: Sequence[Fact] | None = None, request: str = ""
) -> float:
    """(stated facts - numbers in the text that no fact has, nor any of `known`) / facts, at least
    0; 0 for what is no English prose, or copies the `request`.
    """
    text = plain(text)
    readable = in_digits(text)
    if not is_prose(text, facts, request) or denies_all(text):
        return 0.0
    stated = sum(states(readable, entry) for entry in facts)
    return max(0.0, (stated - len(invented(known or facts, text))) / len(facts))


def states(text: str, entry: Fact) -> bool:
    """Whether a plain text, its numbers in digits, states a fact and does not deny it."""
    spans = mentions(entry, text)
    is_name = slot_of(entry) in NAMES
    is_kept = not any(
        denies(text, span, is_name) or is_misplaced(entry, text, span) for span in spans
    )
    return bool(spans) and is_kept
