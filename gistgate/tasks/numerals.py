"""Numbers, hours and dates in words, written in digits: "twenty-seventh" as 27th, "half past four"
as 4:30.
"""

import re
from collections.abc import Iterable

UNITS = {
    "one": 1,
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
}
TEENS = {
    "ten": 10,
    "eleven": 11,
    "twelve": 12,
    "thirteen": 13,
    "fourteen": 14,
    "fifteen": 15,
    "sixteen": 16,
    "seventeen": 17,
    "eighteen": 18,
    "nineteen": 19,
}
TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
VALUES = UNITS | TEENS | TENS
IRREGULAR = {
    "first": "one",
    "second": "two",
    "third": "three",
    "fifth": "five",
    "eighth": "eight",
    "ninth": "nine",
    "twelfth": "twelve",
    "twentieth": "twenty",
    "thirtieth": "thirty",
}
ORDINALS = {f"{word}th": word for word in VALUES} | IRREGULAR


def either(words: Iterable[str]) -> str:
    """Pattern of any of these words, of which the longest that fits counts."""
    return f"(?:{'|'.join(sorted(words, key=len, reverse=True))})"


UNIT = either(UNITS)
TEEN = either(TEENS)
TEN = either(TENS)
ORDINAL = either(ORDINALS)
BELOW_100 = f"(?:{TEN}[ -]{UNIT}|{TEEN}|{TEN}|{UNIT})"
BELOW_1000 = f"(?:{UNIT} hundred(?: and)?(?: {BELOW_100})?|{BELOW_100})"
NUMBER = re.compile(
    rf"\b(?:{TEN}[ -]{ORDINAL}|{ORDINAL}"
    rf"|{BELOW_1000} thousand(?:(?:,| and)? {BELOW_1000})?|{BELOW_1000})\b"
)
HOUR_AND_MINUTE = re.compile(rf"\b({UNIT}|ten|eleven|twelve) ({TEEN}|{TEN}(?:[ -]{UNIT})?)\b")
CENTS = re.compile(r"\b(\d+) dollars?(?: and)? (\d\d) cents?\b")
HALF_OF_DAY = re.compile(
    r"\b(\d{1,2}(?:[:.]\d{2})?)(?: o'clock)?"
    r" (?:(?:in|on) (?:the|\w+day) (morning|afternoon|evening)|at (night))\b"
)
WORDS_OF_TIME = {"noon": "12 pm", "midday": "12 pm", "midnight": "12 am"}
PART_OF_HOUR = re.compile(r"\b(?:a )?(quarter|half) (past|to) (\d{1,2})\b")


def in_digits(text: str) -> str:
    """A text in lower case with its spelled numbers, hours, amounts and days in digits; a lone
    "one" stays, which mostly is no number.
    """
    text = HOUR_AND_MINUTE.sub(lambda time: f"{digits(time[1])}:{digits(time[2])}", text)
    text = NUMBER.sub(lambda spelled: digits(spelled[0]), text)
    text = CENTS.sub(r"$\1.\2", text)
    text = PART_OF_HOUR.sub(past_or_to, text)
    return with_halves(text)


def with_halves(text: str) -> str:
    """A text with am and pm in place of noon, midnight, morning, afternoon, evening and night."""
    for word, clock in WORDS_OF_TIME.items():
        text = re.sub(rf"\b(?:12 )?{word}\b", clock, text)
    return HALF_OF_DAY.sub(lambda hour: f"{hour[1]} {'am' if hour[2] == 'morning' else 'pm'}", text)


def digits(spelled: str) -> str:
    """A spelled number such as "three thousand two hundred and fifty", in digits."""
    words = re.sub(r"\band\b|[-,]", " ", spelled).split()
    if words in (["one"], ["first"], ["second"]):
        return spelled
    is_ordinal = words[-1] in ORDINALS
    total = 0
    group = 0
    for word in words:
        word = ORDINALS.get(word, word)
        if word == "thousand":
            total += max(group, 1) * 1000
            group = 0
        elif word == "hundred":
            group = max(group, 1) * 100
        else:
            group += VALUES[word]
    return f"{total + group}{'th' if is_ordinal else ''}"


def past_or_to(part: re.Match[str]) -> str:
    """The time of "quarter past 4", "half past 4" or "quarter to 5"."""
    minute = 30 if part[1] == "half" else 15
    hour = int(part[3])
    if part[2] == "to":
        hour -= 1
        minute = 60 - minute
    return f"{hour}:{minute:02}"
