"""Facts that a text has, in whatever form, and numbers that it invents.

A text is worth (facts that it has - numbers that it invents) / facts: the slot error rate turned
round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Fact = dict[str, str]  # kind, label and value
Clock = tuple[int, bool]  # minutes of the day, and whether the half of the day is known

CLOCK = re.compile(
    r"\b(\d{1,2})(?:[:.](\d{2}))?\s*(?:([ap])\.?\s?m\b\.?|o'clock|hours\b)|\b(\d{1,2}):(\d{2})\b"
)
WORDS_OF_TIME = {"noon": "12 pm", "midday": "12 pm", "midnight": "12 am"}
NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
LISTED = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)  # numbers of a list's lines say nothing
SPELLED = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "eleven": "11",
    "twelve": "12",
}
SPELLED_WORD = re.compile(rf"\b({'|'.join(SPELLED)})\b")
UNITS = {
    "$": r"\$|usd|dollars?|bucks",
    "kg": r"kgs?|kilos?|kilograms?",
    "g": r"g|grams?",
    "cm": r"cm|centimet(?:er|re)s?",
    "years": r"years?|yrs?",
    "people": "",  # guests, participants, friends
}


def fact(kind: str, label: str, value: str) -> Fact:
    """One fact; its kind is words, number, time or date."""
    return {"kind": kind, "label": label, "value": value}


def score(facts: Sequence[Fact], text: str, known: Sequence[Fact] | None = None) -> float:
    """(facts in the text - numbers in it that no fact has, nor any of `known`) / facts, at least
    0.
    """
    text = plain(text)
    present = sum(has(entry, text) for entry in facts)
    return max(0.0, (present - len(invented(known or facts, text))) / len(facts))


def plain(text: str) -> str:
    """Lower case, without marks of emphasis or numbers of lists, in one spelling, with one kind of
    dash and space.
    """
    text = LISTED.sub(" ", text.casefold().replace("*", "").replace("’", "'"))
    text = text.replace("gray", "grey").replace("aluminum", "aluminium")
    return re.sub(r"\s+", " ", re.sub(r"[‐-―−]", "-", text))


def has(entry: Fact, text: str) -> bool:
    """Whether a plain text has a fact."""
    value = entry["value"].casefold()
    kind = entry["kind"]
    if kind == "time":
        return any(same_time(clock_of(value), clock) for clock in times(text)[0])
    if kind == "date":
        return has_date(value, text)
    if kind == "number":
        return has_numbers(value, text)
    words = "[ -]".join(map(re.escape, value.split()))
    return bool(re.search(rf"\b{words}(?:s|es)?\b", text))


def has_date(value: str, text: str) -> bool:
    """Whether a day and its month stand in a text, in either order."""
    day, month = value.split()
    number = rf"0?{day}(?:st|nd|rd|th)?"
    name = rf"{month[:3]}(?:{month[3:]}|\b\.?)"
    return bool(
        re.search(rf"\b{number}(?: day)?(?: of)? {name}|\b{name} (?:the )?{number}\b", text)
    )


def has_numbers(value: str, text: str) -> bool:
    """Whether the numbers of a value, perhaps spelled, follow each other in a text with its unit or
    word at one.
    """
    word = "$" if value.startswith("$") else re.findall(r"[a-z]+", value)[-1]
    unit = re.compile(rf"(?<![a-z])(?:{UNITS.get(word, word)})(?![a-z])")
    text = SPELLED_WORD.sub(lambda found: SPELLED[found[1]], text)
    expected = numbers_in(value)
    numbers = numbers_in(text)
    places = list(NUMBER.finditer(text))
    for first in range(len(places) - len(expected) + 1):
        end = first + len(expected)
        start = max(0, places[first].start() - 12)
        nearby = text[start : places[end - 1].end() + 24]
        if numbers[first:end] == expected and unit.search(nearby):
            return True
    return False


def invented(facts: Sequence[Fact], text: str) -> set[str]:
    """Times and numbers of a plain text that no fact has, each once."""
    hours = [clock_of(entry["value"].casefold()) for entry in facts if entry["kind"] == "time"]
    numbers: set[float] = set()
    for entry in facts:
        if entry["kind"] != "time":
            numbers.update(numbers_in(entry["value"]))
    clocks, without_times = times(text)
    strange = {str(number) for number in numbers_in(without_times) if number not in numbers}
    for clock in clocks:
        if not any(same_time(hour, clock) for hour in hours):
            strange.add(f"{clock[0]} min")
    return strange


def numbers_in(text: str) -> list[float]:
    """The numbers in a text, in their order."""
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def clock_of(value: str) -> Clock:
    """The time that a value says."""
    return times(value)[0][0]


def times(text: str) -> tuple[list[Clock], str]:
    """The times in a text, and the text without them."""
    for word, clock in WORDS_OF_TIME.items():
        text = re.sub(rf"\b{word}\b", clock, text)
    clocks = []
    for hour12, minute12, half, hour24, minute24 in CLOCK.findall(text):
        hour = int(hour12 or hour24)
        minute = int(minute12 or minute24 or 0)
        if half and hour <= 12:
            hour = hour % 12 + 12 * (half == "p")
        clocks.append((60 * hour + minute, bool(half) or hour > 12))
    return clocks, CLOCK.sub(" ", text)


def same_time(clock: Clock, candidate: Clock) -> bool:
    """Equal, or half a day apart where one of them does not say which half it means."""
    is_known = clock[1] and candidate[1]
    return (clock[0] - candidate[0]) % (24 * 60 if is_known else 12 * 60) == 0
