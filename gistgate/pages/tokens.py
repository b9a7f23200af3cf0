"""A token as a page shows it: nothing invisible in the text, and one line about its probabilities."""

from __future__ import annotations

import re

from gistgate.observing.trace import TracedToken

MEANINGS = {
    "strict": "draft token that the strict rule accepts",
    "loose": "draft token that only the loose rule accepts",
    "carried": "strict accept behind a loose one of the same block",
    "own": "token that the target adds itself",
    "loop": "strict accept while the loop guard keeps the gate closed",
}
"""Reason -> what the legend says about it."""

UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
"""Control characters, marks that change the direction of writing, and halves of surrogate pairs."""


def shown(token: TracedToken) -> dict[str, str]:
    """Text, reason and note of a token, ready for a page; the text is not escaped."""
    return {"text": visible(token.text), "reason": token.reason, "note": note(token)}


def visible(text: str) -> str:
    """The text with characters that cannot be seen, or that reorder others, written as their code points."""
    named = UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
    return named.replace("\n", "↵\n") or "∅"


def note(token: TracedToken) -> str:
    """Why the token is there, and the probabilities of gate and target."""
    gate = "" if token.kept is None else f", gate {token.kept:.3f}"
    return f"{token.reason}{gate}, target {token.probability:.3f}"
