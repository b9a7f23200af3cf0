"""What the demo decodes with, and the answer to a question as events for the page."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gistgate.build.models import Target
from gistgate.decoding.decoder import Decoder
from gistgate.demo.stream import stream
from gistgate.errors import UserError
from gistgate.observing.race import strict_of
from gistgate.pages.alignment import differences
from gistgate.pages.runs import STRICT, rule_name
from gistgate.pages.tokens import shown
from gistgate.rules.base import Rule

MOST_TOKENS = 4096
"""Longest answer that a question may ask for."""


@dataclass(frozen=True)
class Setting:
    """One position of the slider."""

    label: str
    decoder: Decoder
    claim: str
    """What is certified about it."""


@dataclass(frozen=True)
class Question:
    """What the page asks."""

    prompt: str
    setting: int
    """Position of the slider."""
    max_new_tokens: int
    """Longest answer, in tokens."""


@dataclass(frozen=True)
class Playground:
    """A decoder with the settings of its rule between which the page's slider chooses."""

    decoder: Decoder
    target: Target
    rule: Rule
    """The rule whose knob is on the slider, at the value where the slider begins."""
    claims: Mapping[float, str] = field(default_factory=dict)
    """Value of the knob -> what is certified about it."""
    name: str = "GistGate"
    """The models, for the heading."""
    max_new_tokens: int = 256
    """Longest answer that the page suggests, in tokens."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Decoder.generate` that all questions share."""
    chat: bool = False
    """Whether prompts are wrapped in the chat template."""
    system: str | None = None
    """System text of the chat template."""

    @cached_property
    def settings(self) -> list[Setting]:
        """Strict decoding, then the values of the knob from strict to loose."""
        strict = Setting(STRICT, strict_of(self.decoder, self.decoder.drafter), "Strict decoding loses nothing.")
        return [strict, *(self._setting(value) for value in knob_values(self.rule))]

    @property
    def start(self) -> int:
        """Position at which the slider begins: the value of the decoder, or strict decoding."""
        knob = self.decoder.rule.knob
        return 0 if knob is None else 1 + knob_values(self.rule).index(getattr(self.rule, knob))

    def _setting(self, value: float) -> Setting:
        rule: Any = self.rule.changed(**{str(self.rule.knob): value})
        claim = self.claims.get(value, "Nothing is certified here.")
        return Setting(rule_name(rule), self.decoder.having(rule=rule), claim)

    def question(self, values: Any) -> Question:
        """Check what the page sent.

        Raises:
            UserError: the prompt is empty, or a number is missing or out of range.
        """
        try:
            question = Question(str(values["prompt"]), int(values["setting"]), int(values["max_new_tokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError("A question has a prompt, a setting and max_new_tokens. Reload the page.") from error
        if not question.prompt.strip():
            raise UserError("The prompt is empty. Type some text.")
        if not 1 <= question.max_new_tokens <= MOST_TOKENS:
            raise UserError(f"An answer has 1 to {MOST_TOKENS} tokens here. Change the number of tokens.")
        if not 0 <= question.setting < len(self.settings):
            raise UserError("The slider has no such position. Reload the page.")
        return question

    def answer(self, question: Question) -> Generator[dict[str, Any], None, None]:
        """Decode loosely, then strictly, and yield an event for each round; at last, where the answers differ.

        Raises:
            UserError: the decoder refuses the request.
        """
        tokenizer = self.target.tokenizer
        ids = self.target.encode(question.prompt, self.chat, self.system)
        request = {**self.request, "max_new_tokens": question.max_new_tokens}
        texts: dict[str, list[str]] = {"loose": [], STRICT: []}
        for side, setting in (("loose", self.settings[question.setting]), (STRICT, self.settings[0])):
            with closing(stream(setting.decoder, ids, tokenizer, **request)) as steps:
                for step in steps:
                    texts[side] += [token.text for token in step.tokens]
                    tokens = [shown(token) for token in step.tokens]
                    yield {"side": side, "tokens": tokens, "numbers": step.numbers}
        yield {"differences": [spans(one) for one in differences(texts["loose"], texts[STRICT])]}


def spans(difference: Any) -> dict[str, list[int]]:
    """First token and end of a difference in both answers."""
    sides = {"loose": difference.left, STRICT: difference.right}
    return {side: [span.start, span.stop] for side, span in sides.items()}


def knob_values(rule: Any) -> list[float]:
    """Values of the rule's knob from strict to loose, its present one included; none for a rule without a knob."""
    if rule.knob is None:
        return []
    return sorted({*rule.grid, getattr(rule, rule.knob)}, reverse=rule.looser == "down")
