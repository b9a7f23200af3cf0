"""Free text with an exact check, made from fixed seeds: letters from facts, descriptions of
articles from a record, and replies to questions about a notice.

A text is worth (facts that it has - numbers that it invents) / facts: the slot error rate turned
round. A reply has one fact to state, so that it is right or wrong; the other numbers of the notice
are known.
"""

import random
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

Fact = dict[str, str]  # kind, label and value
Document = dict[str, Any]  # request: the words of the prompt; facts: those that a text has to have
SIZES = {"train": 6000, "test": 1500}  # documents of each split


def words(text: str) -> list[str]:
    """The entries of a list that commas divide."""
    return [" ".join(entry.split()) for entry in text.split(",")]


FIRST = words(
    """Alma, Boris, Carla, Dmitri, Elena, Farid, Greta, Hassan, Ines, Jonas, Keiko, Lars, Miriam, Nadia,
Oscar, Priya, Quentin, Rosa, Samir, Teresa, Umar, Vera, Walter, Ximena, Yusuf, Zoe, Amelia, Bruno, Chloe, Diego, Esther,
Felix, Hannah, Ivan, Julia, Kofi, Lucia, Marco, Nora, Owen, Petra, Rafael, Sofia, Tobias, Valerie"""
)
LAST = words(
    """Abbott, Bauer, Castillo, Dalton, Eriksen, Fischer, Grant, Hughes, Ivanov, Jensen, Keller, Lopez, Moreau,
Novak, Okafor, Patel, Quinn, Rossi, Schmidt, Tanaka, Ueda, Vargas, Weber, Yilmaz, Zimmer, Brooks, Carver, Dixon,
Emerson, Foster, Haines, Larsen, Mercer, Nolan, Porter, Russell, Sutton, Turner, Walsh, Winters"""
)
CITIES = words(
    """Lisbon, Oslo, Geneva, Prague, Dublin, Vienna, Helsinki, Turin, Krakow, Seville, Hamburg, Lyon,
Antwerp, Bristol, Cardiff, Denver, Boston, Seattle, Montreal, Toronto, Kyoto, Osaka, Sydney, Perth, Auckland, Nairobi,
Lima, Bogota, Santiago, Porto, Ghent, Malmo, Bergen, Zurich, Basel, Graz, Leipzig, Dresden, Utrecht, Bilbao"""
)
DAYS = words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = words(
    "January, February, March, April, May, June, July, August, September, October, November,"
    " December"
)
EVENTS = words(
    """budget review, team dinner, design workshop, farewell party, safety training, choir rehearsal, job
interview, product demo, charity run, garden party, press meeting, school reunion, photo exhibition, cooking class,
board meeting, sales conference, chess tournament, house warming, language course, museum visit, planning session,
science fair, volunteer day, wine tasting"""
)
ITEMS = words(
    """laptop, notebook, umbrella, name badge, camera, passport, water bottle, calculator, blanket, raincoat,
sketchbook, flashlight, lunch box, headset, tripod, yoga mat, toolbox, guitar, folding chair, printed agenda"""
)
ROOMS = words("Room, Hall, Studio, Suite, Office")
ARTICLES = words(
    """backpack, desk lamp, armchair, coffee grinder, kettle, bookshelf, travel mug, rain jacket, cutting
board, wall clock, picture frame, office chair, tent, sleeping bag, garden bench, side table, suitcase, toaster, wallet,
frying pan, wireless speaker, bicycle helmet, floor rug, storage box, plant pot, serving tray, hammock, umbrella stand,
laptop sleeve, bird feeder, shoe rack, tool chest, jewelry box, mirror, coat rack, vase, lunch bag, camping stove,
watch, pillow"""
)
BEGINNINGS = words(
    "Al, Bel, Cor, Dra, El, Fen, Gal, Hel, Jor, Kel, Lum, Mor, Nor, Or, Pel, Quor, Ral, Sol,"
    " Tor, Vel"
)
NAME_ENDS = words("ando, ira, essa, ovia, amis, enta, ora, ilo, anta, ero, una, isto")
COLOURS = words(
    """navy blue, forest green, charcoal, ivory, burgundy, mustard, teal, olive, coral, slate grey, copper,
black, white, lavender, crimson, beige, turquoise, silver"""
)
MATERIALS = words(
    """oak, walnut, bamboo, stainless steel, aluminium, cotton, linen, wool, leather, canvas, recycled
plastic, ceramic, glass, cast iron, brass, nylon, cork, felt, polyester, marble"""
)
COUNTRIES = words(
    """Portugal, Sweden, Italy, Japan, Poland, Canada, Mexico, Vietnam, India, Turkey, Denmark, Austria,
Spain, Brazil, Morocco, Finland, Ireland, Slovenia, Estonia, Peru"""
)

LETTER_REQUESTS = (
    "Write an email of about 80 words. It is an invitation to a {event}.",
    "Please write a friendly email, about 80 words long, that invites somebody to a {event}.",
    "Write an email that reminds somebody of a {event}, in about 80 words.",
    "An email of about 80 words is needed: it confirms the date of a {event}.",
    "Compose an email (about 80 words) in which the sender asks the reader to help at a {event}.",
    "Write about 80 words to a colleague by email, to announce a {event}.",
)
DESCRIPTION_REQUESTS = (
    "Write a product description of about 80 words for a shop's page, in flowing text.",
    "Describe this article for a catalogue in about 80 words of flowing text, without a list.",
    "Write about 80 words of flowing text that present the following product to customers.",
    "A web shop needs a text of about 80 words, without headings or lists, about this article.",
    "Turn this record into a friendly product text of about 80 words in one paragraph.",
    "Write one paragraph of about 80 words for an advertisement of this product.",
)
ENDS = (
    "Mention every one of these five facts.",
    "None of the five facts may be missing in the text.",
    "The text has to contain all five of them.",
    "Make sure that all five facts are in the text.",
    "Use all five facts, each of them once.",
)
PLACES = words(
    """museum, library, swimming pool, climbing hall, theatre, botanical garden, pottery studio, zoo,
music school, bakery, sports club, planetarium, flea market, boat rental, cinema, language school, skating rink, farm
shop"""
)
ADJECTIVES = words(
    "Golden, Blue, Green, Silver, Happy, Royal, Sunny, Swift, Quiet, Grand, Little, Northern,"
    " Clever"
)
NOUNS = words(
    "Lion, River, Tower, Star, Garden, Bridge, Harbour, Falcon, Oak, Lantern, Compass, Meadow,"
    " Anchor"
)
SUBJECTS = {  # how a notice says two values of one kind, and the question about either
    "time": (
        ("It opens at {} and closes at {}.", "Opening hours are from {} to {} on every day."),
        ("When does the {place} open?", "When does the {place} close?"),
    ),
    "price": (
        (
            "A ticket costs {} for adults and {} for children.",
            "Adults pay {}, while children pay {}.",
        ),
        ("How much does an adult pay at the {place}?", "How much does a child pay at the {place}?"),
    ),
    "person": (
        (
            "{} has run it for years, and {} leads the guided tours.",
            "It is directed by {}; tours are given by {}.",
        ),
        ("Who directs the {place}?", "Who leads the guided tours of the {place}?"),
    ),
    "room": (
        (
            "The large hall holds {} and the small one {}.",
            "Of its two halls one is for {} and the other for {}.",
        ),
        (
            "How many people fit into the {place}'s large hall?",
            "How many people fit into the {place}'s small hall?",
        ),
    ),
    "city": (
        ("Its first home was {}, and today it is in {}.", "It began in {}, but is now in {}."),
        ("In which city was the {place} at first?", "In which city is the {place} today?"),
    ),
}
REPLY_REQUESTS = (
    (
        'Write an email of about 80 words to {to}, who asks: "{question}" Answer the question with'
        " this notice:"
    ),
    '{to} asks by email: "{question}" Reply in about 80 words, with the help of this notice:',
    (
        'Reply to {to} by an email of about 80 words. The question is: "{question}" This is our'
        " notice:"
    ),
    (
        'The question of {to} is: "{question}" Write a friendly email of about 80 words that'
        " answers it by this notice:"
    ),
)


def letters(**_: Any) -> dict[str, Any]:
    """The splits of the task `letters`, as lm-eval asks for a custom dataset."""
    return splits("letters", letter)


def descriptions(**_: Any) -> dict[str, Any]:
    """The splits of the task `descriptions`."""
    return splits("descriptions", description)


def passages(**_: Any) -> dict[str, Any]:
    """The splits of the task `passages`."""
    return splits("passages", passage)


def splits(name: str, make: Callable[[random.Random], Document]) -> dict[str, Any]:
    """Datasets of SIZES documents, whose requests all differ."""
    from datasets import Dataset

    rng = random.Random(f"{name} of 2026")
    made = dict[str, Document]()
    while len(made) < sum(SIZES.values()):
        document = make(rng)
        made.setdefault(document["request"], document)
    every = iter(made.values())
    return {
        split: Dataset.from_list(list(islice(every, number))) for split, number in SIZES.items()
    }


def letter(rng: random.Random) -> Document:
    """Sender, reader, day and hour of an event, and one further fact."""
    to, sender = rng.sample(FIRST, 2)
    hour = rng.randrange(8, 21)
    minute = rng.choice((0, 0, 15, 30, 45))
    clock = (
        f"{(hour - 1) % 12 + 1}{f':{minute:02}' if minute else ''} {'am' if hour < 12 else 'pm'}"
    )
    day = rng.choice(DAYS) if rng.random() < 0.5 else f"{rng.randrange(1, 29)} {rng.choice(MONTHS)}"
    more = [
        fact("words", rng.choice(("City", "Place")), rng.choice(CITIES)),
        fact(
            "number", rng.choice(("Room", "Where")), f"{rng.choice(ROOMS)} {rng.randrange(2, 480)}"
        ),
        fact("words", rng.choice(("Please bring", "To bring")), rng.choice(ITEMS)),
        fact("number", "Budget", f"${rng.choice((10, 25, 50)) * rng.randrange(3, 80):,}"),
        fact("number", rng.choice(("Guests", "Participants")), f"{rng.randrange(13, 95)} people"),
    ]
    named = [
        fact("words", rng.choice(("To", "Reader", "Addressed to")), to),
        fact("words", rng.choice(("From", "Sender", "Signed by")), f"{sender} {rng.choice(LAST)}"),
        fact("words" if day in DAYS else "date", rng.choice(("Day", "When", "Date")), day),
        fact(
            "time",
            rng.choice(("Hour", "Time", "Begins at")),
            clock if rng.random() < 0.6 else f"{hour}:{minute:02}",
        ),
    ]
    return document(
        rng,
        rng.choice(LETTER_REQUESTS).format(event=rng.choice(EVENTS)),
        [*named, *rng.sample(more, 1)],
    )


def description(rng: random.Random) -> Document:
    """Name, price and three further entries of an article."""
    name = f"{rng.choice(BEGINNINGS)}{rng.choice(NAME_ENDS)} {rng.choice(ARTICLES)}"
    price = f"${rng.randrange(9, 400)}" + rng.choice(("", "", ".50", ".90", ".95"))
    size = " x ".join(str(rng.randrange(12, 130)) for _ in range(rng.choice((2, 3))))
    is_heavy = rng.random() < 0.6
    weight = (
        f"{rng.randrange(1, 19)}.{rng.randrange(1, 10)} kg"
        if is_heavy
        else f"{rng.randrange(15, 95)}0 g"
    )
    more = [
        fact("words", rng.choice(("Colour", "Color")), rng.choice(COLOURS)),
        fact("words", rng.choice(("Material", "Made of")), rng.choice(MATERIALS)),
        fact("number", rng.choice(("Size", "Dimensions")), f"{size} cm"),
        fact("number", "Weight", weight),
        fact("number", rng.choice(("Warranty", "Guarantee")), f"{rng.randrange(2, 13)} years"),
        fact("words", rng.choice(("Origin", "Made in")), rng.choice(COUNTRIES)),
    ]
    named = [
        fact("words", rng.choice(("Name", "Product", "Article")), name),
        fact("number", "Price", price),
    ]
    return document(rng, rng.choice(DESCRIPTION_REQUESTS), [*named, *rng.sample(more, 3)])


def passage(rng: random.Random) -> Document:
    """A notice about a place with two values of each of four kinds, and somebody's question about
    one of the values.
    """
    place = rng.choice(PLACES)
    told = list[str]()
    asked = list[tuple[str, Fact]]()
    for kind in rng.sample(sorted(SUBJECTS), 4):
        sentences, questions = SUBJECTS[kind]
        both = values(rng, kind)
        told.append(rng.choice(sentences).format(*(one["value"] for one in both)))
        asked += zip(questions, both, strict=True)
    question, wanted = rng.choice(asked)
    notice = f"The {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)} is a {place}. {' '.join(told)}"
    request = rng.choice(REPLY_REQUESTS).format(
        to=rng.choice(FIRST), question=question.format(place=place)
    )
    return {
        "request": f"{request}\n{notice}",
        "facts": [wanted],
        "known": [one for _, one in asked],
    }


def values(rng: random.Random, kind: str) -> list[Fact]:
    """Two different facts of a kind of `SUBJECTS`."""
    if kind == "time":
        hours = (f"{rng.randrange(7, 11)}:{{:02}} am", f"{rng.randrange(4, 9)}:{{:02}} pm")
        return [fact("time", kind, hour.format(rng.choice((0, 15, 30, 45)))) for hour in hours]
    if kind == "price":
        return [
            fact("number", kind, f"${price}")
            for price in sorted(rng.sample(range(3, 40), 2), reverse=True)
        ]
    if kind == "room":
        return [
            fact("number", kind, f"{rng.randrange(*some)} people")
            for some in ((120, 600), (15, 90))
        ]
    if kind == "city":
        return [fact("words", kind, city) for city in rng.sample(CITIES, 2)]
    names = zip(rng.sample(FIRST, 2), rng.sample(LAST, 2), strict=True)
    return [fact("words", kind, f"{first} {last}") for first, last in names]


def fact(kind: str, label: str, value: str) -> Fact:
    return {"kind": kind, "label": label, "value": value}


def document(rng: random.Random, request: str, facts: list[Fact]) -> Document:
    """The request with its five facts in random order."""
    rng.shuffle(facts)
    lines = "\n".join(f"- {one['label']}: {one['value']}" for one in facts)
    end = rng.choice(ENDS)
    return {"request": f"{request}\n{lines}\n{end}", "facts": facts}


CLOCK = re.compile(
    r"\b(\d{1,2})(?:[:.](\d{2}))?\s*(?:([ap])\.?\s?m\b\.?|o'clock|hours\b)|\b(\d{1,2}):(\d{2})\b"
)
WORDS_OF_TIME = {"noon": "12 pm", "midday": "12 pm", "midnight": "12 am"}
NUMBER = re.compile(r"\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?")
LISTED = re.compile(r"^\s*\d+[.)]\s", re.MULTILINE)  # numbers of a list's lines say nothing
NUMBERS = words("two, three, four, five, six, seven, eight, nine, ten, eleven, twelve")
SPELLED = {word: number for number, word in enumerate(NUMBERS, 2)}
UNITS = {
    "$": r"\$|usd|dollars?|bucks",
    "kg": r"kgs?|kilos?|kilograms?",
    "g": r"g|grams?",
    "cm": r"cm|centimet(?:er|re)s?",
    "years": r"years?|yrs?",
    "people": "",  # guests, participants, friends
}


def process_results(doc: Document, results: Sequence[str]) -> dict[str, float]:
    """The metric of the tasks: letters.yaml, descriptions.yaml and passages.yaml in data/tasks."""
    return {"facts": score(doc["facts"], results[0], doc.get("known"))}


def score(facts: Sequence[Fact], text: str, known: Sequence[Fact] | None = None) -> float:
    """(facts in the text - numbers in it that no fact has, nor any of `known`) / facts, at least
    0.
    """
    text = plain(text)
    had = sum(has(one, text) for one in facts)
    return max(0.0, (had - len(invented(known or facts, text))) / len(facts))


def plain(text: str) -> str:
    """Lower case, without marks of emphasis or numbers of lists, in one spelling, with one kind of
    dash and space.
    """
    text = LISTED.sub(" ", text.casefold().replace("*", "").replace("’", "'"))
    text = text.replace("gray", "grey").replace("aluminum", "aluminium")
    return re.sub(r"\s+", " ", re.sub(r"[‐-―−]", "-", text))


def has(one: Fact, text: str) -> bool:
    """Whether a plain text has a fact."""
    value = one["value"].casefold()
    if one["kind"] == "time":
        return any(same_time(times(value)[0][0], found) for found in times(text)[0])
    if one["kind"] == "date":
        day, month = value.split()
        number = rf"0?{day}(?:st|nd|rd|th)?"
        name = rf"{month[:3]}(?:{month[3:]}|\b\.?)"
        return bool(
            re.search(rf"\b{number}(?: day)?(?: of)? {name}|\b{name} (?:the )?{number}\b", text)
        )
    if one["kind"] == "number":
        return has_numbers(value, text)
    words = "[ -]".join(map(re.escape, value.split()))
    return bool(re.search(rf"\b{words}(?:s|es)?\b", text))


def has_numbers(value: str, text: str) -> bool:
    """Whether the numbers of a value, perhaps spelled, follow each other in a text with its unit or
    word at one.
    """
    wanted = numbers_in(value)
    word = "$" if value.startswith("$") else re.findall(r"[a-z]+", value)[-1]
    unit = UNITS.get(word, word)
    text = re.sub(rf"\b({'|'.join(SPELLED)})\b", lambda found: str(SPELLED[found[1]]), text)
    found = list(NUMBER.finditer(text))
    values = numbers_in(text)
    for at in range(len(found) - len(wanted) + 1):
        near = text[max(0, found[at].start() - 12) : found[at + len(wanted) - 1].end() + 24]
        if values[at : at + len(wanted)] == wanted and re.search(
            rf"(?<![a-z])(?:{unit})(?![a-z])", near
        ):
            return True
    return False


def invented(facts: Sequence[Fact], text: str) -> set[str]:
    """Times and numbers of a plain text that no fact has, each once."""
    given, rest = times(text)
    hours = [times(one["value"].casefold())[0][0] for one in facts if one["kind"] == "time"]
    known = {
        number for one in facts if one["kind"] != "time" for number in numbers_in(one["value"])
    }
    strange = {
        f"{found[0]} min" for found in given if not any(same_time(hour, found) for hour in hours)
    }
    return strange | {str(number) for number in numbers_in(rest) if number not in known}


def numbers_in(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


Clock = tuple[int, bool]  # minutes of the day, and whether the half of the day is known


def times(text: str) -> tuple[list[Clock], str]:
    """The times in a text, and the text without them."""
    for word, clock in WORDS_OF_TIME.items():
        text = re.sub(rf"\b{word}\b", clock, text)
    found = []
    for hour12, minute12, half, hour24, minute24 in CLOCK.findall(text):
        hour = int(hour12 or hour24)
        minute = int(minute12 or minute24 or 0)
        hour = hour if not half or hour > 12 else hour % 12 + 12 * (half == "p")
        found.append((60 * hour + minute, bool(half) or hour > 12))
    return found, CLOCK.sub(" ", text)


def same_time(one: Clock, other: Clock) -> bool:
    """Equal, or half a day apart where one of them does not say which half it means."""
    return (one[0] - other[0]) % (24 * 60 if one[1] and other[1] else 12 * 60) == 0
