"""What an answer is worth against a known right one: scorers by the names that inspect_ai has.

Texts are compared after Unicode normalisation (NFKC), in one case and with single spaces; numbers
are compared as numbers and choices as choices.
"""

from __future__ import annotations

import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib import import_module
from typing import Any, ClassVar

from gistgate.core.utils import UserError, nearest, shown

LETTERS = "ABCDEFGHIJ"  # of choices
LONG = 8
"""Words above which a reference is a text of its own, which no answer contains as it stands."""
MINUS = str.maketrans(dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d", "-"))
NUMBER = re.compile(r"-?(?:\d{1,3}(?:[,\u00a0\u202f' ]\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d+)?", re.I)
FINAL = re.compile(r"####|\\boxed\{|\b(?:final\s+)?answer\b\s*(?:is|:|=)?", re.I)
"""Marks behind which an answer stands in a longer text."""
BORDERLESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff]"
)
"""Scripts that put no border between words (Thai, Lao, Burmese, Khmer, Chinese, Japanese), or none
before a particle (Korean).
"""
APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\u201b", "'"))
QUOTES = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u201f", '"'))
SIGNS = MINUS | APOSTROPHES | QUOTES
OPPOSITES = {"yes": "no", "no": "yes", "true": "false", "false": "true"}


def plain(text: str) -> str:
    """A text in one normal form and case, with single spaces, plain quotation marks and hyphens."""
    return " ".join(unicodedata.normalize("NFKC", text).translate(SIGNS).casefold().split())


class Scorer(ABC):
    """Compares an answer with one right answer."""

    id: ClassVar[str]
    ternary: ClassVar[bool] = True
    """Whether a score is 0 or 1, so that two scores differ by -1, 0 or 1."""

    @abstractmethod
    def score(self, text: str, answer: Any) -> float:
        """What `text` is worth in [0, 1], where `answer` is right."""

    def check(self, answer: Any) -> None:
        """UserError if no text can be compared with this answer."""
        if isinstance(answer, bool | dict | list):
            raise UserError(
                f"the answer {shown(answer)} is no text, which the scorer '{self.id}' compares. If"
                " JSON is expected, take --scorer json, else write the text"
            )


class Exact(Scorer):
    """The text is the answer."""

    id = "exact"

    def score(self, text: str, answer: Any) -> float:
        return float(plain(text) == plain(str(answer)))


class Includes(Scorer):
    """The answer stands in the text, as whole words where its script has such."""

    id = "includes"

    def score(self, text: str, answer: Any) -> float:
        return float(bool(places_of(plain(str(answer)), plain(text))))


@dataclass(frozen=True)
class Label(Scorer):
    """The text names the answer and no other label of the file. Longer labels are looked for first,
    so that "not guilty" does not name "guilty".
    """

    labels: tuple[str, ...]

    id = "label"

    def score(self, text: str, answer: Any) -> float:
        rest = plain(text)
        is_named = False
        for label in sorted(self.labels, key=len, reverse=True):
            places = places_of(label, rest)
            if places and label != plain(str(answer)):
                return 0.0
            is_named = is_named or bool(places)
            for at in places:
                rest = rest[:at] + " " * len(label) + rest[at + len(label) :]
        return float(is_named)


def places_of(answer: str, text: str) -> list[int]:
    """Where an answer stands in a text, as whole words where its script has such."""
    places = []
    at = text.find(answer)
    while at >= 0:
        if is_border(text[:at], answer) and is_border(answer, text[at + len(answer) :]):
            places.append(at)
        at = text.find(answer, at + 1)
    return places


class Match(Scorer):
    """The text ends with the answer, apart from punctuation."""

    id = "match"

    def score(self, text: str, answer: Any) -> float:
        text = plain(text).rstrip(" .,;:!?\"'*`)]}")
        answer = plain(str(answer)).rstrip(" .,;:!?\"'*`)]}")
        return float(text.endswith(answer) and is_border(text[: -len(answer)], answer))


class Number(Scorer):
    """The number that the text gives as its answer: behind a mark such as ####, else the last."""

    id = "number"

    def score(self, text: str, answer: Any) -> float:
        given = final_number(text)
        return float(given is not None and given == expected_number(answer))

    def check(self, answer: Any) -> None:
        if expected_number(answer) is None:
            raise UserError(f"the answer {answer!r} is no number, which the scorer 'number' reads")


class Choice(Scorer):
    """The letter, or which of yes and no or of true and false, that the text chooses."""

    id = "choice"

    def score(self, text: str, answer: Any) -> float:
        if is_verdict(answer):
            return float(verdict_of(text) == plain(answer).rstrip("."))
        return float(chosen_letter(text) == str(answer).strip(" ().").upper())

    def check(self, answer: Any) -> None:
        if not is_letter(answer) and not is_verdict(answer):
            raise UserError(
                f"the answer {answer!r} is no letter from A to {LETTERS[-1]}, yes, no, true or"
                " false, which the scorer 'choice' reads"
            )


class Pattern(Scorer):
    """The regular expression in place of an answer is found in the text."""

    id = "pattern"

    def score(self, text: str, answer: Any) -> float:
        return float(re.search(str(answer), unicodedata.normalize("NFKC", text)) is not None)

    def check(self, answer: Any) -> None:
        super().check(answer)
        try:
            re.compile(str(answer))
        except re.error as error:
            raise UserError(f"the answer {answer!r} is no regular expression ({error})") from error


class F1(Scorer):
    """Harmonic mean of precision and recall of words, as for SQuAD (arXiv 1606.05250)."""

    id = "f1"
    ternary = False

    def score(self, text: str, answer: Any) -> float:
        words = Counter(words_of(text))
        expected = Counter(words_of(str(answer)))
        shared = sum((words & expected).values())
        if not shared:
            return 0.0
        return 2 * shared / (sum(words.values()) + sum(expected.values()))


class Json(Scorer):
    """The JSON value in the text is that of the answer, whatever the order of its keys."""

    id = "json"

    def score(self, text: str, answer: Any) -> float:
        return float(json_in(text) == json_of(answer))

    def check(self, answer: Any) -> None:
        """Every value can be compared."""


@dataclass(frozen=True)
class Function(Scorer):
    """A Python function `module:name` of text and answer."""

    function: Callable[[str, Any], float]
    place: str

    id = "function"
    ternary = False

    def score(self, text: str, answer: Any) -> float:
        value = float(self.function(text, answer))
        if not 0 <= value <= 1:
            raise UserError(f"{self.place} gave {value}, and a score is from 0 to 1.")
        return value

    def check(self, answer: Any) -> None:
        """The function knows what it compares."""


SCORERS: dict[str, Scorer] = {
    scorer.id: scorer
    for scorer in (Exact(), Includes(), Match(), Number(), Choice(), Pattern(), F1(), Json())
}


def scorer_named(name: str) -> Scorer:
    """A scorer by its name, or of a function as "module:function"."""
    if name in SCORERS:
        return SCORERS[name]
    module, sign, function = name.partition(":")
    if not sign:
        raise UserError(f"There is no scorer '{name}'. {nearest(name, SCORERS)}")
    try:
        return Function(getattr(import_module(module), function), name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"The scorer '{name}' could not be imported ({error}). Write module:function, and"
            " start where the module is found."
        ) from error


FEW = 4
MOST = 20
"""Answers of which each comes FEW times on average, and at most MOST different ones, are labels."""


def strictest(answers: Sequence[Any], entries: int) -> Scorer:
    """The strictest scorer that fits all of these right answers of so many entries."""
    if all(is_letter(answer) or is_verdict(answer) for answer in answers):
        return SCORERS["choice"]
    if all(expected_number(answer) is not None for answer in answers):
        return SCORERS["number"]
    if all(isinstance(json_of(answer), dict | list) for answer in answers):
        return SCORERS["json"]
    if any(len(str(answer).split()) > LONG for answer in answers):
        return SCORERS["f1"]
    labels = {plain(str(answer)) for answer in answers}
    has_single = len(answers) == entries
    if has_single and len(labels) <= min(entries / FEW, MOST):
        return Label(tuple(sorted(labels)))
    return SCORERS["includes"]


def is_letter(answer: Any) -> bool:
    """Whether an answer is the letter of a choice: "B", "(b)" or "b." alone."""
    return isinstance(answer, str) and answer.strip(" ().").upper() in [*LETTERS]


def chosen_letter(text: str) -> str | None:
    """The letter of the choice that a text makes; None where it makes none."""
    text = unicodedata.normalize("NFKC", text).strip()
    alone = re.fullmatch(rf"[\W_]*([{LETTERS}{LETTERS.lower()}])[\W_]*", text)
    if alone:
        return alone[1].upper()
    patterns = (
        rf"(?:answer|choice|option)\W*(?:is|:|=)?[\s:*\"'(\[]*([{LETTERS}])\b(?!\s+[a-z])",
        rf"[(\[]([{LETTERS}])[)\]]",
        rf"^\W*([{LETTERS}])[).:]",
        rf"\*\*([{LETTERS}])\b",
        rf"(?<![\w'])([{LETTERS}])(?=[\s]*[.,;:!?)\]]|\s*$)(?!')",
    )
    for pattern in patterns:
        letters = re.findall(pattern, text, re.I if pattern is patterns[0] else 0)
        if letters:
            return str(letters[-1]).upper()
    return None


def is_verdict(answer: Any) -> bool:
    """Whether an answer is yes, no, true or false alone."""
    return isinstance(answer, str) and plain(answer).rstrip(".") in OPPOSITES


def verdict_of(text: str) -> str | None:
    """Which of yes, no, true and false a text answers with: the one behind its last mark, else the
    one that it begins with, else its last; None where it has none.
    """
    text = plain(text)
    marks = [mark.end() for mark in FINAL.finditer(text)]
    behind = text[marks[-1] :] if marks else ""
    word = rf"\b(not )?({'|'.join(OPPOSITES)})\b"
    verdicts = re.findall(rf"^\W*{word}", text) or re.findall(word, text)[-1:]
    for negation, verdict in re.findall(word, behind)[:1] or verdicts:
        return OPPOSITES[verdict] if negation else verdict
    return None


def expected_number(answer: Any) -> Decimal | None:
    """The number that a right answer is or, as in GSM8K, ends with behind ####."""
    return number_of(str(answer).rpartition("####")[2])


def number_of(text: str) -> Decimal | None:
    """The number that a text is, with its thousands marked or not, and with a currency or a percent
    sign around it; None where it is something else.
    """
    text = unicodedata.normalize("NFKC", text).translate(MINUS).strip()
    text = re.sub(r"^(-?)\s*[$€£¥₹]\s*", r"\1", text)
    text = re.sub(r"\s*[%$€£¥₹°]$", "", text).rstrip(".")
    if not text or not NUMBER.fullmatch(text):
        return None
    try:
        return Decimal(re.sub(r"[,' ]", "", text))
    except InvalidOperation:
        return None


def final_number(text: str) -> Decimal | None:
    """The number that a text gives as its answer: the first behind its last mark, else its last."""
    text = unicodedata.normalize("NFKC", text).translate(MINUS)
    marks = [mark.end() for mark in FINAL.finditer(text)]
    if marks:
        behind = numbers_in(text[marks[-1] :])
        if behind:
            return behind[0]
    numbers = numbers_in(text)
    return numbers[-1] if numbers else None


def numbers_in(text: str) -> list[Decimal]:
    """All numbers of a text; a minus between two words or numbers is none of a number."""
    numbers = []
    for found in NUMBER.finditer(text):
        digits = found[0]
        if found.start() and re.match(r"[\w]", text[found.start() - 1]):
            digits = digits.removeprefix("-")
        value = number_of(digits)
        if value is not None:
            numbers.append(value)
    return numbers


def json_of(answer: Any) -> Any:
    """The JSON value that a right answer is or, as a text, holds; else the text."""
    if isinstance(answer, str):
        with suppress(ValueError):
            return json.loads(answer)
    return answer


def json_in(text: str) -> Any:
    """The last whole JSON value in a text: of a block of code, or between brackets."""
    blocks = re.findall(r"```(?:json)?\s*(.*?)```", text, re.S)
    decoder = json.JSONDecoder()
    value = None
    for block in blocks or [text]:
        at = 0
        while match := re.compile(r"[{\[]").search(block, at):
            try:
                value, at = decoder.raw_decode(block, match.start())
            except ValueError:
                at = match.end()
    if value is None:
        with suppress(ValueError):
            value = json.loads(text)
    return value


def words_of(text: str) -> list[str]:
    """The words of a text without articles and punctuation; letters of scripts without borders are
    words of their own.
    """
    words = re.findall(r"\w+", plain(text))
    tokens: list[str] = []
    for word in words:
        if BORDERLESS.search(word):
            tokens += list(word)
        elif word not in ("a", "an", "the"):
            tokens.append(word)
    return tokens


def is_border(left: str, right: str) -> bool:
    """Whether a word may end between two texts."""
    if not left or not right:
        return True
    before = left[-1]
    after = right[0]
    if BORDERLESS.match(before) or BORDERLESS.match(after):
        return True
    if before in "-" and after.isdigit():
        return False
    is_decimal = after in ".," and right[1:2].isdigit() and before.isdigit()
    continues = before in ".," and after.isdigit() and left[-2:-1].isdigit()
    return not (is_decimal or continues or (is_word(before) and is_word(after)))


def is_word(letter: str) -> bool:
    """Whether a letter, digit or mark is part of a word."""
    return bool(re.match(r"\w", letter)) or unicodedata.category(letter).startswith("M")
