"""Facts that a text mentions, in whatever form, and numbers that it invents."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gistgate.tasks.numerals import in_digits, with_halves

Fact = dict[str, str]  # kind, label and value
Clock = tuple[int, bool]  # minutes of the day, and whether the half of the day is known
Span = tuple[int, int]  # where a mention begins and ends in a text

CLOCK = re.compile(
    r"\b(\d{1,2})(?:[:.](\d{2}))?\s*(?:([ap])\.?\s?m\b\.?|o'clock|hours\b)|\b(\d{1,2}):(\d{2})\b"
)
NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
ABBREVIATED = re.compile(
    r"\b[ap]\. ?m(?:\.(?!\s+[A-Z]|\s*$))?"
    r"|\b(?:Mr|Mrs|Ms|Dr|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\."
)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
LISTED = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)  # numbers of a list's lines say nothing
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


def plain(text: str) -> str:
    """Lower case, without marks of emphasis or numbers of lists, in one spelling, with one kind of
    dash and space, and full stops behind sentences alone.
    """
    text = LISTED.sub(" ", text.replace("*", "").replace("’", "'"))
    text = ABBREVIATED.sub(lambda word: word[0].replace(".", ""), text).casefold()
    text = text.replace("gray", "grey").replace("aluminum", "aluminium")
    text = re.sub(r"[‐-―−]", "-", text)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[^\S\n]+", " ", text)).strip()


def has(entry: Fact, text: str) -> bool:
    """Whether a plain text mentions a fact."""
    return bool(mentions(entry, in_digits(text)))


def mentions(entry: Fact, text: str) -> list[Span]:
    """Where a plain text, its numbers in digits, mentions a fact."""
    value = entry["value"].casefold()
    kind = entry["kind"]
    if kind == "time":
        return clocks_at(value, text)
    if kind == "number":
        return numbers_at(value, text)
    pattern = date_pattern(value) if kind == "date" else words_pattern(value)
    return [match.span() for match in re.finditer(pattern, text)]


def words_pattern(value: str) -> str:
    """Pattern of the words of a value."""
    words = r"[\s-]".join(map(re.escape, value.split()))
    return rf"\b{words}(?:s|es)?\b"


def date_pattern(value: str) -> str:
    """Pattern of a day and its month, in either order, in words or numbers."""
    day, month = value.split()
    number = rf"0?{day}(?:st|nd|rd|th)?"
    name = rf"{month[:3]}(?:{month[3:]}|t\b|\b)"
    place = MONTHS.index(month[:3]) + 1
    numeric = (
        rf"(?<![\d./-])(?:0?{day}[./]0?{place}|0?{place}[./]0?{day}|\d{{4}}-0?{place}-0?{day})\b"
    )
    return rf"\b{number}(?: day)?(?: of)?[ -]{name}|\b{name}[ -](?:the )?{number}\b|{numeric}"


def numbers_at(value: str, text: str) -> list[Span]:
    """Where the numbers of a value follow each other in a text with its unit or word at one."""
    word = "$" if value.startswith("$") else re.findall(r"[a-z]+", value)[-1]
    unit = re.compile(rf"(?<![a-z])(?:{UNITS.get(word, word)})(?![a-z])")
    expected = numbers_in(value)
    numbers = numbers_in(text)
    places = list(NUMBER.finditer(text))
    spans = []
    for first in range(len(places) - len(expected) + 1):
        end = first + len(expected)
        start = max(0, places[first].start() - 12)
        nearby = text[start : places[end - 1].end() + 24]
        if numbers[first:end] == expected and unit.search(nearby):
            spans.append((places[first].start(), places[end - 1].end()))
    return spans


def clocks_at(value: str, text: str) -> list[Span]:
    """Where a text says this time."""
    clock = clock_of(value)
    matches = CLOCK.finditer(text)
    return [match.span() for match in matches if same_time(clock, clock_in(match))]


def invented(facts: Sequence[Fact], text: str) -> set[str]:
    """Times and numbers of a plain text that no fact has, each once."""
    text = with_halves(text)
    hours = []
    numbers: set[float] = set()
    for entry in facts:
        value = entry["value"].casefold()
        if entry["kind"] == "time":
            hours.append(clock_of(value))
            continue
        numbers.update(numbers_in(value))
        if entry["kind"] == "date":
            text = re.sub(date_pattern(value), " ", text)
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
    return [clock_in(match) for match in CLOCK.finditer(text)], CLOCK.sub(" ", text)


def clock_in(match: re.Match[str]) -> Clock:
    """The time that a match of `CLOCK` says."""
    hour12, minute12, half, hour24, minute24 = match.groups()
    hour = int(hour12 or hour24)
    minute = int(minute12 or minute24 or 0)
    if half and hour <= 12:
        hour = hour % 12 + 12 * (half == "p")
    return 60 * hour + minute, bool(half) or hour > 12


def same_time(clock: Clock, candidate: Clock) -> bool:
    """Equal, or half a day apart where one of them does not say which half it means."""
    is_known = clock[1] and candidate[1]
    return (clock[0] - candidate[0]) % (24 * 60 if is_known else 12 * 60) == 0
